// A class in the manner of redlock 5, over `Locks`. REDLOCK.md has the differences.

import {EventEmitter} from "node:events";
import type {Client} from "./client.js";
import {LostError} from "./errors.js";
import type {Hold} from "./hold.js";
import {Attempts, type Retries} from "./redlock_attempts.js";

export interface Settings extends Retries {
  /** Of a quorum: which part of the duration the clocks may drift. */
  readonly driftFactor: number;
  /** Not used: the watchdog extends after a third of the duration. */
  readonly automaticExtensionThreshold: number;
}

export interface ExecutionStats {
  readonly membershipSize: number;
  readonly quorumSize: number;
  readonly votesFor: Set<Client>;
  readonly votesAgainst: Map<Client, Error>;
}

export interface ExecutionResult { readonly attempts: readonly Promise<ExecutionStats>[] }

export type RedlockAbortSignal = AbortSignal & {error?: Error};

const DEFAULTS: Settings = {driftFactor: 0.01, retryCount: 10, retryDelay: 200, retryJitter: 100, automaticExtensionThreshold: 500};
const NO_QUORUM = "The operation was unable to achieve a quorum during its retry window.";

/** Others have one of the resources. */
export class ResourceLockedError extends Error { override readonly name = "ResourceLockedError"; }

/** The operation did not succeed. `attempts` has what the clients replied last; the cause is the error of the library. */
export class ExecutionError extends Error {
  override readonly name = "ExecutionError";

  constructor(message: string, readonly attempts: ExecutionResult["attempts"], options?: ErrorOptions) { super(message, options); }
}

/** What was locked. */
export class Lock {
  /** Until when the lock is certain, in ms since 1970. */
  expiration: number;

  constructor(
    readonly redlock: Redlock, readonly resources: string[], readonly value: string, readonly attempts: ExecutionResult["attempts"],
    readonly hold: Hold,
  ) { this.expiration = Date.now() + hold.remainingMs; }

  release(): Promise<ExecutionResult> { return this.redlock.release(this); }

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
    this.settings = {...DEFAULTS, ...settings};
    this.#attempts = new Attempts([...this.clients], this.settings.driftFactor, (error) => this.emit("error", error));
  }

  /** Quits the clients, after the connections of the library. */
  async quit(): Promise<void> {
    await this.#attempts.locks.close();
    await Promise.all([...this.clients].map((client) => (client as {quit?(): unknown}).quit?.()));
  }

  async acquire(resources: string[], duration: number, settings?: Partial<Settings>): Promise<Lock> {
    return this.#acquire(resources, duration, settings, false);
  }

  async release(lock: Lock, _?: Partial<Settings>): Promise<ExecutionResult> {
    lock.expiration = 0;
    return this.#told(lock.resources, lock.hold.release().then(() => this.#result(lock.resources)));
  }

  /** Another `Lock` in place of the one that there is. It never shortens. */
  async extend(existing: Lock, duration: number, _?: Partial<Settings>): Promise<Lock> {
    whole(duration);
    if (existing.expiration < Date.now()) throw new ExecutionError("Cannot extend an already-expired lock.", []);
    const {resources, value, hold} = existing;
    await this.#told(resources, hold.extend(duration));
    existing.expiration = 0;
    return new Lock(this, resources, value, this.#result(resources).attempts, hold);
  }

  /** Does the routine under the lock, which is extended meanwhile. Its signal is aborted when the lock is lost. */
  async using<T>(
    resources: string[], duration: number, settingsOrRoutine: Partial<Settings> | ((signal: RedlockAbortSignal) => Promise<T>),
    optionalRoutine?: (signal: RedlockAbortSignal) => Promise<T>,
  ): Promise<T> {
    const routine = optionalRoutine ?? settingsOrRoutine;
    if (typeof routine !== "function") throw new Error("INVARIANT: routine is not a function.");
    const lock = await this.#acquire(resources, duration, typeof settingsOrRoutine === "function" ? {} : settingsOrRoutine, true);
    const signal: RedlockAbortSignal = lock.hold.signal;
    signal.addEventListener("abort", () => (signal.error = this.#failed(resources, signal.reason)), {once: true});
    const done = await (async () => routine(signal))().then((result) => ({result}), (error: unknown) => ({error}));
    const problem = await lock.release().then(() => undefined, (error: Error) => error);
    if ("error" in done) throw done.error;
    if (problem?.cause instanceof LostError) throw signal.error ?? problem; // else the work is done, and the lock ends by its duration
    return done.result;
  }

  async #acquire(resources: string[], duration: number, settings: Partial<Settings> | undefined, renew: boolean): Promise<Lock> {
    whole(duration);
    const hold = await this.#told(resources, this.#attempts.acquire(resources, duration, {...this.settings, ...settings}, renew));
    return new Lock(this, resources, hold.token, this.#result(resources).attempts, hold);
  }

  async #told<T>(resources: string[], given: Promise<T>): Promise<T> {
    try {
      return await given;
    } catch (error) {
      throw error instanceof TypeError ? error : this.#failed(resources, error);
    }
  }

  #failed(resources: string[], cause: unknown): ExecutionError {
    const {attempts} = this.#result(resources, cause);
    return new ExecutionError(NO_QUORUM, attempts, {cause});
  }

  /** What the clients replied. What was against it is an event too. */
  #result(resources: string[], error?: unknown): ExecutionResult {
    const locked = (): Error => new ResourceLockedError(`The operation was applied to: 0 of the ${resources.length} requested resources.`);
    const votes = this.#attempts.votes(error, locked);
    const votesAgainst = new Map(votes.filter(({problem}) => problem).map(({client, problem}) => [client, problem as Error]));
    for (const problem of votesAgainst.values()) this.emit("error", problem);
    const votesFor = new Set(votes.filter(({problem}) => !problem).map(({client}) => client));
    const stats = {membershipSize: votes.length, quorumSize: Math.floor(votes.length / 2) + 1, votesFor, votesAgainst};
    return {attempts: [Promise.resolve(stats)]};
  }
}

export default Redlock;

function whole(duration: number): void {
  if (!Number.isInteger(duration)) throw new Error("Duration must be an integer value in milliseconds.");
}
