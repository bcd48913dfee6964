// The holds of one Locks, as far as the program has references to them. Each looks after itself by a timer.

import type {LiveHold, Remains} from "./hold.js";
import type {Reporter} from "./hooks.js";

export class Watchdog {
  readonly #renewed = new Map<Remains, WeakRef<LiveHold>>();
  /** Those that are not renewed. */
  readonly #others = new Set<LiveHold>();
  readonly #registry: FinalizationRegistry<Remains>;
  readonly #follow: (key: string | undefined) => void;

  /** `follow` is called with a key of the first hold that is renewed, and with nothing after the last. */
  constructor(reporter: Reporter, follow: (key: string | undefined) => void) {
    this.#follow = follow;
    this.#registry = new FinalizationRegistry((remains) => {
      if (remains.isOver) return;
      reporter.abandoned(remains.owner.names);
      this.#forget(remains);
      remains.keeper.endLater(remains.owner, remains.fence);
    });
  }

  watch(hold: LiveHold): void {
    if (hold.wanted.renew) {
      this.#renewed.set(hold.remains, new WeakRef(hold));
      this.#registry.register(hold, hold.remains);
      if (this.#renewed.size === 1) this.#follow(hold.owner.keys[0]);
      return;
    }
    // A program may leave such a hold to its ttl. With each new one, two that may be over are looked at.
    this.#others.add(hold);
    for (let looks = 0; looks < 2; looks++) {
      const [other] = this.#others;
      if (other) this.#others.delete(other);
      if (other && other.remainingMs > 0) this.#others.add(other);
    }
  }

  /** The hold has ended. */
  forget(hold: LiveHold): void {
    this.#others.delete(hold);
    this.#forget(hold.remains);
  }

  /** The holds of now that are renewed. */
  renewed(): LiveHold[] {
    return [...this.#renewed.values()].map((one) => one.deref()).filter((hold) => hold !== undefined);
  }

  /** The holds of now. */
  all(): LiveHold[] { return [...this.renewed(), ...this.#others]; }

  #forget(remains: Remains): void {
    if (this.#renewed.delete(remains) && this.#renewed.size === 0) this.#follow(undefined);
  }
}
