// What is wanted: keys, a mode and options.

import type {Grant} from "./acquisition.js";
import {monotonic} from "./clock.js";
import {ClosedError, LostError, NotHeldError, SlockError, TimedOutError} from "./errors.js";
import type {Hold, Keeper, Keeping} from "./hold.js";
import {HeldLock} from "./mode.js";
import {check, requestSettings, type Mode, type ReadOptions, type RequestOptions, type RequestSettings} from "./options.js";
import type {Owner} from "./protocol.js";
import {Stop} from "./stop.js";

/** Ends a call. It then rejects with the reason of the signal, and leaves neither a hold nor a place in the queue. */
export interface Cancellation { readonly signal?: AbortSignal | undefined }

/** Keys, a mode and options. It may be used many times, also at once. */
export interface Request<Options extends RequestOptions = RequestOptions> {
  /** The request with further options. */
  with(options: Options): Request<Options>;
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
   * is. The call waits for the work to end. If the hold was lost it rejects with `LostError`, whose cause is the work's error
   * if there is one. A release that fails is no error of finished work.
   */
  run<T>(work: (signal: AbortSignal, hold: Hold) => T | Promise<T>, options?: Cancellation): Promise<T>;
  /** Makes a hold from an owner token that another process took and detached. Rejects with `NotHeldError` if it does not hold all. */
  adopt(token: string): Promise<Hold>;
}

/** What a backend gives for a request. */
export interface Granted {
  readonly keeper: Keeper;
  readonly owner: Owner;
  readonly grant: Grant;
}

/** What carries requests out: a server, or a quorum. */
export interface Backend {
  /** Undefined: others have the lock, and the request is sent only once. */
  acquire(request: LockRequest, stop: Stop, isTry: boolean): Promise<Granted | undefined>;
  adopt(request: LockRequest): Promise<Granted>;
  /** On how many keys, or on how many nodes, it released what the token holds. */
  release(request: LockRequest): Promise<number>;
  /** Throws what is wrong with a request. */
  check?(request: LockRequest): void;
  /** The part of a ttl that counts for the validity. */
  counted?(ttlMs: number): number;
}

/** The Locks of a request. */
export interface Requesting extends Keeping {
  readonly backend: Backend;
  watch(hold: HeldLock): void;
}

export class LockRequest implements Request<ReadOptions> {
  constructor(
    readonly locks: Requesting, readonly keys: readonly string[], readonly mode: Mode, readonly settings: RequestSettings,
  ) {}

  with(options: ReadOptions): LockRequest {
    return new LockRequest(this.locks, this.keys, this.mode, requestSettings(this.settings, options));
  }

  async acquire({signal}: Cancellation = {}): Promise<Hold> { return (await this.#acquire(false, signal))!; }

  tryAcquire({signal}: Cancellation = {}): Promise<Hold | undefined> { return this.#acquire(true, signal); }

  async run<T>(work: (signal: AbortSignal, hold: Hold) => T | Promise<T>, {signal}: Cancellation = {}): Promise<T> {
    const hold = (await this.#acquire(false, signal))!;
    const ends = signal ? AbortSignal.any([hold.signal, signal]) : hold.signal;
    let failed: {error: unknown} | undefined;
    let result: T;
    try {
      result = await work(ends, hold);
    } catch (error) {
      failed = {error};
    }
    const loss = hold.wasLeft ? undefined : await hold.release().then(() => undefined, (error: unknown) => error);
    if (loss instanceof LostError) {
      // What says only that the signal was aborted adds nothing.
      const isOwn = failed && failed.error !== ends.reason && (failed.error as Error | undefined)?.name !== "AbortError";
      throw isOwn ? new LostError(loss.keys, loss.reason, failed!.error) : loss;
    }
    if (failed) throw failed.error;
    return result!;
  }

  async adopt(token: string): Promise<Hold> {
    const request = this.with({token});
    request.check();
    return request.#hold(await this.locks.backend.adopt(request));
  }

  /** Throws what is wrong, before anything is sent. */
  check(): void {
    if (this.locks.isClosed) throw new ClosedError();
    check(this.keys, this.mode, this.settings);
    this.locks.backend.check?.(this);
  }

  async #acquire(isTry: boolean, signal: AbortSignal | undefined): Promise<HeldLock | undefined> {
    this.check();
    const {locks, settings} = this;
    const label = settings.label ?? this.keys[0]!;
    const began = monotonic();
    const stop = new Stop(locks.running, signal);
    let granted: Granted | undefined;
    try {
      granted = await locks.backend.acquire(this, stop, isTry);
    } catch (error) {
      locks.reporter.tell("waited", label, monotonic() - began, outcomeOf(error, stop));
      throw error;
    } finally {
      stop.done();
    }
    locks.reporter.tell("waited", label, monotonic() - began, granted ? "granted" : "refused");
    return granted && this.#hold(granted);
  }

  #hold({keeper, owner, grant}: Granted): HeldLock {
    const hold = new HeldLock(this.locks, keeper, owner, this.settings, this.mode, grant);
    this.locks.watch(hold);
    return hold;
  }
}

/** The error of a token that does not hold the keys. */
export const notHeld = ({keys, mode}: {readonly keys: readonly string[]; readonly mode: Mode}): NotHeldError =>
  new NotHeldError(`the owner token does not hold the lock for ${mode}`, keys);

function outcomeOf(error: unknown, stop: Stop): string {
  if (error instanceof TimedOutError) return "timed out";
  if (error instanceof SlockError) return error.name.replace(/Error$/, "");
  return stop.isCancelled ? "cancelled" : "Other";
}
