// SPDX-License-Identifier: MIT OR Apache-2.0

package example.slock;

import static example.slock.Protocol.unwrap;

import example.slock.Protocol.Owner;
import example.slock.Protocol.Signal;
import java.util.List;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.function.Consumer;

/**
 * One use of a request, or a change of mode that may have to wait: attempts at a server or a quorum until one succeeds, their
 * time is over, or the caller leaves. Only one step runs at a time, on whichever thread completed the step before.
 */
abstract class Acquisition {
  /**
   * What an acquisition gives.
   *
   * @param fence 0 for a quorum
   * @param from the validity counts from then
   */
  record Grant(Keeper keeper, Owner owner, long fence, long from) {}

  /** In less time no reply comes, so a shorter wait is none. */
  private static final long LEAST_WAIT = Clock.MS;

  final Locks locks;
  final List<String> names;
  final Settings wanted;
  /** A refusal ends it without an error: the grant is null. */
  final boolean isTry;
  /** A refusal ends it. */
  final boolean isOnce;
  final long began = Clock.now();
  /** When it ends although the server replies. */
  long deadline;
  /** There was more time, because this process stood still. */
  private boolean isExcused;
  /** Until when the server has to reply. */
  long limit;
  boolean hasReply;
  /** The last error that passes; null after a reply without one. */
  Throwable last;
  /** Attempts that failed since the last reply. */
  int failures;
  int polls;
  private final CompletableFuture<Grant> result = new CompletableFuture<>();
  private volatile Throwable left;
  private volatile CompletableFuture<?> pending;

  Acquisition(Locks locks, List<String> names, Settings wanted, boolean isTry) {
    this.locks = locks;
    this.names = names;
    this.wanted = wanted;
    this.isTry = isTry;
    isOnce = isTry || wanted.wait < LEAST_WAIT;
    deadline = isOnce ? Clock.NEVER : Clock.plus(began, wanted.wait);
    limit = Clock.plus(began, locks.settings.retryFor);
  }

  abstract CompletableFuture<Grant> attempt();

  /** Sees to it that nothing is left on the server after a failure. */
  void abandon() {}

  /** Fails with the error of a call that is over. */
  CompletableFuture<Grant> failed(boolean isPastDeadline) {
    return CompletableFuture.failedFuture(Server.noAnswer(names, Math.min(Clock.now(), limit) - began, last));
  }

  /** Until when a reply is waited for. */
  final long end() {
    return Math.min(limit, Clock.plus(deadline, Server.LATE_REPLY));
  }

  final void noteReply() {
    hasReply = true;
    limit = isOnce ? limit : Clock.plus(Clock.now(), locks.settings.retryWaitFor);
  }

  CompletableFuture<Grant> start() {
    step();
    return result;
  }

  private void step() {
    CompletableFuture<Grant> sent;
    boolean isOver = Clock.now() >= deadline;
    try {
      if (left != null) {
        result.completeExceptionally(left);
        return;
      }
      boolean hasEnded = isOver || last != null && (Clock.now() >= limit || locks.isClosed);
      sent = hasEnded ? failed(isOver) : attempt();
    } catch (RuntimeException | Error e) {
      sent = CompletableFuture.failedFuture(e);
    }
    sent.whenComplete((got, error) -> next(got, unwrap(error)));
  }

  private void next(Grant got, Throwable error) {
    if (error == null) {
      result.complete(got);
    } else if (error == Signal.AGAIN) {
      step();
    } else if (Protocol.passes(error)) {
      last = Server.moreTelling(last, error);
      long more = Server.extended(end());
      if (Protocol.code(error).isEmpty() && !isExcused && more != end()) {
        isExcused = true;
        limit = Math.max(limit, more);
        deadline = Math.max(deadline, more);
      }
      pause(Polling.AFTER_ERRORS.pause(failures++)).whenComplete((none, over) -> step());
    } else {
      result.completeExceptionally(Protocol.explain(error, names));
    }
  }

  /** Fails with {@link Signal#AGAIN} after a pause. */
  final CompletableFuture<Grant> pause(long pause) {
    return pend(Clock.later(Math.min(pause, Math.min(limit, deadline) - Clock.now()))).thenCompose(
        over -> CompletableFuture.failedFuture(Signal.AGAIN));
  }

  /** A step that ends when the caller leaves. */
  final <S> CompletableFuture<S> pend(CompletableFuture<S> step) {
    CompletableFuture<S> mine = step.copy();
    pending = mine;
    if (left != null) {
      mine.completeExceptionally(Signal.AGAIN);
    }
    return mine;
  }

  /** Ends it with an error, unless it has succeeded. */
  final void leave(Throwable why) {
    left = why;
    CompletableFuture<?> now = pending;
    if (now != null) {
      now.completeExceptionally(Signal.AGAIN);
    }
  }

  /**
   * An acquisition under way.
   *
   * @param result what the program gets
   */
  record Running<T>(Acquisition acquisition, CompletableFuture<T> result) {
    /** Waits in this thread. A grant that came after the interrupt is the result, and the thread stays interrupted. */
    T await() throws InterruptedException {
      try {
        result.get();
      } catch (InterruptedException e) {
        Thread.currentThread().interrupt();
        acquisition.leave(new CancellationException("interrupted"));
      } catch (ExecutionException | CancellationException e) {
        // it is thrown below
      }
      try {
        return Caller.join(result);
      } catch (CancellationException e) {
        if (Thread.interrupted()) {
          throw new InterruptedException();
        }
        throw e;
      }
    }

    /** The future for the program. If that cancels it, or completes it in another way, the acquisition is over. */
    CompletableFuture<T> async(Consumer<T> giveBack) {
      CompletableFuture<T> future = acquisition.locks.told(result, giveBack);
      future.whenComplete((value, error) -> acquisition.leave(new CancellationException("cancelled")));
      return future;
    }
  }
}
