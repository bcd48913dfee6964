package example.slock;

import java.time.Duration;
import java.util.concurrent.ThreadLocalRandom;

/** How polling asks again: the pauses, and how often. */
public final class Polling {
  static final Polling AFTER_ERRORS = exponential(Duration.ofMillis(10), Duration.ofSeconds(1));
  static final Polling OF_QUORUM = exponential(Duration.ofMillis(20), Duration.ofMillis(250));

  private final long first;
  private final long most;
  private final int attempts;

  private Polling(long first, long most, int attempts) {
    this.first = first;
    this.most = Math.max(first, most);
    this.attempts = attempts;
  }

  /** Asks once. */
  public static Polling none() {
    return new Polling(0, 0, 0);
  }

  /** Asks again after each pause. */
  public static Polling constant(Duration pause) {
    return new Polling(Clock.nanos(pause), 0, Integer.MAX_VALUE);
  }

  /**
   * Asks again after pauses that begin with first and double up to most. Each is shortened by a random part of up to a
   * half, so that contenders do not ask in step.
   */
  public static Polling exponential(Duration first, Duration most) {
    return new Polling(Clock.nanos(first), Clock.nanos(most), Integer.MAX_VALUE);
  }

  /** With at most so many further attempts after the first. */
  public Polling limit(int attempts) {
    return new Polling(first, most, attempts);
  }

  /** Whether there is a further attempt after so many. */
  boolean hasMore(int further) {
    return further < attempts;
  }

  /** The pause before the further attempt n, counted from 0. */
  long pause(int n) {
    if (first == most) {
      return first;
    }
    long pause = (long) Math.min(most, first * Math.pow(2, n));
    return pause / 2 + ThreadLocalRandom.current().nextLong(pause / 2 + 1);
  }
}
