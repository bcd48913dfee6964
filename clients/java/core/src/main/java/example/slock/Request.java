package example.slock;

import java.util.List;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.function.Consumer;
import java.util.function.Function;

/**
 * What is wanted: keys, a mode and options. It sends nothing, is never changed, and may be used many times and by
 * several threads at once: each use takes a token of its own.
 */
public final class Request extends RequestOptions<Request> {
  /** Work under a lock. */
  @FunctionalInterface
  public interface Work<T, E extends Exception> {
    T apply(Hold hold) throws E, InterruptedException;
  }

  /** Work under a lock that has no result. */
  @FunctionalInterface
  public interface Action<E extends Exception> {
    void apply(Hold hold) throws E, InterruptedException;
  }

  final Locker by;
  final List<String> keys;
  final Mode mode;
  final Options options;

  Request(Locker by, List<String> keys, Mode mode, Options options) {
    this.by = by;
    this.keys = keys;
    this.mode = mode;
    this.options = options;
  }

  @Override
  Request with(Consumer<Options> change) {
    return new Request(by, keys, mode, options.copy().with(change));
  }

  /**
   * Waits until the lock is granted. A wait that is over ends with {@link SlockException.TimedOut}. An acquisition that
   * failed, or whose thread was interrupted, leaves neither a hold nor a place in the queue: what has to be sent for that
   * is sent in the background.
   *
   * @throws InterruptedException if the thread was interrupted before the grant
   */
  public Hold acquire() throws InterruptedException {
    check();
    if (Thread.interrupted()) {
      throw new InterruptedException();
    }
    return await(false);
  }

  /** As {@link #acquire}, and is not ended by an interrupt: the thread stays interrupted. */
  public Hold acquireUninterruptibly() {
    return acquireUninterruptibly(false);
  }

  Hold acquireUninterruptibly(boolean once) {
    check();
    return Pending.join(() -> by.acquire(this, once).result());
  }

  /** Asks once. It gives nothing when others hold the lock or wait for it. */
  public Optional<Hold> tryAcquire() throws InterruptedException {
    check();
    return Optional.ofNullable(await(true));
  }

  /** A grant that came after the interrupt is given back. */
  private Hold await(boolean once) throws InterruptedException {
    Hold hold = Pending.begin(() -> by.acquire(this, once)).await();
    if (hold != null && Thread.interrupted()) {
      hold.releaseAsync();
      throw new InterruptedException();
    }
    return hold;
  }

  /**
   * As {@link #acquire}, without a thread that waits. Who cancels the future, or completes it in another way, gives the
   * request up. It is completed by {@link Options#executor}.
   */
  public CompletableFuture<Hold> acquireAsync() {
    return async(false, hold -> hold);
  }

  /** As {@link #tryAcquire}, without a thread that waits. */
  public CompletableFuture<Optional<Hold>> tryAcquireAsync() {
    return async(true, Optional::ofNullable);
  }

  private <T> CompletableFuture<T> async(boolean once, Function<Hold, T> convert) {
    check();
    return by.acquire(this, once).told(by.options.executor, convert, hold -> {
      if (hold != null) {
        hold.releaseAsync();
      }
    });
  }

  /**
   * Runs work under the lock: acquires, works, releases. When the hold is lost, the thread is interrupted, and the end is
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
   * Makes a hold of the keys and the mode from a token that another process took and handed over, and renews it from now
   * on. {@link SlockException.NotHeld} when the token does not hold all keys in the mode.
   */
  public Hold adopt(String token) {
    Request own = token(token);
    own.check();
    Options.require(!token.isEmpty(), "the token must not be empty");
    return Pending.join(() -> by.adopt(own));
  }

  private void check() {
    options.check(keys, mode);
    Options.require(by.drift().counted(options.ttl) > 0, "nothing is left of the ttl after the drift");
  }

  Commands owner() {
    return options.token.isEmpty() ? new Commands(keys, Commands.newToken(), false)
        : new Commands(keys, options.token, true);
  }

  String label() {
    return options.label.isEmpty() ? keys.get(0) : options.label;
  }
}
