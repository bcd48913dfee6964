package example.slock;

import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Future;
import java.util.function.Consumer;

/** Commands that a {@link Transport.Node} sends together: a pipeline, or one command that follows redirections. */
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

  private static final int MOST_REDIRECTIONS = 5;

  private final Servers servers;
  private final Use use;
  private final long limit;
  private final boolean isPipeline;
  private final CompletableFuture<Reply> step;
  private final Consumer<Reply> late;
  private volatile List<List<String>> commands;
  private volatile Runnable close = () -> {};
  private volatile boolean isExpired;
  private int redirections;

  /** The answer goes to the step. Nobody waits for it any more when that is done; then it goes to late. */
  Call(Servers servers, List<List<String>> commands, boolean isPipeline, Use use, long limit,
      CompletableFuture<Reply> step, Consumer<Reply> late) {
    this.servers = servers;
    this.commands = commands;
    this.isPipeline = isPipeline;
    this.use = use;
    this.limit = limit;
    this.step = step;
    this.late = late;
  }

  /** Sends to the node, when it is known which. The step is done at the limit, at the latest. */
  void start(CompletableFuture<Transport.Node> to) {
    to.whenComplete((node, error) -> {
      if (error != null) {
        failed(error, false);
      } else if (!isOver()) {
        node.send(this);
      }
    });
    if (!isOver() && limit != Clock.NONE) {
      Future<?> timer = Timers.at(limit, this::expire);
      step.whenComplete((reply, error) -> timer.cancel(false));
    }
  }

  private void expire() {
    if (step.complete(Reply.NO_ANSWER)) {
      servers.note(Answers.NO_ANSWER);
      isExpired = true;
      close.run();
    }
  }

  private void end(Reply reply) {
    servers.note(reply.error());
    if (!step.complete(reply)) {
      late.accept(reply);
    }
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
    return limit == Clock.NONE ? Clock.NONE : Math.max(1, Clock.milliseconds(Clock.until(limit)));
  }

  /** Whether the current thread may wait for the answer. It is asked once. */
  public boolean mayBlock() {
    return Pending.takeThread();
  }

  /** Whether nobody waits for the answer any more. What was not sent by then must not be sent. */
  public boolean isOver() {
    return step.isDone();
  }

  /** What to do when no answer comes in time: to close the connection. */
  public void whenExpired(Runnable closing) {
    close = closing;
    if (isExpired) {
      closing.run();
    }
  }

  /**
   * One answer for each command: a Long, a String, null, a List of these, or the error of the server. A map is a flat list.
   */
  public void answered(List<?> answers) {
    if (isPipeline) {
      // A temporary error of one command is that of the whole, which may be sent again.
      end(answers.stream().filter(answer -> answer instanceof Throwable error && Answers.isTemporary(error)).findFirst()
          .map(Reply::of).orElseGet(() -> new Reply(answers, null)));
      return;
    }
    Reply reply = Reply.of(answers.get(answers.size() - 1));
    String address = Answers.redirection(reply.error());
    if (address == null || isOver() || redirections++ == MOST_REDIRECTIONS) {
      end(reply);
      return;
    }
    servers.look();
    List<String> last = commands.get(commands.size() - 1);
    commands = Answers.hasCode(reply.error(), "ASK") ? List.of(List.of("ASKING"), last) : List.of(last);
    servers.at(address).send(this);
  }

  /** There is no answer. If the call was not sent, it certainly never will be. */
  public void failed(Throwable cause, boolean wasSent) {
    end(Reply.failed(new Answers.Unanswered(Answers.unwrapped(cause), wasSent)));
  }
}
