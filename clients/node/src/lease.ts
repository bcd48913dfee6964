// What is known of a hold at one server: its fence and mode, and until when it is certain. Pure: it does no input and
// output, and reads no clock. Times are milliseconds.

import type {Mode} from "./commands.js";

// An answer that took longer than this part of the ttl says too little about when the grant was made.
const PROMPT_PART = 1 / 3;

/** A renewal is due after this part of the ttl, and after an error again after that part. */
export const RENEW_AFTER = 1 / 3;
export const TRY_AGAIN_AFTER = 1 / 10;

/** How much less than its ttl a hold counts: a part of the ttl, and some ms. */
export interface Drift {
  readonly part: number;
  readonly ms: number;
}

/**
 * Of one server: a clock that is being slewed runs up to 500 ppm fast, and there are two clocks. The server counts
 * deadlines in whole milliseconds.
 */
export const SERVER_DRIFT: Drift = {part: 0.001, ms: 1};

/** The end of a hold whose deadline was set by a request sent at `sent`. */
export function validUntil(drift: Drift, sent: number, ttlMs: number): number {
  return sent + ttlMs * (1 - drift.part) - drift.ms;
}

/** How many nodes of so many are more than half. */
export function majority(nodes: number): number { return Math.floor(nodes / 2) + 1; }

/** Until when a majority holds, where each node holds until one of `ends`. */
export function majorityUntil(ends: readonly number[]): number {
  return ends.toSorted((one, other) => other - one)[majority(ends.length) - 1]!;
}

/** Whether a hold may be counted from the moment at which its request was sent. */
export function isPrompt(sent: number, received: number, ttlMs: number): boolean {
  return received - sent <= ttlMs * PROMPT_PART;
}

/** What an answer to a renewal means. `nothing`: it is about an earlier fence, or may be, and is ignored. */
export type Told = "held" | "gone" | "nothing";

/** The knowledge of one hold, or of one that a quorum tries to get at a node. */
export class Lease {
  /** Whether a command that gives a hold, or changes its mode, had no answer: it may be carried out late. */
  inDoubt = false;
  /** The last one. Without one there was no hold yet. */
  fence: number | undefined;
  /** Whether the token holds it, as far as is known. */
  isHeld = false;
  validUntil = -Infinity;
  /** Whether a change of mode is open, so that the fence may be another one by now. */
  changing = false;

  constructor(public mode: Mode, private readonly drift: Drift) {}

  /** A command sent at `sent` gave the hold, or changed its mode. */
  granted(fence: number, mode: Mode, sent: number, ttlMs: number): void {
    this.fence = fence;
    this.mode = mode;
    this.isHeld = true;
    this.countFrom(sent, ttlMs);
  }

  /** The answer to an extension of the hold with this fence. */
  extended(fence: number, sent: number, ttlMs: number, answer: number): Told {
    if (fence !== this.fence || !this.isHeld) return "nothing";
    if (answer) {
      this.countFrom(sent, ttlMs);
      return "held";
    }
    if (this.changing) return "nothing";
    this.isHeld = false;
    this.validUntil = -Infinity;
    return "gone";
  }

  /** The deadline is at least that of a command sent at `sent`: nothing lowers a deadline. */
  private countFrom(sent: number, ttlMs: number): void {
    this.validUntil = Math.max(this.validUntil, validUntil(this.drift, sent, ttlMs));
  }
}
