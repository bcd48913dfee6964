// SPDX-License-Identifier: MIT OR Apache-2.0

// How a call ends before its time: its signal is aborted, or its Locks is closed.

import {MOST_TIMER_MS} from "./clock.js";
import {ClosedError} from "./errors.js";

/** What a wait rejects with when its call is stopped. `Stop.problem` says why. */
export const LEFT = Symbol("left");

/** The end of one call from outside. The call waits for one thing at a time. */
export class Stop {
  /** What the call rejects with; undefined: it goes on. */
  problem: {readonly reason: unknown} | undefined;
  #leave: (() => void) | undefined;
  readonly #abort = (): void => this.#end(this.signal!.reason);

  /** `all` has those of one Locks while they go on. */
  constructor(readonly all: Set<Stop>, readonly signal?: AbortSignal | undefined) {
    all.add(this);
    if (signal?.aborted) this.#abort();
    else signal?.addEventListener("abort", this.#abort, {once: true});
  }

  close(): void { this.#end(new ClosedError()); }

  /** The call is over. */
  done(): void {
    this.all.delete(this);
    this.signal?.removeEventListener("abort", this.#abort);
  }

  /** The promise, undefined after so many ms (without a limit if no timer can have so many), or a rejection with `LEFT` as soon as the call is stopped. */
  wait<T>(promise: Promise<T>, ms = Infinity): Promise<T | undefined> {
    return new Promise<T | undefined>((resolve, reject) => {
      const timer = ms <= MOST_TIMER_MS ? setTimeout(resolve, Math.max(0, ms), undefined) : undefined;
      const end = <V>(settle: (value: V) => void) => (value: V): void => {
        clearTimeout(timer);
        settle(value);
      };
      this.#leave = () => end(reject)(LEFT);
      if (this.problem) this.#leave();
      promise.then(end(resolve), end(reject));
    });
  }

  /** Waits for so many ms, or until the call is stopped. */
  async sleep(ms: number): Promise<void> { await this.wait(new Promise<void>(() => {}), ms).catch(() => {}); }

  #end(reason: unknown): void {
    this.problem ??= {reason};
    this.#leave?.();
  }
}
