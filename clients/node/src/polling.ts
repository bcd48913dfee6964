// How a client asks again where the server does not wait for it.

import {positive} from "./durations.js";

/** A strategy of polling. An object is not changed by its use and can be shared. */
export class Strategy {
  private constructor(
    private readonly firstMs: number,
    private readonly mostMs: number,
    private readonly chance: number,
    private readonly attempts = Infinity,
  ) {}

  /** Asks once, and not again. */
  static none(): Strategy { return new Strategy(1, 1, 0, 0); }

  /** Asks again after the same pause each time. */
  static constant(pauseMs: number): Strategy { return new Strategy(positive("pauseMs", pauseMs), pauseMs, 0); }

  /**
   * Asks again after `firstMs`, then after twice as long each time, up to `mostMs`. Each pause is shortened by chance,
   * by up to a half, so that clients that were refused together do not ask together again.
   */
  static exponential(firstMs: number, mostMs: number): Strategy {
    return new Strategy(positive("firstMs", firstMs), positive("mostMs", mostMs), 0.5);
  }

  /** The same strategy with at most so many further attempts after the first. */
  limit(attempts: number): Strategy {
    if (!(attempts >= 0)) throw new RangeError("attempts must not be negative");
    return new Strategy(this.firstMs, this.mostMs, this.chance, Math.min(attempts, this.attempts));
  }

  /**
   * The pauses of one acquisition, in ms: before the second attempt, the third, and so on. When they end, no further
   * attempt is made.
   */
  *pauses(): Generator<number, undefined> {
    let left = this.attempts;
    for (let pause = this.firstMs; left-- > 0; pause = Math.min(2 * pause, this.mostMs)) {
      yield Math.min(pause, this.mostMs) * (1 - this.chance * Math.random());
    }
  }
}
