package example.slock;

import java.util.List;
import java.util.concurrent.CompletableFuture;

/** What a program asks for locks: {@link Locks}, or a {@link Quorum}. */
public abstract class Locker implements AutoCloseable {
  final Options options;
  final Reporter report;
  final Running running = new Running();

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
    running.end(end);
    disconnect(end);
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
    CompletableFuture<Hold> result = new CompletableFuture<>();
    begun.result().whenComplete((hold, failed) -> {
      Throwable error = Answers.unwrapped(failed);
      report.waited(request.label(), began, Answers.outcome(hold, error));
      Pending.pass(hold, error, result);
    });
    return new Pending<>(result, begun.cancel());
  }
}
