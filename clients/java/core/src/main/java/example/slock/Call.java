package example.slock;

import java.util.List;
import java.util.concurrent.CompletableFuture;

/** Commands that a {@link Transport.Node} sends together. */
public final class Call {
  /** What a connection is for. */
  public enum Use {
    /** Short commands, which share connections. */
    COMMANDS,
    /** Renewals: what other commands wait for must not delay them. */
    RENEWALS,
    /** What may be long before it is answered: a connection of its own, without a limit of time. */
    ALONE
  }

  final CompletableFuture<Reply> done = new CompletableFuture<>();
  private final List<List<String>> commands;
  private final Servers.Sending of;

  Call(List<List<String>> commands, Servers.Sending of) {
    this.commands = commands;
    this.of = of;
  }

  /** The words of each command. */
  public List<List<String>> commands() {
    return commands;
  }

  public Use use() {
    return of.use();
  }

  /** How long the answer may take from now on, at least 1 ms; {@code Long.MAX_VALUE} without a limit. */
  public long millisLeft() {
    return of.limit() == Clock.NONE ? Clock.NONE : Math.max(1, Clock.milliseconds(Clock.until(of.limit())));
  }

  /** Whether the current thread may wait for the answer. */
  public boolean mayBlock() {
    return Thread.currentThread() == of.caller();
  }

  /** Whether nobody waits for the answer any more. What was not sent by then must not be sent. */
  public boolean isOver() {
    return of.step().isDone();
  }

  /** What to do when no answer comes in time: to close the connection. */
  public void whenExpired(Runnable close) {
    of.expired().thenRun(() -> {
      if (!done.isDone()) {
        close.run();
      }
    });
  }

  /**
   * One answer for each command: a Long, a String, null, a List of these, or the error of the server. A map is a flat list.
   */
  public void answered(List<?> answers) {
    done.complete(new Reply(answers, null));
  }

  /** There was no answer in time. */
  public void timedOut() {
    done.complete(Reply.NO_ANSWER);
  }

  /** There is no answer. If the call was not sent, it certainly never will be. */
  public void failed(Throwable cause, boolean wasSent) {
    done.complete(Reply.failed(new Answers.Unanswered(cause, wasSent)));
  }
}
