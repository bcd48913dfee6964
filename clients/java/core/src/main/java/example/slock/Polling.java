package example.slock;

import java.time.Duration;
import java.util.concurrent.ThreadLocalRandom;

/** The pauses between attempts. */
public final class Polling {
  /** After errors that pass. */
  static final Polling AFTER_ERRORS = exponential(Duration.ofMillis(10), Duration.ofSeconds(1));
  /** Of a request that cannot wait by a message, after a refusal. */
  static final Polling REFUSED = exponential(Duration.ofMillis(20), Duration.ofSeconds(1));

  private final long first;
  private final long most;
  private final boolean isRandom;
  private final int attempts;

  private Polling(long first, long most, boolean isRandom, int attempts) {
    this.first = first;
    this.most = most;
    this.isRandom = isRandom;
    this.attempts = attempts;
  }

  /** No further attempt. */
  public static Polling none() {
    return constant(Duration.ZERO).limit(0);
  }

  /** A pause of one length before each further attempt. */
  public static Polling constant(Duration pause) {
    return new Polling(Clock.nanos(pause), Clock.nanos(pause), false, Integer.MAX_VALUE);
  }

  /** Pauses that double up to the most. Each is shortened by a random part of up to a half. */
  public static Polling exponential(Duration first, Duration most) {
    return new Polling(Clock.nanos(first), Clock.nanos(most), true, Integer.MAX_VALUE);
  }

  /** The same for at most so many further attempts. */
  public Polling limit(int attempts) {
    return new Polling(first, most, isRandom, attempts);
  }

  /** The pause before the further attempt n, counted from 0, or -1 if there is none. */
  long pause(int n) {
    if (n >= attempts) {
      return -1;
    }
    long pause = Math.min(first << Math.min(n, 20), Math.max(first, most));
    return isRandom ? pause / 2 + ThreadLocalRandom.current().nextLong(pause / 2 + 1) : pause;
  }
}
