// SPDX-License-Identifier: MIT OR Apache-2.0

// What is wanted: keys, a mode and options.

import {monotonic} from "./clock.js";
import {ClosedError, LostError, NotHeldError, SlockError, TimedOutError} from "./errors.js";
import {HeldLock, type Hold, type Keeper, type LocksState} from "./hold.js";
import {check, given, type Mode, type Settings} from "./options.js";
import type {Owner} from "./protocol.js";
import type {Answer} from "./server.js";
import {Stop} from "./stop.js";

/** Ends a wait, or the work of `run`. The call rejects with the signal's reason, and leaves neither a hold nor a request. */
export interface Cancellation { readonly signal?: AbortSignal | undefined }

/** Keys, a mode and options. It may be used many times, also at once. */
export interface Request {
  /**
   * Waits until the lock is granted. Rejects with `TimedOutError` after `waitMs`, and with `NoAnswerError` if no reply comes
   * from the server: after `retryForMs` if there never was one, else after `retryWaitForMs`. A quorum polls, and rejects with
   * `QuorumMissedError` if neither a majority of nodes granted nor a majority refused.
   */
  acquire(options?: Cancellation): Promise<Hold>;
  /** Sends the request once. Undefined means that others hold the lock or wait for it. */
  tryAcquire(options?: Cancellation): Promise<Hold | undefined>;
  /**
   * Acquires, runs the work, and releases. The signal of the work is aborted when the hold is lost, and when that of the call
   * is. The call waits for the work to end. If the hold was lost it rejects with `LostError`, whose cause is the work's own
   * error if there is one. A release that fails is no error of finished work.
   */
  run<T>(work: (signal: AbortSignal, hold: Hold) => T | Promise<T>, options?: Cancellation): Promise<T>;
  /** Makes a hold from an owner token that another process took and detached. Rejects with `NotHeldError` if it does not hold all. */
  adopt(token: string): Promise<Hold>;
}

/** What a backend gives for a request. @internal */
export interface Granted {
  readonly keeper: Keeper;
  readonly owner: Owner;
  readonly answer: Answer;
}

/** What carries requests out: a server, or a quorum. @internal */
export interface Backend {
  /** The part of a ttl that counts for the validity. */
  readonly counted: (ttlMs: number) => number;
  /** Undefined: others have the lock, and the request is sent only once. */
  acquire(request: LockRequest, stop: Stop, isTry: boolean): Promise<Granted | undefined>;
  /** Undefined: the token does not hold the keys in the mode. */
  adopt(request: LockRequest): Promise<Granted | undefined>;
  /** On how many keys, or on how many nodes, it released what the token holds. */
  release(request: LockRequest): Promise<number>;
}

/** @internal */
export class LockRequest implements Request {
  constructor(
    readonly locks: LocksState, readonly backend: Backend, readonly keys: readonly string[], readonly mode: Mode,
    readonly settings: Settings,
  ) {
    check(keys, mode, settings, backend.counted);
  }

  async acquire(options?: Cancellation): Promise<Hold> { return (await this.#acquire(false, signalOf(options)))!; }

  async tryAcquire(options?: Cancellation): Promise<Hold | undefined> { return this.#acquire(true, signalOf(options)); }

  async run<T>(work: (signal: AbortSignal, hold: Hold) => T | Promise<T>, options?: Cancellation): Promise<T> {
    const signal = signalOf(options);
    const hold = (await this.#acquire(false, signal))!;
    const ends = signal ? AbortSignal.any([hold.signal, signal]) : hold.signal;
    const done = await (async () => work(ends, hold))().then((result) => ({result}), (error: unknown) => ({error}));
    const loss = hold.wasLeft ? undefined : await hold.release().catch((error: unknown) => error);
    const isAbort = "error" in done && ends.aborted && (done.error === ends.reason || (done.error as Error | undefined)?.name === "AbortError");
    if (loss instanceof LostError) {
      const isLoss = "error" in done && done.error instanceof LostError && done.error.keys === loss.keys; // of `check`
      throw "error" in done && !isAbort && !isLoss ? new LostError(loss.keys, loss.reason, done.error) : loss;
    }
    if ("error" in done) throw isAbort ? ends.reason : done.error;
    return done.result;
  }

  async adopt(token: string): Promise<Hold> {
    const request = new LockRequest(this.locks, this.backend, this.keys, this.mode, {...this.settings, token});
    request.check();
    const granted = await this.backend.adopt(request);
    if (!granted) throw new NotHeldError(`the owner token does not hold the lock for ${this.mode}`, this.keys);
    return request.#hold(granted);
  }

  /** Throws what is wrong, before anything is sent. */
  check(): void { if (this.locks.isClosed) throw new ClosedError(); }

  async #acquire(isTry: boolean, signal: AbortSignal | undefined): Promise<HeldLock | undefined> {
    this.check();
    const {reporter, running} = this.locks;
    const label = this.settings.label ?? this.keys[0]!;
    const began = monotonic();
    const stop = new Stop(running, signal);
    let outcome = "refused";
    try {
      const granted = await this.backend.acquire(this, stop, isTry);
      if (granted) outcome = "granted";
      return granted && this.#hold(granted);
    } catch (error) {
      outcome = outcomeOf(error, signal);
      throw error;
    } finally {
      stop.done();
      reporter.tell("waited", label, monotonic() - began, outcome);
    }
  }

  #hold({keeper, owner, answer}: Granted): HeldLock { return new HeldLock(this.locks, keeper, owner, this.settings, this.mode, answer); }
}

const signalOf = (options: Cancellation = {}): AbortSignal | undefined => given(options, {signal: true}).signal;

function outcomeOf(error: unknown, signal: AbortSignal | undefined): string {
  if (error instanceof TimedOutError) return "timed out";
  if (error instanceof SlockError) return error.name.replace(/Error$/, "");
  return signal?.aborted && error === signal.reason ? "cancelled" : "Other";
}
