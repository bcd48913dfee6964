// A class in the manner of redlock 5, over `Locks`. REDLOCK.md has the differences.

import {EventEmitter} from "node:events";
import {LostError} from "./errors.js";
import type {Hold} from "./hold.js";
import type {Client} from "./index.js";
import {Attempts, DEFAULTS, isLocked, quit, type Settings as Retries} from "./redlock_attempts.js";

export interface Settings extends Retries {
  /** Not used: the watchdog extends after a third of the duration. */
  readonly automaticExtensionThreshold: number;
}

export type RedlockAbortSignal = AbortSignal & {error?: Error};

type Routine<T> = (signal: RedlockAbortSignal) => Promise<T>;

/** Others have one of the resources. */
export class ResourceLockedError extends Error { override readonly name = "ResourceLockedError"; }

/** The operation did not succeed. The cause is the error of the library. */
export class ExecutionError extends Error {
  override readonly name = "ExecutionError";
  /** Always empty: the cause says what the clients replied. */
  readonly attempts: readonly never[] = [];
}

/** What was locked. */
export class Lock {
  /** Always empty. */
  readonly attempts: readonly never[] = [];
  /** Until when the lock is certain, in ms since 1970. */
  expiration: number;

  constructor(readonly redlock: Redlock, readonly resources: string[], readonly value: string, readonly hold: Hold) {
    this.expiration = Date.now() + hold.remainingMs;
  }

  release(): Promise<{attempts: readonly never[]}> { return this.redlock.release(this); }

  extend(duration: number): Promise<Lock> { return this.redlock.extend(this, duration); }
}

export class Redlock extends EventEmitter {
  readonly clients: Set<Client>;
  readonly settings: Settings;
  readonly #attempts: Attempts;

  constructor(clients: Iterable<Client>, settings: Partial<Settings> = {}) {
    super();
    this.on("error", () => {}); // without a listener Node would end the program
    this.clients = new Set(clients);
    if (this.clients.size === 0) throw new Error("Redlock must be instantiated with at least one redis client.");
    this.settings = {...DEFAULTS, automaticExtensionThreshold: 500, ...settings};
    this.#attempts = new Attempts([...this.clients], this.settings, (error) => this.emit("error", error));
  }

  /** Quits the clients, after the connections of the library. */
  async quit(): Promise<void> {
    await this.#attempts.locks.close();
    await quit(this.clients);
  }

  acquire(resources: string[], duration: number, settings?: Partial<Settings>): Promise<Lock> {
    return this.#acquire(resources, duration, settings, false);
  }

  async release(lock: Lock, _?: Partial<Settings>): Promise<{attempts: readonly never[]}> {
    lock.expiration = 0;
    await this.#told(lock.hold.release());
    return {attempts: []};
  }

  /** Another `Lock` in place of the one that there is. It never shortens. */
  async extend(existing: Lock, duration: number, _?: Partial<Settings>): Promise<Lock> {
    whole(duration);
    if (existing.expiration < Date.now()) throw new ExecutionError("Cannot extend an already-expired lock.");
    await this.#told(existing.hold.extend(duration));
    existing.expiration = 0;
    return new Lock(this, existing.resources, existing.value, existing.hold);
  }

  /** Does the routine under the lock, which is extended meanwhile. Its signal is aborted when the lock is lost. */
  async using<T>(
    resources: string[], duration: number, settingsOrRoutine: Partial<Settings> | Routine<T>, optionalRoutine?: Routine<T>,
  ): Promise<T> {
    const routine = optionalRoutine ?? settingsOrRoutine;
    if (typeof routine !== "function") throw new Error("INVARIANT: routine is not a function.");
    const lock = await this.#acquire(resources, duration, typeof settingsOrRoutine === "function" ? {} : settingsOrRoutine, true);
    const signal: RedlockAbortSignal = lock.hold.signal;
    signal.addEventListener("abort", () => (signal.error = this.#failed(signal.reason) as Error), {once: true});
    const done = await (async () => routine(signal))().then((result) => ({result}), (error: unknown) => ({error}));
    const problem = await lock.release().then(() => undefined, (error: Error) => error);
    if ("error" in done) throw done.error;
    if (problem?.cause instanceof LostError) throw signal.error ?? problem; // else the work is done, and the lock ends by its duration
    return done.result;
  }

  async #acquire(resources: string[], duration: number, settings: Partial<Settings> | undefined, renew: boolean): Promise<Lock> {
    whole(duration);
    const hold = await this.#told(this.#attempts.acquire(resources, duration, {...this.settings, ...settings}, renew));
    return new Lock(this, resources, hold.token, hold);
  }

  #told<T>(given: Promise<T>): Promise<T> { return given.catch((error: unknown) => { throw this.#failed(error); }); }

  #failed(cause: unknown): unknown {
    if (cause instanceof TypeError) return cause;
    const text = "The operation was unable to achieve a quorum during its retry window.";
    this.emit("error", isLocked(cause) ? new ResourceLockedError((cause as Error).message, {cause}) : cause);
    return new ExecutionError(text, {cause});
  }
}

export default Redlock;

function whole(duration: number): void {
  if (!Number.isInteger(duration)) throw new Error("Duration must be an integer value in milliseconds.");
}
