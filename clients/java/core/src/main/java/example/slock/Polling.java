// SPDX-License-Identifier: MIT OR Apache-2.0

package example.slock;

import java.time.Duration;
import java.util.concurrent.ThreadLocalRandom;
import java.util.function.IntToLongFunction;

/** The pauses between attempts. */
public final class Polling {
  /** After errors that pass. */
  static final Polling AFTER_ERRORS = exponential(Duration.ofMillis(10), Duration.ofSeconds(1));
  /** Of a request that cannot wait by a message, after a refusal. */
  static final Polling REFUSED = exponential(Duration.ofMillis(20), Duration.ofSeconds(1));

  private final IntToLongFunction pause;

  private Polling(IntToLongFunction pause) {
    this.pause = pause;
  }

  /** No further attempt. */
  public static Polling none() {
    return new Polling(n -> -1);
  }

  /** A pause of one length before each further attempt. */
  public static Polling constant(Duration pause) {
    return new Polling(n -> Clock.nanos(pause));
  }

  /** Pauses that double up to the most. Each is shortened by a random part of up to a half. */
  public static Polling exponential(Duration first, Duration most) {
    return new Polling(n -> {
      long pause = Math.min(Clock.nanos(first) << Math.min(n, 20), Clock.nanos(most));
      return pause / 2 + ThreadLocalRandom.current().nextLong(pause / 2 + 1);
    });
  }

  /** The same for at most so many further attempts. */
  public Polling limit(int attempts) {
    return new Polling(n -> n < attempts ? pause(n) : -1);
  }

  /** The pause before the further attempt n, counted from 0, or -1 if there is none. */
  long pause(int n) {
    return pause.applyAsLong(n);
  }
}
