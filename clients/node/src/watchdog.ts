// The one timer that renews all holds of one `Locks`, or of one `Quorum`, and notices when one is over. It waits for no
// server: what is not answered is due again later.

import {later, now} from "./clock.js";

// What is due within so long, in ms, or within this part of its ttl, is renewed with what is due now.
const EARLY_MS = 20;
const EARLY_PART = 1 / 20;

// A renewal may take this part of the ttl, so that there is time for another try.
const ANSWER_PART = 1 / 5;
// And it always has so long, in ms.
const LEAST_TIME_MS = 50;

/** What is renewed, or only watched. All times are ms on the clock of the library. */
export interface Renewable {
  readonly ttlMs: number;
  /** When the next renewal is due. Infinity: no more renewals. */
  readonly renewAt: number;
  /** When the hold is over unless a renewal is answered. */
  readonly validUntil: number;
  /** Asks the server for a renewal, and takes the answer, which may be an error. `sent`: a moment before. Never rejects. */
  renew(sent: number, until: number): Promise<unknown>;
  /** Called when `validUntil` has passed. */
  expire(): void;
}

export class Watchdog {
  private readonly holds = new Set<Renewable>();
  private readonly busy = new Set<Renewable>(); // those whose renewal is under way
  private timer: NodeJS.Timeout | undefined;
  private wakesAt = Infinity;
  private closed = false;

  /** From now on it is renewed, or watched. For one that is there already: its times have changed. */
  add(hold: Renewable): void {
    this.holds.add(hold);
    this.wakeAt(this.timeOf(hold));
  }

  /** No renewal of it begins after this. */
  remove(hold: Renewable): void {
    if (!this.holds.delete(hold) || this.holds.size > 0) return;
    clearTimeout(this.timer);
    this.wakesAt = Infinity;
  }

  /** Renews no more, and keeps no program running. It still notices when a hold is over. */
  close(): void {
    this.closed = true;
    this.timer?.unref();
  }

  private timeOf(hold: Renewable): number {
    return this.closed || this.busy.has(hold) ? hold.validUntil : Math.min(hold.renewAt, hold.validUntil);
  }

  private wakeAt(time: number): void {
    if (time >= this.wakesAt) return;
    this.wakesAt = time;
    clearTimeout(this.timer);
    this.timer = later(time - now(), () => this.wake());
    if (this.closed) this.timer.unref();
  }

  private wake(): void {
    this.wakesAt = Infinity;
    const moment = now();
    let next = Infinity;
    for (const hold of this.holds) {
      if (hold.validUntil <= moment) {
        this.holds.delete(hold);
        hold.expire();
        continue;
      }
      const early = Math.min(EARLY_MS, hold.ttlMs * EARLY_PART);
      if (hold.renewAt <= moment + early && !this.closed && !this.busy.has(hold)) {
        this.busy.add(hold);
        void this.renew(hold, moment); // what is sent in one turn of the event loop goes together
      }
      next = Math.min(next, this.timeOf(hold));
    }
    if (next !== Infinity) this.wakeAt(next);
  }

  private async renew(hold: Renewable, sent: number): Promise<void> {
    await hold.renew(sent, sent + Math.max(hold.ttlMs * ANSWER_PART, LEAST_TIME_MS));
    this.busy.delete(hold);
    if (this.holds.has(hold)) this.wakeAt(this.timeOf(hold));
  }
}
