package example.slock;

import java.util.List;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;

/** What a program asks for locks: {@link Locks}, or a {@link Quorum}. */
public abstract class Locker implements AutoCloseable {
  final Options options;
  final Reporter report;
  private final Set<Pending<?>> underWay = ConcurrentHashMap.newKeySet();
  private volatile boolean isClosing;

  Locker(Options options) {
    this.options = options.copy();
    report = new Reporter(options.hooks);
  }

  /** A request for the lock of all keys, or of none, as the one writer. It sends nothing. */
  public final Request write(String... keys) {
    return new Request(this, List.of(keys), Mode.WRITE, options.copy());
  }

  /** A request for the lock of all keys, or of none, as a reader. It sends nothing. */
  public final Request read(String... keys) {
    return new Request(this, List.of(keys), Mode.READ, options.copy());
  }

  /**
   * Releases what a token holds that another process took, in whichever mode, and tells on how many keys, or on how
   * many nodes of a quorum.
   */
  public final int release(List<String> keys, String token) {
    Options.require(!keys.isEmpty() && !token.isEmpty(), "a release needs a token and keys");
    return Pending.join(() -> releaseToken(new Commands(List.copyOf(keys), token, true)));
  }

  /**
   * Ends renewals, waits (with {@link SlockException.Closed}) and connections. It lets requests that were given up get off
   * the servers first, for at most the time of {@link Options#retryFor}. It releases nothing: holds end by their ttl, and
   * may still be released.
   */
  @Override
  public final void close() {
    close(Clock.in(options.retryFor));
  }

  final void close(long end) {
    isClosing = true;
    List.copyOf(underWay).forEach(one -> one.cancel().accept(new SlockException.Closed()));
    while (!underWay.isEmpty() && Clock.now() < end) {
      CompletableFuture<?>[] all = underWay.stream().map(Pending::result).toArray(CompletableFuture[]::new);
      Timers.limit(CompletableFuture.allOf(all).handle((done, error) -> Reply.NO_ANSWER), end).join();
    }
    disconnect(end);
  }

  final boolean isClosing() {
    return isClosing;
  }

  /** Notes what goes on until it is done, so that {@link #close} can give it up. */
  final <T> Pending<T> noted(Pending<T> one) {
    underWay.add(one);
    one.result().whenComplete((value, error) -> underWay.remove(one));
    if (isClosing) {
      one.cancel().accept(new SlockException.Closed());
    }
    return one;
  }

  /** Closes the connections, until then at the latest. */
  abstract void disconnect(long end);

  abstract Lease.Drift drift();

  /** Begins one use of a request. One that asks once ends with null when it is refused. */
  abstract Pending<Hold> begin(Request request, boolean once);

  abstract CompletableFuture<Hold> adopt(Request request);

  abstract CompletableFuture<Integer> releaseToken(Commands owner);

  /** The same, told to the hooks. */
  final Pending<Hold> acquire(Request request, boolean once) {
    long began = Clock.now();
    Pending<Hold> begun = begin(request, once);
    return new Pending<>(begun.result().whenComplete((hold, error) ->
        report.waited(request.label(), began, Answers.outcome(hold, Answers.unwrapped(error)))), begun.cancel());
  }
}
