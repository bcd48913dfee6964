// SPDX-License-Identifier: MIT OR Apache-2.0

// A class in the manner of redlock 4.2, over that of redlock 5. REDLOCK.md has the differences.

import {EventEmitter} from "node:events";
import {isProgramming} from "./errors.js";
import type {Client} from "./index.js";
import {Redlock as Redlock5, ResourceLockedError, type Lock as Lock5, type Settings} from "./redlock.js";

type Callback<T> = (error: unknown, value?: T) => void;

/** The operation did not succeed. The cause is the error of the library. */
class LockError extends Error {
  override readonly name = "LockError";

  constructor(message = "Failed to lock the resource.", readonly attempts?: number, options?: ErrorOptions) { super(message, options); }
}

class Lock {
  readonly attempts = 1;

  /** `lock` is that of redlock 5; an extension gives another one. */
  constructor(readonly redlock: Redlock, readonly resource: string[], readonly attemptsRemaining: number, public lock: Lock5) {}

  get value(): string { return this.lock.value; }
  /** Until when the lock is certain, in ms since 1970. */
  get expiration(): number { return this.lock.expiration; }

  unlock(callback?: Callback<void>): Promise<void> { return this.redlock.unlock(this, callback); }

  extend(ttl: number, callback?: Callback<Lock>): Promise<Lock> { return this.redlock.extend(this, ttl, callback); }
}

class Redlock extends EventEmitter {
  static readonly LockError = LockError;
  static readonly Lock = Lock;
  readonly retryCount: number;
  readonly retryDelay: number;
  readonly #redlock: Redlock5;

  constructor(readonly servers: readonly Client[], options: Redlock.Options = {}) {
    super();
    if (servers.length === 0) throw new Error("Redlock must be instantiated with at least one redis server.");
    this.#redlock = new Redlock5(servers, options);
    this.retryCount = this.#redlock.settings.retryCount;
    this.retryDelay = this.#redlock.settings.retryDelay;
    this.#redlock.on("error", (error) => { if (!(error instanceof ResourceLockedError)) this.emit("clientError", error); });
  }

  /** Quits the clients, after the connections of the library. */
  quit(callback?: Callback<unknown[]>): Promise<unknown[]> { return told(callback, this.#redlock.quit().then(() => this.servers.map(() => "OK"))); }

  lock(resource: string | string[], ttl: number, callback?: Callback<Lock>): Promise<Lock> { return this.lockWithOptions(resource, ttl, {}, callback); }

  lockWithOptions(resource: string | string[], ttl: number, options: Redlock.Options, callback?: Callback<Lock>): Promise<Lock> {
    const names = [resource].flat();
    const retryCount = options.retryCount || this.retryCount;
    const retryDelay = options.retryDelay || this.retryDelay;
    return told(callback, this.#redlock.acquire(names, ttl, {retryCount, retryDelay})
      .then((lock) => new Lock(this, names, retryCount - 1, lock), failed(...exceeded(names, retryCount))));
  }

  /** For `using` of bluebird, which the program has to have. */
  disposer(resource: string | string[], ttl: number, errorHandler: (error: unknown) => void = () => {}): unknown {
    const Bluebird = require("bluebird") as {resolve(value: unknown): {disposer(end: (lock: Lock) => unknown): unknown}};
    return Bluebird.resolve(this.lock(resource, ttl)).disposer((lock) => lock.unlock().catch(errorHandler));
  }

  unlock(lock: Lock, callback?: Callback<void>): Promise<void> {
    return told(callback, lock.lock.release().then(() => {}, failed(`Unable to fully release the lock on resource "${lock.resource}".`)));
  }

  /** Extends the lock and gives it. It never shortens. */
  extend(lock: Lock, ttl: number, callback?: Callback<Lock>): Promise<Lock> {
    const expired = [`Cannot extend lock on resource "${lock.resource}" because the lock has already expired.`, 0] as const;
    const problem: readonly [string, number] = lock.lock.isOver ? expired : exceeded(lock.resource, this.retryCount);
    return told(callback, lock.lock.extend(ttl).then((extended) => {
      lock.lock = extended;
      return lock;
    }, failed(...problem)));
  }

  acquire(...all: Parameters<Redlock["lock"]>): Promise<Lock> { return this.lock(...all); }

  acquireWithOptions(...all: Parameters<Redlock["lockWithOptions"]>): Promise<Lock> { return this.lockWithOptions(...all); }

  release(...all: Parameters<Redlock["unlock"]>): Promise<void> { return this.unlock(...all); }
}

namespace Redlock {
  export type Lock = InstanceType<typeof Redlock.Lock>;
  export type LockError = InstanceType<typeof Redlock.LockError>;
  export type CompatibleRedisClient = Client;
  export type Options = Partial<Omit<Settings, "automaticExtensionThreshold">>;
}

export = Redlock;

const exceeded = (resource: string[], retryCount: number): [string, number] =>
  [`Exceeded ${retryCount} attempts to lock the resource "${resource}".`, retryCount + 1];

/** Throws the error of redlock 4 for one of redlock 5. */
const failed = (text: string, attempts?: number) => (error: Error): never => {
  if (isProgramming(error)) throw error;
  throw new LockError(text, attempts, {cause: error.cause});
};

/** A promise, and a call of the callback if there is one. Then nobody has to catch. */
function told<T>(callback: Callback<T> | undefined, done: Promise<T>): Promise<T> {
  if (callback) done.then((value) => callback(null, value), (error: unknown) => callback(error));
  return done;
}
