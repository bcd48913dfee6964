// The options of a request and of `Locks`, their defaults and checks. Pure.

import {namesOf, newToken, type Key, type Mode} from "./commands.js";
import {notNegative, positive, wholeTtl} from "./durations.js";
import type {Hooks} from "./hooks.js";
import type {Strategy} from "./polling.js";

/** The options of a hold. Those that are absent are as `Locks` has them. Durations are numbers of milliseconds. */
export interface HoldOptions {
  /** How long the hold lives without a renewal, at least 2 ms. By default 10 s. */
  ttlMs?: number | undefined;
  /** Whether the watchdog renews the hold, after a third of its ttl each time. By default it does. */
  renew?: boolean | undefined;
  /** The hold is renewed no longer than this after the grant, and is lost then. By default there is no such limit. */
  longestLeaseMs?: number | undefined;
  /** The name under which hooks and errors report the hold. By default the first key. */
  label?: string | undefined;
}

export interface RequestOptions extends HoldOptions {
  /** How long `acquire` waits at most; by default until the lock is granted. Zero asks once. */
  waitMs?: number | undefined;
  /** Text that `SLOCK.INFO key FULL` shows beside the hold and the request. */
  metadata?: string | undefined;
  /**
   * The owner's identity, for a hold that is to be handed over to a process that knows it beforehand. By default each
   * acquisition has one of its own, of 128 random bits. Two acquisitions of one key by one given token are the
   * program's own affair.
   */
  token?: string | undefined;
  /** The hold counts only when so many replicas have it. By default 0. Not for a quorum. */
  minReplicas?: number | undefined;
  /** How long they have time for that. By default 1 s. */
  replicaTimeoutMs?: number | undefined;
}

export interface ReadOptions extends RequestOptions {
  /** At most so many readers at once: a semaphore. By default any number. */
  limit?: number | undefined;
}

/** Of one call. */
export interface CallOptions {
  /** When it is aborted, the call is given up and rejects with the signal's reason. */
  signal?: AbortSignal | undefined;
}

/** The options of `Locks`, and defaults for its requests. */
export interface LocksOptions extends ReadOptions {
  /**
   * How requests wait. `notify`, the default: all waits share one connection. `block`: each wait has a connection of
   * its own. A strategy of polling: asks again and again.
   */
  waiting?: "notify" | "block" | Strategy | undefined;
  /** How long a call goes on without any answer of the server. By default 3 s. */
  retryForMs?: number | undefined;
  /** The same for a request that waits. By default 60 s. */
  retryWaitForMs?: number | undefined;
  hooks?: Hooks | undefined;
}

/** The options of a request, all of them. */
export type Options = typeof DEFAULTS;

const DEFAULTS = {
  ttlMs: 10_000,
  renew: true,
  longestLeaseMs: Infinity,
  waitMs: Infinity,
  minReplicas: 0,
  replicaTimeoutMs: 1_000,
  label: undefined as string | undefined,
  metadata: undefined as string | undefined,
  token: undefined as string | undefined,
  limit: undefined as number | undefined,
};

/** Options over others, the last first, and over the defaults. Checks them: an unknown name is a `TypeError`. */
export function optionsOf(...chosen: (ReadOptions | undefined)[]): Options {
  const all: Record<string, unknown> = {...DEFAULTS};
  for (const [name, value] of chosen.flatMap((some) => Object.entries(some ?? {}))) {
    if (!(name in DEFAULTS)) throw new TypeError(`there is no option ${name}`);
    if (value !== undefined) all[name] = value;
  }
  const options = all as unknown as Options;
  for (const name of ["label", "metadata", "token"] as const) {
    if (options[name] !== undefined && typeof options[name] !== "string") throw new TypeError(`${name} must be a string`);
  }
  positive("longestLeaseMs", options.longestLeaseMs);
  notNegative("waitMs", options.waitMs);
  wholeNumber("minReplicas", options.minReplicas, 0);
  if (options.limit !== undefined) wholeNumber("limit", options.limit, 1);
  const replicaTimeoutMs = Math.ceil(positive("replicaTimeoutMs", options.replicaTimeoutMs));
  return {...options, ttlMs: wholeTtl(options.ttlMs), replicaTimeoutMs};
}

/** The keys, the mode and the options of a request. */
export class Wanted {
  readonly keys: readonly Key[];
  /** The keys, for people to read. */
  readonly names: string;
  readonly label: string;

  constructor(keys: Key | readonly Key[], readonly mode: Mode, readonly options: Options) {
    this.keys = keysOf(keys);
    if (mode !== "write" && mode !== "read") throw new TypeError("mode must be 'write' or 'read'");
    if (options.limit !== undefined && mode === "write") throw new TypeError("limit is for reading");
    this.names = namesOf(this.keys);
    this.label = options.label ?? String(this.key);
  }

  /** The key that tells the server. */
  get key(): Key { return this.keys[0]!; }

  /** What the permissions depend on. */
  get kind(): Mode | "several keys" { return this.keys.length === 1 ? this.mode : "several keys"; }

  /** Whether the program gave the token. */
  get given(): boolean { return this.options.token !== undefined; }

  /** The token of one use of the request. */
  newToken(): string { return this.options.token ?? newToken(); }
}

/** One key or several, as an array: at least one, and none twice. */
export function keysOf(keys: Key | readonly Key[]): readonly Key[] {
  const all: readonly Key[] = typeof keys === "string" || Buffer.isBuffer(keys) ? [keys] : [...keys];
  if (all.length === 0) throw new RangeError("a request needs a key");
  for (const key of all) {
    if (typeof key !== "string" && !Buffer.isBuffer(key)) throw new TypeError("a key must be a string or a Buffer");
  }
  if (all.length > 1 && new Set(all.map((key) => Buffer.from(key).toString("latin1"))).size < all.length) {
    throw new RangeError("a key is named twice");
  }
  return all;
}

function wholeNumber(name: string, value: number, least: number): number {
  if (!Number.isInteger(value) || value < least) throw new RangeError(`${name} must be a whole number, at least ${least}`);
  return value;
}
