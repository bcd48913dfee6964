package example.slock;

import java.util.List;
import java.util.concurrent.CompletableFuture;

/** Sends something again until it is answered or its time has ended. */
final class Repetition {
  /** How long after the end of its time a call still takes the answer of the server. */
  static final long LATE_ANSWER = 700 * Clock.MS;

  /** Sends once, and gives the answer by the limit. */
  interface Try {
    CompletableFuture<Reply> send(long limit);
  }

  /** The answer, or a named error. */
  final CompletableFuture<Reply> result = new CompletableFuture<>();
  private final Locks locks;
  private final String what;
  private final List<String> keys;
  private final long end;
  private final Try send;
  /** The moment before the last attempt. */
  volatile long sent;
  /** An attempt was sent and had no answer. */
  volatile boolean isUnanswered;
  private Throwable last;
  private int failures;

  Repetition(Locks locks, String what, List<String> keys, long end, Try send) {
    this.locks = locks;
    this.what = what;
    this.keys = keys;
    this.end = end;
    this.send = send;
  }

  void attempt() {
    sent = Clock.now();
    send.send(Math.min(end, locks.retryEnd()) + LATE_ANSWER).whenComplete(
        (reply, error) -> judge(error == null ? reply : Reply.failed(new Answers.Unanswered(error, false))));
  }

  private void judge(Reply reply) {
    isUnanswered |= Answers.mayRunLater(reply.error());
    if (!Answers.isTemporary(reply.error())) {
      result.complete(reply.error() == null ? reply : Reply.failed(Answers.named(reply.error())));
      return;
    }
    if (last == null || reply.error() != Answers.NO_ANSWER) {
      last = reply.error();
    }
    if (Clock.now() >= end || locks.servers.isClosed) {
      result.complete(Reply.failed(new SlockException.TimedOut(what, keys, Answers.cause(last))));
    } else {
      Timers.at(Math.min(Clock.in(Polling.AFTER_ERRORS.pause(failures++)), end), this::attempt);
    }
  }
}
