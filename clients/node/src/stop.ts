// How a call ends before its time: its signal is aborted, or its Locks is closed.

import {ClosedError} from "./errors.js";

/** Rejects what a call waits for when it is stopped. `Stop.problem` says why. */
export const LEFT = Symbol("left");

/** The end of one call from outside. The call waits for one thing at a time. */
export class Stop {
  /** What the call rejects with; undefined: it goes on. */
  problem: {readonly reason: unknown} | undefined;
  /** Whether the program's signal stopped it. */
  isCancelled = false;
  #leave: (() => void) | undefined;
  readonly #signal: AbortSignal | undefined;
  readonly #all: Set<Stop>;
  readonly #abort = (): void => {
    this.isCancelled = true;
    this.#end(this.#signal!.reason);
  };

  /** `all` has those of one Locks while they go on. */
  constructor(all: Set<Stop>, signal: AbortSignal | undefined) {
    this.#all = all.add(this);
    this.#signal = signal;
    if (signal?.aborted) this.#abort();
    else signal?.addEventListener("abort", this.#abort, {once: true});
  }

  close(): void { this.#end(new ClosedError()); }

  /** The call is over. */
  done(): void {
    this.#all.delete(this);
    this.#signal?.removeEventListener("abort", this.#abort);
  }

  /** The promise, or a rejection with `LEFT` as soon as the call is stopped. */
  wait<T>(promise: Promise<T>): Promise<T> {
    if (this.problem) {
      promise.catch(() => {});
      return Promise.reject(LEFT);
    }
    return new Promise((resolve, reject) => {
      this.#leave = () => reject(LEFT);
      promise.then(resolve, reject);
    });
  }

  /** Waits for so many ms, or until the call is stopped. */
  async sleep(ms: number): Promise<void> {
    if (this.problem) return;
    await new Promise<void>((resolve) => {
      const timer = setTimeout(resolve, ms);
      this.#leave = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  }

  #end(reason: unknown): void {
    this.problem ??= {reason};
    this.#leave?.();
  }
}
