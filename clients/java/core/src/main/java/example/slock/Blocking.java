package example.slock;

import java.util.concurrent.CompletableFuture;

/**
 * A wait on a connection of its own. No reply there is too late, so other commands tell whether the server is in reach.
 * After an outage the request is asked again: nobody would tell a connection that has nothing to send that its server was
 * restarted.
 */
final class Blocking {
  /** How long after the beginning of a wait the server is tested first, if there is so much time. */
  private static final long TEST_AFTER = Clock.SECOND;
  private static final long TEST_EVERY = 5 * Clock.SECOND;

  private final Acquisition of;
  private final CompletableFuture<Reply> step;
  private volatile boolean isTested;
  private boolean isOutage;
  private volatile boolean isLeft; // the test has ended the wait, and not the connection

  Blocking(Acquisition of) {
    this.of = of;
    step = of.begin(of.waitBy());
  }

  CompletableFuture<Reply> start() {
    long before = Clock.now();
    of.locks.servers.send(of.owner.key(), of.waiting(), Call.Use.ALONE, Clock.NONE, step, of::late);
    of.isQueued = true;
    testAt(Clock.in(Math.max(0, Math.min(TEST_AFTER, Clock.until(of.end()) / 3))));
    return step.thenApply(reply -> {
      boolean isOver = reply.error() == Answers.NO_ANSWER && of.waitBy() <= Clock.now();
      Reply known = of.answered(before, reply);
      if (isOver) {
        of.note(reply.error());
        return Reply.failed(of.timedOut());
      }
      if (Answers.mayRunLater(known.error()) && reply.error() != Answers.LEFT && !isLeft
          && (isTested || of.contact == Clock.NONE)) {
        of.touch(); // it was there until now
      }
      if (known.error() != null && !of.doubt) {
        of.isQueued = false;
      }
      return known;
    });
  }

  private void testAt(long moment) {
    Timers.at(moment, this::test);
  }

  private void test() {
    if (step.isDone()) {
      return;
    }
    CompletableFuture<Reply> ping = new CompletableFuture<>();
    long limit = Math.min(Clock.in(TEST_EVERY), of.answerBy());
    of.locks.servers.send(of.owner.key(), java.util.List.of("PING"), Call.Use.COMMANDS, limit, ping, reply -> {});
    ping.thenAccept(reply -> {
      boolean isDown = Answers.isConnectionError(reply.error());
      if (!isDown) {
        isTested = true;
        of.touch();
      }
      if (!isDown && isOutage) {
        isLeft = true;
        step.complete(Reply.failed(Answers.NO_ANSWER));
      } else if (isDown && of.end() <= Clock.now()) {
        isLeft = true;
        // Whether the PING was sent says nothing of the wait.
        step.complete(Reply.failed(new Answers.Unanswered(Answers.cause(reply.error()), true)));
      } else {
        isOutage = isDown;
        testAt(Clock.in(Math.max(50 * Clock.MS, Math.min(TEST_EVERY, Clock.until(of.end())))));
      }
    });
  }
}
