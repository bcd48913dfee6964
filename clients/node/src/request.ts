// `Request`: what is wanted, and how a program gets it from an `Acquirer`: from `Locks` or from `Quorum`.

import {outcomeOf} from "./answers.js";
import {now} from "./clock.js";
import type {Key, Mode} from "./commands.js";
import {ClosedError} from "./errors.js";
import type {AnyHold} from "./hold.js";
import {Wanted, optionsOf, type CallOptions, type HoldOptions, type ReadOptions, type RequestOptions} from "./options.js";
import type {Shared} from "./shared.js";
import type {Stop} from "./stop.js";

/** What `Locks` and `Quorum` have in common: a program can take either. */
export abstract class Acquirer<H extends AnyHold> implements AsyncDisposable {
  /** Acquisitions under way are noted there. */
  protected readonly shared: Shared;
  private readonly limit: number | undefined;
  private readonly defaults: RequestOptions;

  /** `options`: of requests, as far as they do not say otherwise. */
  constructor(private readonly shareds: readonly Shared[], options: ReadOptions) {
    optionsOf(options);
    this.shared = shareds[0]!;
    const {limit, ...defaults} = options;
    this.limit = limit;
    this.defaults = defaults;
  }

  /** A request to be the only one that holds a key, or all of several keys. It sends nothing. */
  write(keys: Key | readonly Key[], options?: RequestOptions): Request<H> {
    return new Request(this, this.wanted(keys, "write", options));
  }

  /** A request to hold keys together with other readers: with `limit`, with so many at most. It sends nothing. */
  read(keys: Key | readonly Key[], options?: ReadOptions): Request<H> {
    return new Request(this, this.wanted(keys, "read", options));
  }

  /**
   * The hold that another process took with `token` and handed over. It is renewed from now on. `NotHeldError` when the
   * token does not hold all keys in this mode.
   */
  abstract adopt(keys: Key | readonly Key[], token: string, mode: Mode, options?: HoldOptions): Promise<H>;

  /** Releases what `token` holds, in whichever mode: how many keys it held, of a quorum how many nodes released some. */
  abstract release(keys: Key | readonly Key[], token: string): Promise<number>;

  /**
   * Stops renewing and closes the connections. Acquisitions that wait end with `ClosedError`. It releases nothing: holds
   * end at their ttl. The client that was given stays as it is.
   */
  async close(): Promise<void> { await Promise.all(this.shareds.map((shared) => shared.close())); }

  async [Symbol.asyncDispose](): Promise<void> { await this.close(); }

  /** One use of a request: a hold; nothing when it was refused and asks once. Else it leaves nothing behind. */
  protected abstract attempt(wanted: Wanted, once: boolean, stop: Stop, began: number): Promise<H | undefined>;

  protected wanted(keys: Key | readonly Key[], mode: Mode, options?: ReadOptions): Wanted {
    const limit = mode === "read" ? this.limit : undefined;
    return new Wanted(keys, mode, optionsOf(this.defaults, {limit}, options));
  }

  /** The same, told to the hooks. For `Request`. */
  async acquired(wanted: Wanted, once: boolean, signal: AbortSignal | undefined): Promise<H | undefined> {
    const {shared} = this;
    const began = now();
    let stop: Stop | undefined;
    let outcome = "granted";
    try {
      stop = shared.begin(signal);
      stop.check();
      const hold = await this.attempt(wanted, once, stop, began);
      if (hold === undefined) outcome = "refused";
      return hold;
    } catch (error) {
      outcome = outcomeOf(error, Boolean(stop?.stopped) && !(error instanceof ClosedError));
      throw error;
    } finally {
      if (stop) shared.end(stop);
      shared.reporter.waited(wanted.label, began, outcome);
    }
  }
}

/** Keys, a mode and options. Making one sends nothing. It can be used many times, also at once. */
export class Request<H extends AnyHold> {
  constructor(private readonly locks: Acquirer<H>, private readonly wanted: Wanted) {}

  /**
   * Waits until the lock is granted, at most for `waitMs`. `TimedOutError` when the wait is over, or when no server
   * answers for `retryForMs`; else as the servers say. An aborted signal leaves neither a hold nor a request.
   */
  acquire({signal}: CallOptions = {}): Promise<H> {
    return this.locks.acquired(this.wanted, false, signal) as Promise<H>;
  }

  /** Asks once. Nothing when the lock is not free. Errors as those of `acquire`. */
  tryAcquire({signal}: CallOptions = {}): Promise<H | undefined> {
    return this.locks.acquired(this.wanted, true, signal);
  }

  /**
   * Acquires, does `work`, and releases. The signal of the work is aborted when the hold is lost: then it is `LostError`
   * once the work has ended. The signal given ends the wait, and is passed on to the work. Work that is done is a success,
   * even if the release fails.
   */
  async run<T>(work: (signal: AbortSignal, hold: H) => Promise<T> | T, options: CallOptions = {}): Promise<T> {
    const hold = await this.acquire(options);
    try {
      return await hold.run(work, options);
    } finally {
      await hold.release().catch(() => {}); // it has been logged and told to the hook
    }
  }
}
