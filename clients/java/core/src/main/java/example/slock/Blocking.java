package example.slock;

import java.util.List;
import java.util.concurrent.CompletableFuture;

/**
 * A wait on a connection of its own. No reply there is too late, so other commands tell whether the server is in reach. When
 * it is not, the request is asked again: nobody would tell a connection that has nothing to send that its server was
 * restarted.
 */
final class Blocking {
  /** How long after the beginning of a wait the server is tested first, if there is so much time. */
  private static final long TEST_AFTER = Clock.SECOND;
  private static final long TEST_EVERY = 5 * Clock.SECOND;

  private final Acquisition of;
  private final CompletableFuture<Reply> step;
  /** Of the last test; null before the first. */
  private volatile Boolean isReached;

  Blocking(Acquisition of) {
    this.of = of;
    step = of.begin(of.waitBy());
  }

  CompletableFuture<Reply> start() {
    long before = Clock.now();
    of.locks.servers.send(of.owner.key(), of.waiting(), Call.Use.ALONE, Clock.NONE, step, of::late);
    of.isQueued = true;
    Timers.at(Clock.in(Math.max(0, Math.min(TEST_AFTER, Clock.until(of.end()) / 3))), this::test);
    return step.thenApply(reply -> {
      Reply known = of.answered(before, reply);
      boolean isLost = Answers.isConnectionError(reply.error()) && Answers.mayRunLater(reply.error());
      if (isLost && (isReached != null ? isReached : of.contact == Clock.NONE)) {
        of.touch(); // it was there until now
      }
      if (known.error() != null && !of.doubt) {
        of.isQueued = false;
      }
      return known;
    });
  }

  private void test() {
    if (step.isDone()) {
      return;
    }
    long limit = Math.min(Clock.in(TEST_EVERY), of.answerBy());
    of.locks.servers.send(of.owner.key(), List.of("PING"), Call.Use.COMMANDS, limit, new CompletableFuture<>(), late -> {})
        .thenAccept(reply -> {
          isReached = !Answers.isConnectionError(reply.error());
          if (!isReached) {
            // Whether the PING was sent says nothing of the wait.
            step.complete(Reply.failed(new Answers.Unanswered(Answers.cause(reply.error()), true)));
          } else {
            of.touch();
            Timers.at(Clock.in(TEST_EVERY), this::test);
          }
        });
  }
}
