// SPDX-License-Identifier: MIT OR Apache-2.0

// Tells the program and its log what happens. It decides nothing.

import {types} from "node:util";
import {monotonic} from "./clock.js";
import {duration, textOf, type LostError} from "./errors.js";

/** How an acquisition ended: one of these, or the name of an error, such as "Deadlock". */
export type Outcome = "granted" | "refused" | "timed out" | "cancelled" | (string & {});

/**
 * Functions that the library calls, with the label of the request and in the asynchronous context of its call. They must
 * not block. What one of them throws, or rejects with, is a warning and changes nothing.
 */
export interface Hooks {
  /** When an acquisition ended, with how long it took in ms. `refused` is a `tryAcquire` that found the lock held. */
  waited?(label: string, ms: number, outcome: Outcome): void;
  /** When a hold ended, released or lost, with the time since the grant in ms. */
  held?(label: string, ms: number): void;
  lost?(label: string, loss: LostError): void;
  /** When a renewal got an error or no reply. It is sent again until the hold expires. */
  renewalFailed?(label: string, error: unknown): void;
  /** When a release got an error or no reply in time. The lock ends by its ttl. */
  releaseFailed?(label: string, error: unknown): void;
  /** What an operator must know. Without this hook it goes to `process.emitWarning`. */
  warning?(text: string): void;
}

/** For how long no reply comes before that is a warning, in ms: a connection may be lost at any time. */
const OUTAGE_MS = 1_000;

/** Calls the hooks of one Locks. @internal */
export class Reporter {
  /** Since when no reply comes; Infinity: that was a warning. */
  #failingSince: number | undefined;

  constructor(readonly hooks: Hooks) {}

  tell<Name extends keyof Hooks>(name: Name, ...what: Parameters<NonNullable<Hooks[Name]>>): void {
    const failed = (error: unknown): void => process.emitWarning(`the hook ${name} failed: ${textOf(error)}`, "SlockWarning");
    try {
      const done = (this.hooks[name] as ((...what: unknown[]) => unknown) | undefined)?.call(this.hooks, ...what);
      if (types.isPromise(done)) done.catch(failed);
    } catch (error) {
      failed(error);
    }
  }

  warn(text: string): void {
    if (this.hooks.warning) this.tell("warning", text);
    else process.emitWarning(text, "SlockWarning");
  }

  /** Notes whether the server replied. */
  reached(error?: unknown): void {
    if (error === undefined) {
      this.#failingSince = undefined;
      return;
    }
    const ms = monotonic() - (this.#failingSince ??= monotonic());
    if (ms < OUTAGE_MS) return;
    this.#failingSince = Infinity;
    this.warn(`no reply from the server for ${duration(ms)}: ${textOf(error)}`);
  }
}
