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

  private final List<List<String>> commands;
  private final Use use;
  private final long limit;
  private final Thread caller;
  private final CompletableFuture<Reply> step;
  private final CompletableFuture<Reply> done = new CompletableFuture<>();
  private volatile Runnable whenExpired = () -> {};

  /** The caller is the thread that may block, or null. Nobody waits for the answer any more when the step is done. */
  Call(List<List<String>> commands, Use use, long limit, Thread caller, CompletableFuture<Reply> step) {
    this.commands = commands;
    this.use = use;
    this.limit = limit;
    this.caller = caller;
    this.step = step;
  }

  CompletableFuture<Reply> done() {
    return done;
  }

  /** The words of each command. */
  public List<List<String>> commands() {
    return commands;
  }

  public Use use() {
    return use;
  }

  /** How long the answer may take from now on, at least 1 ms; {@code Long.MAX_VALUE} without a limit. */
  public long millisLeft() {
    return limit == Clock.NONE ? limit : Math.max(1, Clock.milliseconds(Clock.until(limit)));
  }

  /** Whether the current thread may wait for the answer. */
  public boolean mayBlock() {
    return Thread.currentThread() == caller;
  }

  /** Whether nobody waits for the answer any more. What was not sent by then must not be sent. */
  public boolean isOver() {
    return step.isDone();
  }

  /** What to do when no answer comes in time: to close the connection. */
  public void whenExpired(Runnable close) {
    whenExpired = close;
  }

  void expire() {
    whenExpired.run();
  }

  /** One answer for each command: a Long, a String, null, a List or a Map of these, or the error of the server. */
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
