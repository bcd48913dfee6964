package example.slock;

import java.time.Duration;

/**
 * Moments and durations in nanoseconds, as plain numbers that can be compared. Java has no clock that goes on while
 * the machine sleeps, so this one stops then.
 */
final class Clock {
  static final long MS = 1_000_000;
  static final long SECOND = 1000 * MS;
  /** No limit of time. What is later is none, too. */
  static final long NONE = Long.MAX_VALUE / 2;
  /** The longest duration that the server takes: a year. */
  static final long LONGEST = 365L * 24 * 3600 * SECOND;
  private static final long START = System.nanoTime();

  private Clock() {}

  static long now() {
    return System.nanoTime() - START;
  }

  static long in(long nanos) {
    return now() + nanos;
  }

  /** How long it is until then. */
  static long until(long moment) {
    return moment - now();
  }

  static long nanos(Duration duration) {
    return duration.isNegative() ? -1 : duration.compareTo(Duration.ofDays(365)) > 0 ? LONGEST : duration.toNanos();
  }

  /** Rounds up: a wait of 0 ms would be one without end, and a ttl of 0 an error. */
  static long milliseconds(long nanos) {
    return (nanos + MS - 1) / MS;
  }
}
