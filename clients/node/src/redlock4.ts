// A class in the manner of redlock 4.2, over `Locks`. REDLOCK.md has the differences.

import {EventEmitter} from "node:events";
import type {Client} from "./client.js";
import type {Hold} from "./hold.js";
import {Attempts, type Retries} from "./redlock_attempts.js";

type Callback<T> = (error: unknown, value?: T) => void;

const DEFAULTS: Redlock.Options = {driftFactor: 0.01, retryCount: 10, retryDelay: 200, retryJitter: 100};

/** The operation did not succeed. The cause is the error of the library. */
class LockError extends Error {
  override readonly name = "LockError";

  constructor(message = "Failed to lock the resource.", readonly attempts?: number, options?: ErrorOptions) { super(message, options); }
}

class Lock {
  /** Until when the lock is certain, in ms since 1970. */
  expiration: number;

  constructor(
    readonly redlock: Redlock, readonly resource: string | string[], readonly value: string, readonly attempts: number,
    readonly attemptsRemaining: number, readonly hold: Hold,
  ) { this.expiration = Date.now() + hold.remainingMs; }

  unlock(callback?: Callback<void>): Promise<void> { return this.redlock.unlock(this, callback); }

  extend(ttl: number, callback?: Callback<Lock>): Promise<Lock> { return this.redlock.extend(this, ttl, callback); }
}

class Redlock extends EventEmitter {
  static readonly LockError = LockError;
  static readonly Lock = Lock;
  readonly driftFactor: number;
  readonly retryCount: number;
  readonly retryDelay: number;
  readonly retryJitter: number;
  readonly #attempts: Attempts;

  constructor(readonly servers: readonly Client[], options: Partial<Redlock.Options> = {}) {
    super();
    if (servers.length === 0) throw new Error("Redlock must be instantiated with at least one redis server.");
    ({driftFactor: this.driftFactor, retryCount: this.retryCount, retryDelay: this.retryDelay, retryJitter: this.retryJitter} = {...DEFAULTS, ...options});
    this.#attempts = new Attempts(servers, this.driftFactor, (error) => this.emit("clientError", error));
  }

  /** Quits the clients, after the connections of the library. */
  quit(callback?: Callback<unknown[]>): Promise<unknown[]> {
    return told(callback, async () => {
      await this.#attempts.locks.close();
      return Promise.all(this.servers.map((client) => (client as {quit?(): unknown}).quit?.()));
    });
  }

  lock(resource: string | string[], ttl: number, callback?: Callback<Lock>): Promise<Lock> {
    return this.lockWithOptions(resource, ttl, {}, callback);
  }

  lockWithOptions(resource: string | string[], ttl: number, options: Partial<Redlock.Options>, callback?: Callback<Lock>): Promise<Lock> {
    const retries = {...this as Retries, ...options};
    const attempts = retries.retryCount + 1;
    return told(callback, async () => {
      const hold = await this.#attempts.acquire([resource].flat(), ttl, retries, false).catch((error: unknown) => {
        throw this.#failed(`Exceeded ${retries.retryCount} attempts to lock the resource "${resource}".`, error, attempts);
      });
      return new Lock(this, [resource].flat(), hold.token, 1, retries.retryCount - 1, hold);
    });
  }

  /** For `using` of bluebird, which the program has to have. */
  disposer(resource: string | string[], ttl: number, errorHandler: (error: unknown) => void = () => {}): unknown {
    const Bluebird = require("bluebird") as {resolve(value: unknown): {disposer(end: (lock: Lock) => unknown): unknown}};
    return Bluebird.resolve(this.lock(resource, ttl)).disposer((lock) => lock.unlock().catch(errorHandler));
  }

  unlock(lock: Lock, callback?: Callback<void>): Promise<void> {
    lock.expiration = 0;
    return told(callback, () => lock.hold.release().catch((error: unknown) => {
      throw this.#failed(`Unable to fully release the lock on resource "${lock.resource}".`, error);
    }));
  }

  /** Extends the lock and gives it. It never shortens. */
  extend(lock: Lock, ttl: number, callback?: Callback<Lock>): Promise<Lock> {
    return told(callback, async () => {
      if (lock.expiration < Date.now()) {
        throw new LockError(`Cannot extend lock on resource "${lock.resource}" because the lock has already expired.`, 0);
      }
      await lock.hold.extend(ttl).catch((error: unknown) => {
        throw this.#failed(`Exceeded ${this.retryCount} attempts to lock the resource "${lock.resource}".`, error, 1);
      });
      lock.expiration = Date.now() + lock.hold.remainingMs;
      return lock;
    });
  }

  acquire(resource: string | string[], ttl: number, callback?: Callback<Lock>): Promise<Lock> { return this.lock(resource, ttl, callback); }

  acquireWithOptions(resource: string | string[], ttl: number, options: Partial<Redlock.Options>, callback?: Callback<Lock>): Promise<Lock> {
    return this.lockWithOptions(resource, ttl, options, callback);
  }

  release(lock: Lock, callback?: Callback<void>): Promise<void> { return this.unlock(lock, callback); }

  #failed(message: string, cause: unknown, attempts?: number): unknown {
    if (cause instanceof TypeError) return cause;
    for (const {problem} of this.#attempts.votes(cause, () => new Error("locked"))) if (problem) this.emit("clientError", problem);
    return new LockError(message, attempts, {cause});
  }
}

namespace Redlock {
  export interface Options extends Retries {
    /** Of a quorum: which part of the ttl the clocks may drift. */
    readonly driftFactor: number;
  }
  export type Lock = InstanceType<typeof Redlock.Lock>;
  export type LockError = InstanceType<typeof Redlock.LockError>;
}

export = Redlock;

/** A promise, and a call of the callback if there is one. Then nobody has to catch. */
function told<T>(callback: Callback<T> | undefined, work: () => Promise<T>): Promise<T> {
  const done = work();
  if (callback) done.then((value) => callback(null, value), (error: unknown) => callback(error));
  return done;
}
