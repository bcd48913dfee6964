package example.slock;

import static example.slock.Protocol.unwrap;

import example.slock.Protocol.Signal;
import java.util.List;
import java.util.concurrent.CompletableFuture;

/**
 * An attempt that is repeated until it succeeds, its time is over, or its caller leaves. Only one of its steps runs at a time,
 * on whichever thread completed the step before.
 */
abstract class Repetition<T> {
  final Locks locks;
  final List<String> names;
  final long began = Clock.now();
  /** The last error that passes; null after a reply without one. */
  Throwable last;
  /** Attempts that failed since the last reply. */
  int failures;
  private final CompletableFuture<T> result = new CompletableFuture<>();
  private volatile Throwable left;
  private volatile CompletableFuture<?> pending;

  Repetition(Locks locks, List<String> names) {
    this.locks = locks;
    this.names = names;
  }

  abstract CompletableFuture<T> attempt();

  /** Until when the server has to reply. */
  abstract long limit();

  /** When it ends although the server replies. */
  long deadline() {
    return Clock.NEVER;
  }

  /** Fails with the error of a call that is over. */
  CompletableFuture<T> failed(boolean isPastDeadline) {
    return CompletableFuture.failedFuture(Server.noAnswer(names, Math.min(Clock.now(), limit()) - began, last));
  }

  CompletableFuture<T> start() {
    step();
    return result;
  }

  private void step() {
    CompletableFuture<T> sent;
    boolean isOver = Clock.now() >= deadline();
    try {
      if (left != null) {
        result.completeExceptionally(left);
        return;
      }
      boolean hasEnded = isOver || last != null && (Clock.now() >= limit() || locks.isClosed);
      sent = hasEnded ? failed(isOver) : attempt();
    } catch (RuntimeException | Error e) {
      sent = CompletableFuture.failedFuture(e);
    }
    sent.whenComplete((got, error) -> next(got, unwrap(error)));
  }

  private void next(T got, Throwable error) {
    if (error == null) {
      result.complete(got);
    } else if (error == Signal.AGAIN || error == Signal.LEFT) {
      step();
    } else if (Protocol.passes(error)) {
      last = Server.moreTelling(last, error);
      pause(Polling.AFTER_ERRORS.pause(failures++)).whenComplete((none, over) -> step());
    } else {
      result.completeExceptionally(Protocol.explain(error, names));
    }
  }

  /** Fails with {@link Signal#AGAIN} after a pause. */
  final CompletableFuture<T> pause(long pause) {
    CompletableFuture<T> over = new CompletableFuture<>();
    long most = Math.min(limit(), deadline()) - Clock.now();
    Clock.after(Math.min(pause, most), () -> over.completeExceptionally(Signal.AGAIN));
    return pend(over);
  }

  /** A step that ends when the caller leaves. */
  final <S> CompletableFuture<S> pend(CompletableFuture<S> step) {
    CompletableFuture<S> mine = step.copy();
    pending = mine;
    if (left != null) {
      mine.completeExceptionally(Signal.LEFT);
    }
    return mine;
  }

  /** Ends it with an error, unless it has succeeded. */
  final void leave(Throwable why) {
    left = why;
    CompletableFuture<?> now = pending;
    if (now != null) {
      now.completeExceptionally(Signal.LEFT);
    }
  }

  final boolean isLeft() {
    return left != null;
  }
}
