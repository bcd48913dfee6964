package example.slock;

import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Future;
import java.util.function.BooleanSupplier;
import java.util.function.Predicate;
import java.util.stream.IntStream;
import java.util.stream.Stream;

/** Commands that a {@link Transport.Node} sends together: a pipeline, or one command. They follow redirections. */
public final class Call {
  /** What a connection is for. */
  public enum Use {
    /** Short commands, which share connections. */
    COMMANDS,
    /** What may be long before it is answered: a connection of its own, without a limit of time. */
    ALONE
  }

  private static final int MOST_REDIRECTIONS = 5;

  /** The list of answers. It is there at the limit, at the latest. */
  final CompletableFuture<Reply> answer = new CompletableFuture<>();
  private final Servers servers;
  private final List<List<String>> asked;
  private final Use use;
  private final long limit;
  private final BooleanSupplier isGivenUp;
  private volatile Runnable close = () -> {}; // of the node that it was sent to last
  private volatile boolean isExpired;
  private volatile boolean isAsking; // the key is about to move to where it goes
  private int redirections;

  /** What is given up is not sent any more. */
  Call(Servers servers, List<List<String>> commands, Use use, long limit, BooleanSupplier isGivenUp) {
    this.servers = servers;
    this.asked = commands;
    this.use = use;
    this.limit = limit;
    this.isGivenUp = isGivenUp;
  }

  /** Sends to the node, when it is known which. */
  Call start(CompletableFuture<Transport.Node> to) {
    to.whenComplete((node, error) -> {
      if (error != null) {
        failed(error, false);
      } else if (!isOver()) {
        node.send(this);
      }
    });
    if (!answer.isDone() && limit < Clock.NONE) {
      Future<?> timer = Timers.at(limit, () -> expire(Answers.NO_ANSWER));
      answer.whenComplete((reply, error) -> timer.cancel(false));
    }
    return this;
  }

  /** Ends without an answer. Its connection is closed. */
  void expire(Throwable why) {
    if (answer.complete(Reply.failed(why))) {
      servers.note(why);
      isExpired = true;
      close.run();
    }
  }

  private void end(Reply reply) {
    if (!answer.isDone()) {
      servers.note(reply.error());
    }
    answer.complete(reply);
  }

  /** The words of each command that is to be sent. */
  public List<List<String>> commands() {
    return isAsking ? asked.stream().flatMap(command -> Stream.of(List.of("ASKING"), command)).toList() : asked;
  }

  public Use use() {
    return use;
  }

  /** How long the answer may take from now on, at least 1 ms; a century and more without a limit. */
  public long millisLeft() {
    return Math.max(1, Clock.milliseconds(Clock.until(limit)));
  }

  /** Whether the current thread may wait for the answer. It is asked once. */
  public boolean mayBlock() {
    return Pending.takeThread();
  }

  /** Whether nobody waits for the answer any more. What was not sent by then must not be sent: it ends here. */
  public boolean isOver() {
    if (isGivenUp.getAsBoolean()) {
      answer.complete(Reply.failed(Answers.NOT_SENT));
    }
    return answer.isDone();
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
   * After a redirection all commands are sent again.
   */
  public void answered(List<?> answers) {
    List<?> own = !isAsking ? answers : IntStream.range(0, asked.size()).mapToObj(n -> answers.get(2 * n + 1)).toList();
    Throwable elsewhere = first(own, error -> Answers.redirection(error) != null);
    if (elsewhere != null && redirections++ < MOST_REDIRECTIONS) {
      servers.look();
      isAsking = Answers.hasCode(elsewhere, "ASK");
      if (!isOver()) {
        servers.at(Answers.redirection(elsewhere)).send(this);
      }
      return;
    }
    // A temporary error of one command is that of the whole, which may be sent again.
    Throwable temporary = first(own, Answers::isTemporary);
    end(temporary != null ? Reply.failed(temporary) : new Reply(own, null));
  }

  private static Throwable first(List<?> answers, Predicate<Throwable> is) {
    return answers.stream().filter(Throwable.class::isInstance).map(Throwable.class::cast).filter(is).findFirst().orElse(null);
  }

  /** There is no answer. If the call was not sent, it certainly never will be. */
  public void failed(Throwable cause, boolean wasSent) {
    end(Reply.failed(new Answers.Unanswered(cause, wasSent)));
  }
}
