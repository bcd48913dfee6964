// A class in the manner of redlock 4.2, over `Locks`. REDLOCK.md has the differences.

import {EventEmitter} from "node:events";
import type {Hold} from "./hold.js";
import type {Client} from "./index.js";
import {Attempts, DEFAULTS, isLocked, quit, type Settings} from "./redlock_attempts.js";

type Callback<T> = (error: unknown, value?: T) => void;
type Options = Partial<Settings>;

/** The operation did not succeed. The cause is the error of the library. */
class LockError extends Error {
  override readonly name = "LockError";

  constructor(message = "Failed to lock the resource.", readonly attempts?: number, options?: ErrorOptions) { super(message, options); }
}

class Lock {
  /** Until when the lock is certain, in ms since 1970. */
  expiration: number;
  readonly attempts = 1;

  constructor(readonly redlock: Redlock, readonly resource: string[], readonly value: string, readonly attemptsRemaining: number, readonly hold: Hold) {
    this.expiration = Date.now() + hold.remainingMs;
  }

  unlock(callback?: Callback<void>): Promise<void> { return this.redlock.unlock(this, callback); }

  extend(ttl: number, callback?: Callback<Lock>): Promise<Lock> { return this.redlock.extend(this, ttl, callback); }
}

class Redlock extends EventEmitter {
  static readonly LockError = LockError;
  static readonly Lock = Lock;
  readonly #settings: Settings;
  readonly #attempts: Attempts;

  constructor(readonly servers: readonly Client[], options: Options = {}) {
    super();
    if (servers.length === 0) throw new Error("Redlock must be instantiated with at least one redis server.");
    this.#settings = Object.assign(this, DEFAULTS, options);
    this.#attempts = new Attempts(servers, this.#settings, (error) => this.emit("clientError", error));
  }

  /** Quits the clients, after the connections of the library. */
  quit(callback?: Callback<unknown[]>): Promise<unknown[]> { return told(callback, this.#attempts.locks.close().then(() => quit(this.servers))); }

  lock(resource: string | string[], ttl: number, callback?: Callback<Lock>): Promise<Lock> { return this.lockWithOptions(resource, ttl, {}, callback); }

  lockWithOptions(resource: string | string[], ttl: number, options: Options, callback?: Callback<Lock>): Promise<Lock> {
    const settings = {...this.#settings, ...options};
    const names = [resource].flat();
    return told(callback, this.#attempts.acquire(names, ttl, settings).then(
      (hold) => new Lock(this, names, hold.token, settings.retryCount - 1, hold), this.#failed("lock", names, settings.retryCount)));
  }

  /** For `using` of bluebird, which the program has to have. */
  disposer(resource: string | string[], ttl: number, errorHandler: (error: unknown) => void = () => {}): unknown {
    const Bluebird = require("bluebird") as {resolve(value: unknown): {disposer(end: (lock: Lock) => unknown): unknown}};
    return Bluebird.resolve(this.lock(resource, ttl)).disposer((lock) => lock.unlock().catch(errorHandler));
  }

  unlock(lock: Lock, callback?: Callback<void>): Promise<void> {
    lock.expiration = 0;
    return told(callback, lock.hold.release().catch(this.#failed("unlock", lock.resource)));
  }

  /** Extends the lock and gives it. It never shortens. */
  extend(lock: Lock, ttl: number, callback?: Callback<Lock>): Promise<Lock> {
    const text = `Cannot extend lock on resource "${lock.resource}" because the lock has already expired.`;
    const extended = lock.expiration < Date.now() ? Promise.reject(new LockError(text, 0)) : lock.hold.extend(ttl);
    return told(callback, extended.catch(this.#failed("lock", lock.resource, this.#settings.retryCount)).then(() => {
      lock.expiration = Date.now() + lock.hold.remainingMs;
      return lock;
    }));
  }

  acquire(...all: Parameters<Redlock["lock"]>): Promise<Lock> { return this.lock(...all); }

  acquireWithOptions(...all: Parameters<Redlock["lockWithOptions"]>): Promise<Lock> { return this.lockWithOptions(...all); }

  release(...all: Parameters<Redlock["unlock"]>): Promise<void> { return this.unlock(...all); }

  /** Throws the error of redlock for one of the library. */
  #failed(what: "lock" | "unlock", resource: string[], retryCount?: number): (cause: unknown) => never {
    return (cause) => {
      if (cause instanceof TypeError || cause instanceof LockError) throw cause;
      if (!isLocked(cause)) this.emit("clientError", cause);
      if (what === "unlock") throw new LockError(`Unable to fully release the lock on resource "${resource}".`, undefined, {cause});
      throw new LockError(`Exceeded ${retryCount} attempts to lock the resource "${resource}".`, retryCount! + 1, {cause});
    };
  }
}

namespace Redlock {
  export type Lock = InstanceType<typeof Redlock.Lock>;
  export type LockError = InstanceType<typeof Redlock.LockError>;
}

export = Redlock;

/** A promise, and a call of the callback if there is one. Then nobody has to catch. */
function told<T>(callback: Callback<T> | undefined, done: Promise<T>): Promise<T> {
  if (callback) done.then((value) => callback(null, value), (error: unknown) => callback(error));
  return done;
}
