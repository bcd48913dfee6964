// The one timer that renews all holds of one `Locks`, or of one `Quorum`, and notices when one is over. It waits for no
// server: what is not answered is due again later.

import type {Answer} from "./answers.js";
import {later, now} from "./clock.js";
import type {Command, Key} from "./commands.js";
import {answerTo, type Servers} from "./servers.js";

// What is due within so long, in ms, or within this part of its ttl, is renewed with what is due now.
const EARLY_MS = 20;
const EARLY_PART = 1 / 20;

// A renewal may take this part of the ttl, so that there is time for another try.
const ANSWER_PART = 1 / 5;
// And it always has so long, in ms.
const LEAST_TIME_MS = 50;

/** What is renewed, or only watched. All times are ms on the clock of the library. */
export interface Renewable {
  readonly servers: Servers;
  readonly key: Key;
  readonly ttlMs: number;
  /** When the next renewal is due. Infinity: no more renewals. */
  readonly renewAt: number;
  /** When the hold is over unless a renewal is answered. */
  readonly validUntil: number;
  /** A command, and what takes the moment at which it was sent and its answer, which may be an error. */
  renewal(): {command: Command; take: (sent: number, answer: Answer) => void};
  /** Called when `validUntil` has passed. */
  expire(): void;
}

export class Watchdog {
  private readonly holds = new Set<Renewable>();
  private readonly busy = new Set<Renewable>(); // those whose renewal is under way
  private timer: NodeJS.Timeout | undefined;
  private wakesAt = Infinity;
  private closed = false;

  /** From now on it is renewed. For one that is there already: its times have changed. */
  add(hold: Renewable): void {
    if (this.closed) return;
    this.holds.add(hold);
    this.wakeAt(this.timeOf(hold));
  }

  /** No renewal of it begins after this. */
  remove(hold: Renewable): void {
    if (!this.holds.delete(hold) || this.holds.size > 0) return;
    clearTimeout(this.timer);
    this.wakesAt = Infinity;
  }

  /** Renews no more. */
  close(): void {
    this.closed = true;
    this.holds.clear();
    clearTimeout(this.timer);
  }

  private timeOf(hold: Renewable): number {
    return this.busy.has(hold) ? hold.validUntil : Math.min(hold.renewAt, hold.validUntil);
  }

  private wakeAt(time: number): void {
    if (time >= this.wakesAt || this.closed) return;
    this.wakesAt = time;
    clearTimeout(this.timer);
    this.timer = later(time - now(), () => this.wake());
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
      if (hold.renewAt <= moment + early && !this.busy.has(hold)) {
        this.busy.add(hold);
        void this.renew(hold); // what is sent in one turn of the event loop goes together
      }
      next = Math.min(next, this.timeOf(hold));
    }
    if (next !== Infinity) this.wakeAt(next);
  }

  private async renew(hold: Renewable): Promise<void> {
    const until = now() + Math.max(hold.ttlMs * ANSWER_PART, LEAST_TIME_MS);
    const {command, take} = hold.renewal();
    const sent = now();
    const answer = await answerTo(hold.servers, hold.key, command, until);
    this.busy.delete(hold);
    take(sent, answer);
    if (this.holds.has(hold)) this.wakeAt(this.timeOf(hold));
  }
}
