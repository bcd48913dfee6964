package example.slock;

import static example.slock.Protocol.unwrap;

import example.slock.Protocol.Owner;
import example.slock.Protocol.Signal;
import java.util.List;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executor;

/**
 * One use of a request, or a change of mode that may have to wait, at a server or a quorum: it sends until the lock is
 * granted, or the time is over, or its caller leaves. Only one of its steps runs at a time.
 */
abstract class Acquisition {
  /**
   * What an acquisition gives.
   *
   * @param fence 0 for a quorum
   * @param from the validity counts from then
   */
  record Grant(long fence, long from) {}

  final Settings settings;
  final List<String> names;
  final Settings wanted;
  /** A refusal ends it without an error: the grant is null. */
  final boolean isTry;
  /** A refusal ends it. */
  final boolean isOnce;
  final Executor on;
  final long began = Clock.now();
  /** Of the wait. */
  final long deadline;
  /** When the server last replied. */
  long contact = Clock.NEVER;
  /** The last error that passes; null after a reply without one. */
  Throwable last;
  Polling polling = Polling.REFUSED;
  private final CompletableFuture<Grant> result = new CompletableFuture<>();
  private int failures;
  private int polls;
  private volatile Throwable left;
  private volatile CompletableFuture<?> pending;

  Acquisition(Settings settings, List<String> names, Settings wanted, boolean isTry, Executor on) {
    this.settings = settings;
    this.names = names;
    this.wanted = wanted;
    this.isTry = isTry;
    this.isOnce = isTry || wanted.wait == 0;
    this.on = on;
    this.deadline = isOnce ? Clock.NEVER : Clock.plus(began, wanted.wait);
  }

  /** Sends the request once, and waits for what comes of it. */
  abstract CompletableFuture<Grant> send();

  /** Where the hold is kept after the grant. */
  abstract Keeper keeper();

  /** Who holds it. */
  abstract Owner owner();

  /** Sees to it that nothing is left on the server after a failure. */
  abstract void abandon();

  /** The error of a call that is over, because others have the lock, or without a reply. */
  abstract CompletableFuture<Throwable> failed(boolean isTimedOut);

  CompletableFuture<Grant> start() {
    step();
    return result;
  }

  /** Ends it with an error, unless it has been granted. */
  void leave(Throwable why) {
    left = why;
    CompletableFuture<?> now = pending;
    if (now != null) {
      now.completeExceptionally(Signal.LEFT);
    }
  }

  boolean isLeft() {
    return left != null;
  }

  /** Waits in this thread. A grant that came after the interrupt is the result, and the thread stays interrupted. */
  final <T> T await(Caller caller, CompletableFuture<T> result) throws InterruptedException {
    try {
      return caller.run(result, () -> leave(new CancellationException("interrupted")));
    } catch (CancellationException e) {
      if (Thread.interrupted()) {
        throw new InterruptedException();
      }
      throw e;
    }
  }

  /** The future for the program: if that cancels it, or completes it in another way, the acquisition is over. */
  final <T> CompletableFuture<T> cancellable(CompletableFuture<T> future) {
    future.whenComplete((value, error) -> leave(new CancellationException("cancelled")));
    return future;
  }

  /** A future that ends when the caller leaves. */
  final <T> CompletableFuture<T> pend(CompletableFuture<T> future) {
    pending = future;
    if (left != null) {
      future.completeExceptionally(Signal.LEFT);
    }
    return future;
  }

  private void step() {
    boolean isOver = Clock.now() >= deadline;
    if (left != null) {
      result.completeExceptionally(left);
    } else if (isOver || last != null && Clock.now() >= limit()) {
      fail(isOver && last == null && contact != Clock.NEVER);
    } else {
      CompletableFuture<Grant> sent;
      try {
        sent = send();
      } catch (RuntimeException | Error e) {
        sent = CompletableFuture.failedFuture(e);
      }
      sent.whenCompleteAsync((got, error) -> next(got, unwrap(error)), on);
    }
  }

  private void fail(boolean isTimedOut) {
    failed(isTimedOut).whenComplete((error, none) -> result.completeExceptionally(error));
  }

  private void next(Grant got, Throwable error) {
    long pause = 0;
    if (error == null) {
      result.complete(got);
      return;
    } else if (error == Signal.POLL) {
      pause = polling.pause(polls++);
      if (pause < 0) {
        fail(last == null);
        return;
      }
    } else if (Protocol.passes(error)) {
      last = Server.moreTelling(last, error);
      pause = Polling.AFTER_ERRORS.pause(failures++);
    } else if (error != Signal.AGAIN && error != Signal.LEFT) {
      result.completeExceptionally(Protocol.explain(error, names));
      return;
    }
    pause = Math.min(pause, Math.min(limit(), deadline) - Clock.now());
    if (pause <= 0) {
      step();
      return;
    }
    CompletableFuture<Void> over = pend(new CompletableFuture<>());
    Clock.after(pause, () -> over.complete(null));
    over.whenCompleteAsync((none, leaving) -> step(), on);
  }

  /** Notes a reply without an error. */
  final void heard() {
    last = null;
    failures = 0;
  }

  /** Until when the server has to reply. */
  final long limit() {
    return contact == Clock.NEVER || isOnce ? Clock.plus(began, settings.retryFor)
        : Clock.plus(contact, settings.retryWaitFor);
  }
}
