package example.slock;

import java.util.List;
import java.util.concurrent.CompletableFuture;

/**
 * Sends something again until it is answered or its time has ended. The caller's part of the time ends before: then
 * it goes on in the background.
 */
final class Repetition {
  /** How long after the end of its time a call still takes the answer of the server. */
  static final long LATE_ANSWER = 700 * Clock.MS;

  /** Sends once, and gives the answer by the limit. */
  interface Try {
    CompletableFuture<Reply> send(long limit);
  }

  /** Done when the caller has its answer, or a named error: at the caller's end, at the latest. */
  final CompletableFuture<Reply> forCaller = new CompletableFuture<>();
  /** Done when nothing goes on any more. */
  final CompletableFuture<Reply> whole = new CompletableFuture<>();
  private final Locks locks;
  private final String what;
  private final List<String> keys;
  private final long callerEnd;
  private final long end;
  private final Try send;
  /** The moment before the last attempt. */
  volatile long sent;
  /** An attempt was sent and had no answer. */
  volatile boolean isUnanswered;
  private Throwable last;
  private int failures;

  Repetition(Locks locks, String what, List<String> keys, long callerEnd, long end, Try send) {
    this.locks = locks;
    this.what = what;
    this.keys = keys;
    this.callerEnd = callerEnd;
    this.end = Math.max(end, callerEnd);
    this.send = send;
  }

  void attempt() {
    // The time of the caller ends the try only where the whole ends with it.
    long limit = Math.min(end, Clock.in(locks.options.retryFor)) + LATE_ANSWER;
    sent = Clock.now();
    send.send(limit).whenComplete(
        (reply, error) -> judge(error == null ? reply : Reply.failed(new Answers.Unanswered(error, false))));
  }

  private void judge(Reply reply) {
    isUnanswered |= Answers.mayRunLater(reply.error());
    if (!Answers.isTemporary(reply.error())) {
      finish(reply.error() == null ? reply : Reply.failed(Answers.named(reply.error())));
      return;
    }
    if (last == null || reply.error() != Answers.NO_ANSWER) {
      last = reply.error();
    }
    long now = Clock.now();
    Reply over = Reply.failed(new SlockException.TimedOut(what, keys, Answers.cause(last)));
    if (now >= callerEnd) {
      forCaller.complete(over);
    }
    if (now >= end || locks.isClosed) {
      finish(over);
    } else {
      long next = Math.min(now + Polling.AFTER_ERRORS.pause(failures++), end);
      Timers.at(now < callerEnd ? Math.min(next, callerEnd) : next, this::attempt);
    }
  }

  private void finish(Reply reply) {
    whole.complete(reply);
    forCaller.complete(reply);
  }
}
