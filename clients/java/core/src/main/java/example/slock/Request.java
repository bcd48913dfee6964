// SPDX-License-Identifier: MIT OR Apache-2.0

package example.slock;

import java.util.List;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.function.Consumer;

/**
 * What is wanted: keys, a mode and options. It sends nothing, is never changed, and may be used many times and by
 * several threads at once: each use draws an owner token of its own.
 */
public final class Request extends RequestOptions<Request> {
  /** Work under a lock. */
  @FunctionalInterface
  public interface Work<T, E extends Exception> {
    /** Works. */
    T apply(Hold hold) throws E, InterruptedException;
  }

  /** Work under a lock that has no result. */
  @FunctionalInterface
  public interface Action<E extends Exception> {
    /** Works. */
    void apply(Hold hold) throws E, InterruptedException;
  }

  final Locks locks;
  final List<String> keys;
  final Mode mode;
  final Settings settings;

  Request(Locks locks, List<String> keys, Mode mode, Settings settings) {
    this.locks = locks;
    this.keys = keys;
    this.mode = mode;
    this.settings = settings;
  }

  @Override
  Request with(Consumer<Settings> change) {
    return new Request(locks, keys, mode, settings.with(change));
  }

  /**
   * Waits until the lock is granted. An acquisition that failed, or whose thread was interrupted, leaves neither a hold nor a
   * place in the queue: what has to be sent for that is sent in the background.
   *
   * @throws SlockException.TimedOut if others held the lock until the end of {@link #waitFor}
   * @throws SlockException.NoAnswer if no reply came: for {@link Options#retryFor} from the beginning, or for
   *     {@link Options#retryWaitFor} later
   * @throws InterruptedException if the thread was interrupted before the grant
   */
  public Hold acquire() throws InterruptedException {
    return await(false);
  }

  /** As {@link #acquire}, and is not ended by an interrupt: the thread stays interrupted. */
  public Hold acquireUninterruptibly() {
    return join(false);
  }

  Hold join(boolean isTry) {
    return Caller.join(() -> locks.acquire(this, isTry).result());
  }

  /** Sends the request once. It gives nothing if others hold the lock or wait for it. */
  public Optional<Hold> tryAcquire() throws InterruptedException {
    return Optional.ofNullable(await(true));
  }

  Hold await(boolean isTry) throws InterruptedException {
    check();
    if (Thread.interrupted()) {
      throw new InterruptedException();
    }
    return Caller.begin(() -> locks.acquire(this, isTry)).await();
  }

  /**
   * As {@link #acquire}, without a thread that waits. Cancelling the future gives the request up. It is completed by
   * {@link Options#executor}.
   */
  public CompletableFuture<Hold> acquireAsync() {
    return locks.acquire(this, false).async(Hold::releaseAsync);
  }

  /** As {@link #tryAcquire}, without a thread that waits. */
  public CompletableFuture<Optional<Hold>> tryAcquireAsync() {
    Acquisition.Running<Hold> running = locks.acquire(this, true);
    return new Acquisition.Running<>(running.acquisition(), running.result().thenApply(Optional::ofNullable))
        .async(hold -> hold.ifPresent(Hold::releaseAsync));
  }

  /**
   * Runs work under the lock: acquires, works, releases. If the hold is lost, the thread is interrupted, and the end is
   * {@link SlockException.Lost}. A release that fails is no error of finished work.
   */
  public <T, E extends Exception> T run(Work<T, E> work) throws E, InterruptedException {
    return acquire().run(work);
  }

  /** As {@link #run}, for work without a result. It gives null, so that it can be what a {@code Callable} does. */
  public <E extends Exception> Void execute(Action<E> work) throws E, InterruptedException {
    return this.<Void, E>run(hold -> {
      work.apply(hold);
      return null;
    });
  }

  /**
   * Makes a hold of the keys and the mode from an owner token that another process took and detached, and renews it from now
   * on.
   *
   * @throws SlockException.NotHeld if the token does not hold all keys in the mode
   */
  public Hold adopt(String token) {
    Request own = token(token);
    own.check();
    return Caller.join(() -> locks.adopt(own));
  }

  void check() {
    locks.checkOpen(keys);
    settings.check(keys, mode);
    Settings.require(locks.backend.counted(settings.ttl) > 0, "the ttl of a quorum must be above 2 ms and the drift");
  }

  String label() {
    return settings.label != null ? settings.label : keys.get(0);
  }
}
