package example.slock;

import java.time.Duration;
import java.util.Objects;
import java.util.function.Consumer;

/**
 * The options of a request. {@link Options} has them as the defaults of all requests. Durations count in
 * milliseconds on the server; a fraction counts as a whole one.
 */
public abstract class RequestOptions<T> {
  RequestOptions() {}

  abstract T with(Consumer<Options> change);

  /** How long the hold lives without a renewal: 2 ms or more. The default is 10 seconds. */
  public T ttl(Duration ttl) {
    return with(o -> o.ttl = Clock.nanos(ttl));
  }

  /** How long to wait at most. Without one, a request waits until it is granted. Zero asks once. */
  public T waitFor(Duration wait) {
    return with(o -> o.wait = Clock.nanos(wait));
  }

  /** At most so many readers at once: a semaphore. For reading only. Give all requests for a key the same limit. */
  public T limit(int readers) {
    return with(o -> o.limit = readers);
  }

  /** A text of at most 1024 bytes that SLOCK.INFO key FULL shows with the hold and while it waits. */
  public T metadata(String text) {
    return with(o -> o.metadata = Objects.requireNonNull(text));
  }

  /** Whether the watchdog renews the hold. Without it the hold ends a ttl after the grant, unless it is extended. */
  public T renew(boolean renew) {
    return with(o -> o.renew = renew);
  }

  /** So long after the grant the hold is lost, however often it is renewed: a stuck program does not hold for ever. */
  public T longestLease(Duration lease) {
    return with(o -> o.longestLease = Clock.nanos(lease));
  }

  /**
   * The owner's identity, of 1 to 255 bytes, for handing a hold over. Without it each use of a request takes 128
   * random bits. Two acquisitions of one key by one token are one hold for the server, and the program's own affair.
   */
  public T token(String token) {
    return with(o -> o.token = Objects.requireNonNull(token));
  }

  /**
   * The hold counts only when so many replicas have confirmed it within the timeout. Else it is released, and the
   * error is {@link SlockException.TooFewReplicas}. A quorum ignores it.
   */
  public T minReplicas(int replicas, Duration timeout) {
    return with(o -> {
      o.minReplicas = replicas;
      o.replicaTimeout = Clock.nanos(timeout);
    });
  }

  /** The name under which hooks hear of the request. The default is the first key. */
  public T label(String label) {
    return with(o -> o.label = Objects.requireNonNull(label));
  }
}
