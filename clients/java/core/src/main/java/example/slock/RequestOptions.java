// SPDX-License-Identifier: MIT OR Apache-2.0

package example.slock;

import java.time.Duration;
import java.util.Objects;
import java.util.function.Consumer;

/**
 * The options of a request. {@link Options} has them as the defaults of all requests. Each method gives a changed copy. The
 * server counts durations in milliseconds; a fraction counts as a whole one.
 */
public abstract class RequestOptions<T> {
  RequestOptions() {}

  abstract T with(Consumer<Settings> change);

  /** How long the hold lives without a renewal: 2 ms or more. The default is 10 seconds. */
  public T ttl(Duration ttl) {
    return with(s -> s.ttl = Clock.nanos(ttl));
  }

  /** How long to wait at most. Without it a request waits until it is granted. With less than 1 ms it is sent once. */
  public T waitFor(Duration wait) {
    return with(s -> s.wait = Clock.nanos(wait));
  }

  /** Lets at most so many readers hold the lock at once: a semaphore. Give all requests for a key the same limit. */
  public T limit(int readers) {
    return with(s -> s.limit = readers);
  }

  /**
   * A text of at most 1024 bytes that SLOCK.INFO key FULL shows with the hold and while it waits. The default names the host,
   * the process and the thread.
   */
  public T metadata(String text) {
    return with(s -> s.metadata = Objects.requireNonNull(text));
  }

  /** Whether the watchdog renews the hold. Without it the hold ends a ttl after the grant, unless it is extended. */
  public T renew(boolean renew) {
    return with(s -> s.isRenewed = renew);
  }

  /** The maximum hold time: so long after the grant the hold is lost, and renewals cannot exceed it. */
  public T maxHold(Duration most) {
    return with(s -> s.maxHold = Clock.nanos(most));
  }

  /**
   * Keeps the lock for so long after the grant, even if the hold is released earlier: the release then only ends the
   * renewal. It is for jobs that start on several machines whose clocks differ, and must run once. At most the server's
   * {@code slock.max-ttl-ms}: if it is longer than the ttl, the server is asked for that before the lock is, and the error is
   * an {@link IllegalArgumentException}.
   */
  public T atLeast(Duration least) {
    return with(s -> s.atLeast = Clock.nanos(least));
  }

  /**
   * The owner token, of 1 to 255 bytes. Without it each acquisition draws 128 random bits. Give all locks of one task the
   * same token, and the server refuses a wait that would be a deadlock of tasks. Two acquisitions of one key by one token are
   * one hold for the server. If a command without a reply arrives late, it may take the lock again for its ttl: with a drawn
   * token, the server refuses it.
   */
  public T token(String token) {
    return with(s -> s.token = Objects.requireNonNull(token));
  }

  /**
   * The hold counts only if so many replicas acknowledge it within the timeout, at the grant and at each renewal. At the
   * grant the lock is otherwise released, with {@link SlockException.TooFewReplicas}. A quorum ignores it.
   */
  public T minReplicas(int replicas, Duration timeout) {
    return with(s -> {
      s.minReplicas = replicas;
      s.replicaTimeout = Clock.nanos(timeout);
    });
  }

  /** The name of the request for hooks. The default is the first key. */
  public T label(String label) {
    return with(s -> s.label = Objects.requireNonNull(label));
  }
}
