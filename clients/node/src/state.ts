// What the requests and the holds of one Locks share: its settings, what is under way, and the holds that there are.

import type {Reporter} from "./hooks.js";
import type {Settings} from "./options.js";
import type {Owner} from "./protocol.js";
import type {Answer, Extension} from "./server.js";
import type {Stop} from "./stop.js";

/** Where a hold is kept: one server, or the nodes of a quorum. */
export interface Keeper {
  /** Sends one extension. The number of the answer is 0 if the hold is gone. */
  extend(owner: Owner, extension: Extension, until: number): Promise<Answer>;
  /** Releases, or has the hold end after a time, and tells whether it was there. */
  end(owner: Owner, fence: number, afterMs: number): Promise<boolean>;
  /** Releases in the background. */
  endLater(owner: Owner, fence: number): void;
  readonly fences?: readonly number[];
}

/** What is left of a hold when the program has dropped its object. */
export interface Remains {
  readonly keeper: Keeper;
  readonly owner: Owner;
  readonly isRenewed: boolean;
  fence: number;
}

interface Kept {
  readonly remains: Remains;
  confirm(): void;
  release(): Promise<void>;
}

export class LocksState {
  /** Calls that are under way. */
  readonly running = new Set<Stop>();
  isClosed = false;
  readonly #holds = new Map<Remains, WeakRef<Kept>>();
  /** How many of them are renewed. */
  #renewed = 0;
  readonly #registry = new FinalizationRegistry<Remains>((remains) => {
    if (!this.ended(remains) || !remains.isRenewed) return;
    const {keeper, owner, fence} = remains;
    this.reporter.warn(`a hold was never released, and the program has no reference to it: it is released (lock ${owner.names.join(", ")})`);
    keeper.endLater(owner, fence);
  });

  /**
   * `follow` is called with a key of the first hold that is renewed, and with nothing after the last. `counted` is the part of a ttl that
   * counts for the validity.
   */
  constructor(
    readonly settings: Settings, readonly reporter: Reporter, readonly counted: (ttlMs: number) => number,
    readonly follow: (key: string | undefined) => void,
  ) {}

  get holds(): Kept[] { return [...this.#holds.values()].map((one) => one.deref()).filter((hold) => hold !== undefined); }

  /** A new hold. It is not kept from being collected: one to which the program has no reference is not renewed. */
  began(hold: Kept): void {
    const {remains} = hold;
    this.#holds.set(remains, new WeakRef(hold));
    this.#registry.register(hold, remains);
    if (remains.isRenewed && ++this.#renewed === 1) this.follow(remains.owner.keys[0]);
  }

  /** A hold has ended. False: it had before. */
  ended(remains: Remains): boolean {
    const wasThere = this.#holds.delete(remains);
    if (wasThere && remains.isRenewed && --this.#renewed === 0) this.follow(undefined);
    return wasThere;
  }
}
