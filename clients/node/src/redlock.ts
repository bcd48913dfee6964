// SPDX-License-Identifier: MIT OR Apache-2.0

// A class in the manner of redlock 5, over `Locks`. REDLOCK.md has the differences.

import {EventEmitter} from "node:events";
import {setTimeout as sleep} from "node:timers/promises";
import {MOST_TIMER_MS, monotonic} from "./clock.js";
import {LostError, NoAnswerError, TimedOutError, isProgramming, isWrongType} from "./errors.js";
import type {Hold} from "./hold.js";
import {Locks, Quorum, type Client} from "./index.js";

export interface Settings {
  /** Of several clients: which part of the duration the clocks may drift. */
  readonly driftFactor: number;
  /** How often it tries again; -1: for ever. With one client, which waits in the server's queue: how many delays it waits. */
  readonly retryCount: number;
  /** The ms between two attempts. */
  readonly retryDelay: number;
  /** So many ms, by chance, are added to or taken from each delay. */
  readonly retryJitter: number;
  /** Not used: the watchdog extends after a third of the duration. */
  readonly automaticExtensionThreshold: number;
}

export type RedlockAbortSignal = AbortSignal & {error?: Error};

/** The types of results of redlock 5. Nothing here makes an `ExecutionStats`. */
export type ClientExecutionResult = {client: Client; vote: "for"; value: number} | {client: Client; vote: "against"; error: Error};
export interface ExecutionStats {
  readonly membershipSize: number;
  readonly quorumSize: number;
  readonly votesFor: Set<Client>;
  readonly votesAgainst: Map<Client, Error>;
}
/** `attempts` is always empty: the cause of an error says what the clients replied. */
export interface ExecutionResult { attempts: readonly Promise<ExecutionStats>[] }

type Routine<T> = (signal: RedlockAbortSignal) => Promise<T>;

/** Others have one of the resources. */
export class ResourceLockedError extends Error { override readonly name = "ResourceLockedError"; }

/** The operation did not succeed. The cause is the error of the library. */
export class ExecutionError extends Error {
  override readonly name = "ExecutionError";
  readonly attempts: ExecutionResult["attempts"] = [];
}

/** What was locked. */
export class Lock {
  readonly attempts: ExecutionResult["attempts"] = [];
  /** Until when the lock is certain, in ms since 1970. */
  expiration: number;

  constructor(readonly redlock: Redlock, readonly resources: string[], readonly value: string, readonly hold: Hold) {
    this.expiration = Date.now() + hold.remainingMs;
  }

  /** @internal */
  get isOver(): boolean { return this.expiration === 0 || this.hold.remainingMs === 0; }

  release(): Promise<ExecutionResult> { return this.redlock.release(this); }

  extend(duration: number): Promise<Lock> { return this.redlock.extend(this, duration); }
}

export class Redlock extends EventEmitter {
  readonly clients: Set<Client>;
  readonly settings: Settings;
  readonly #locks: Locks;

  constructor(clients: Iterable<Client>, settings: Partial<Settings> = {}) {
    super();
    this.on("error", () => {}); // without a listener Node would end the program
    this.clients = new Set(clients);
    const [first, second] = this.clients;
    if (!first) throw new Error("Redlock must be instantiated with at least one redis client.");
    this.settings = merged(DEFAULTS, settings);
    const hooks = {renewalFailed: (_: string, error: unknown) => void this.emit("error", error), warning() {}};
    const {driftFactor} = this.settings;
    this.#locks = second ? new Quorum([...this.clients], {driftFactor, hooks, poll: () => undefined}) : new Locks(first, {hooks});
  }

  /** Quits the clients, after the connections of the library. */
  async quit(): Promise<void> {
    await this.#locks.close();
    await Promise.all([...this.clients].map((client) => (client as {quit?(): unknown}).quit?.()));
  }

  acquire(resources: string[], duration: number, settings?: Partial<Settings>): Promise<Lock> {
    return this.#acquire(resources, duration, settings);
  }

  async release(lock: Lock, _?: Partial<Settings>): Promise<ExecutionResult> {
    lock.expiration = 0;
    await this.#told(lock.hold.release());
    return {attempts: []};
  }

  /** Another `Lock` in place of the one that there is. It never shortens. */
  async extend(existing: Lock, duration: number, _?: Partial<Settings>): Promise<Lock> {
    whole(duration);
    if (existing.isOver) throw new ExecutionError("Cannot extend an already-expired lock.");
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

  async #acquire(resources: string[], duration: number, settings: Partial<Settings> = {}, renew = false): Promise<Lock> {
    whole(duration);
    const hold = await this.#told(this.#repeat(resources, duration, merged(this.settings, settings), renew));
    return new Lock(this, resources, hold.token, hold);
  }

  /**
   * Acquires as often as the settings say. A key that a process with redlock itself holds is a plain one, and is waited for; so is
   * the end of an outage.
   */
  async #repeat(resources: string[], ttlMs: number, {retryCount, retryDelay, retryJitter}: Settings, renew: boolean): Promise<Hold> {
    const most = retryCount < 0 ? Infinity : retryCount;
    const until = monotonic() + (most > 0 ? most * Math.max(1, retryDelay) : 0);
    const isQuorum = this.clients.size > 1;
    for (let attempts = 0; ; attempts++) {
      const pause = Math.min(Math.max(0, retryDelay + Math.floor((Math.random() * 2 - 1) * retryJitter)), MOST_TIMER_MS);
      try {
        const waitMs = isQuorum ? 0 : Math.max(0, until - monotonic());
        return await this.#locks.write(resources, {ttlMs, waitMs, renew}).acquire();
      } catch (error) {
        const isOutage = !isQuorum && error instanceof NoAnswerError;
        if (isProgramming(error) || !(isQuorum || isOutage || isWrongType(error))) throw error;
        if (isOutage ? monotonic() + pause >= until : attempts >= most) throw error;
      }
      await sleep(pause);
    }
  }

  #told<T>(given: Promise<T>): Promise<T> { return given.catch((error: unknown) => { throw this.#failed(error); }); }

  #failed(cause: unknown): unknown {
    if (isProgramming(cause)) return cause;
    const isLocked = cause instanceof TimedOutError || isWrongType(cause);
    this.emit("error", isLocked ? new ResourceLockedError((cause as Error).message, {cause}) : cause);
    return new ExecutionError("The operation was unable to achieve a quorum during its retry window.", {cause});
  }
}

export default Redlock;

const DEFAULTS: Settings = {driftFactor: 0.01, retryCount: 10, retryDelay: 200, retryJitter: 100, automaticExtensionThreshold: 500};

const merged = (settings: Settings, given: Partial<Settings>): Settings =>
  ({...settings, ...Object.fromEntries(Object.entries(given).filter(([, value]) => typeof value === "number"))});

function whole(duration: number): void {
  if (!Number.isInteger(duration)) throw new Error("Duration must be an integer value in milliseconds.");
}
