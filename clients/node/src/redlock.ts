// A class in the manner of the package `redlock`, in terms of `Locks` and `Quorum`. REDLOCK.md has the differences.

import {EventEmitter} from "node:events";
import type {Client} from "./base.js";
import {LostError, NotHeldError, QuorumMissedError, TimedOutError} from "./errors.js";
import type {Hold} from "./hold.js";
import {Locks} from "./locks.js";
import {Strategy} from "./polling.js";
import {Quorum, type QuorumHold} from "./quorum.js";
import type {Acquirer} from "./request.js";

const DEFAULTS = {
  /** Of a quorum: which part of the duration the clocks may drift. */
  driftFactor: 0.01,
  /** How often it asks again; -1: for ever. With one client, which waits in the server's queue, how long it waits. */
  retryCount: 10,
  /** The ms between two attempts. */
  retryDelay: 200,
  /** So many ms, by chance, are added to or taken from each delay. */
  retryJitter: 100,
  /** Not used: the watchdog extends after a third of the duration. */
  automaticExtensionThreshold: 500,
};

export type Settings = Readonly<typeof DEFAULTS>;

/** Another has one of the resources. */
export class ResourceLockedError extends Error {
  override name = "ResourceLockedError";
}

/** The operation did not succeed. Its cause is the error of the library. */
export class ExecutionError extends Error {
  override name = "ExecutionError";
  /** Always empty: the server keeps the queue, so there are no attempts to tell of. */
  readonly attempts: readonly never[] = [];
}

export type RedlockAbortSignal = AbortSignal & {error?: Error};

/** What was locked. */
export class Lock {
  /** Always empty. */
  readonly attempts: readonly never[] = [];
  /** Until when the lock is certain, in ms since 1970. */
  expiration: number;

  constructor(readonly redlock: Redlock, readonly resources: readonly string[], readonly hold: Hold | QuorumHold) {
    this.expiration = Date.now() + hold.timeLeftMs;
  }

  /** The owner's identity. */
  get value(): string { return this.hold.token; }

  release(): Promise<void> { return this.redlock.release(this); }

  extend(duration: number): Promise<Lock> { return this.redlock.extend(this, duration); }
}

/** Locks resources for writing. With one client it waits in the server's queue, with several for a quorum. */
export class Redlock extends EventEmitter {
  readonly settings: Settings;
  private readonly locks: Acquirer<Hold | QuorumHold>;
  private readonly isQuorum: boolean;

  constructor(clients: Iterable<Client>, settings: Partial<Settings> = {}) {
    super();
    this.on("error", () => {}); // without a listener Node would end the program
    const all = [...new Set(clients)];
    if (all.length === 0) throw new Error("Redlock must be instantiated with at least one redis client.");
    this.settings = {...DEFAULTS, ...settings};
    const hooks = {
      renewalFailed: (_: string, error: unknown) => void this.emit("error", error),
      releaseFailed: (_: string, error: unknown) => void this.emit("error", error),
      warning: () => {},
    };
    const {driftFactor, retryDelay, retryJitter} = this.settings;
    this.isQuorum = all.length > 1;
    // The limit of the attempts is the wait.
    const poll = Strategy.exponential(Math.max(1, retryDelay + retryJitter), Math.max(1, retryDelay + retryJitter));
    this.locks = this.isQuorum ? new Quorum(all, {driftFactor, poll, hooks}) : new Locks(all[0]!, {hooks});
  }

  /** Ends the connections of the library. Those of the clients stay. */
  async quit(): Promise<void> { await this.locks.close(); }

  /** The lock ends after `duration` ms unless it is extended. */
  acquire(resources: readonly string[], duration: number, settings?: Partial<Settings>): Promise<Lock> {
    return this.acquired(resources, duration, settings, false);
  }

  /** `ExecutionError` when it had ended before, or when the server did not answer. */
  async release(lock: Lock): Promise<void> {
    lock.expiration = 0;
    const released = await this.told(lock.hold.release());
    if (!released) throw this.failed(new NotHeldError("the lock had ended before its release"));
  }

  /** Another `Lock`; the one that there was is not valid any more. */
  async extend(lock: Lock, duration: number): Promise<Lock> {
    whole(duration);
    if (lock.expiration < Date.now()) throw new ExecutionError("Cannot extend an already-expired lock.");
    await this.told(lock.hold.extend(duration));
    lock.expiration = 0;
    return new Lock(this, lock.resources, lock.hold);
  }

  /** Does `routine` under the lock, which is extended meanwhile, and releases. The signal is aborted when it is lost. */
  async using<T>(
    resources: readonly string[],
    duration: number,
    settingsOrRoutine: Partial<Settings> | ((signal: RedlockAbortSignal) => Promise<T>),
    optionalRoutine?: (signal: RedlockAbortSignal) => Promise<T>,
  ): Promise<T> {
    const routine = optionalRoutine ?? settingsOrRoutine;
    if (typeof routine !== "function") throw new TypeError("routine is not a function");
    const settings = typeof settingsOrRoutine === "function" ? {} : settingsOrRoutine;
    const {hold} = await this.acquired(resources, duration, settings, true);
    const signal: RedlockAbortSignal = hold.signal;
    signal.addEventListener("abort", () => (signal.error = signal.reason as Error), {once: true});
    try {
      return await routine(signal);
    } finally {
      await hold.release().catch(() => {}); // it was told as an event
    }
  }

  private async acquired(resources: readonly string[], duration: number, settings: Partial<Settings> | undefined, renew: boolean): Promise<Lock> {
    whole(duration);
    const {retryCount, retryDelay, retryJitter} = {...this.settings, ...settings};
    const waitMs = retryCount < 0 ? Infinity : retryCount * (retryDelay + (this.isQuorum ? retryJitter : 0));
    const asked = this.locks.write(resources, {ttlMs: duration, waitMs, renew});
    return new Lock(this, resources, await this.told(asked.acquire()));
  }

  /** What the library gives. Its errors become those of `redlock`. */
  private async told<T>(given: Promise<T>): Promise<T> {
    try {
      return await given;
    } catch (error) {
      throw this.failed(error);
    }
  }

  private failed(error: unknown): unknown {
    const isLocked = error instanceof TimedOutError && error.answered;
    this.emit("error", isLocked ? new ResourceLockedError(error.message, {cause: error}) : error);
    const isExpected = [TimedOutError, QuorumMissedError, LostError, NotHeldError].some((kind) => error instanceof kind);
    return isExpected ? new ExecutionError((error as Error).message, {cause: error}) : error;
  }
}

export default Redlock;

function whole(duration: number): void {
  if (!Number.isInteger(duration)) throw new Error("Duration must be an integer value in milliseconds.");
}
