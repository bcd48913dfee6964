// SPDX-License-Identifier: MIT OR Apache-2.0

// The options of requests and of Locks, their defaults, and the checks before anything is sent.

import {hostname} from "node:os";
import {isMainThread, threadId} from "node:worker_threads";
import {invalid} from "./errors.js";
import type {Hooks} from "./hooks.js";

/** How a lock is held: by one writer, or by readers. */
export type Mode = "write" | "read";

/** Options of a request. All durations are numbers of milliseconds. */
export interface RequestOptions {
  /** How long the hold lives without a renewal: 2 or more. The default is 10,000. */
  readonly ttlMs?: number | undefined;
  /** How long `acquire` waits at most. Without it, until the lock is granted. Below 1 it sends the request once. */
  readonly waitMs?: number | undefined;
  /** A text of at most 1024 bytes that SLOCK.INFO shows. The default names the host, the process and the worker thread. */
  readonly metadata?: string | undefined;
  /** Whether the hold is renewed. The default is true. */
  readonly renew?: boolean | undefined;
  /** The maximum hold time, 1 or more: the hold is lost so long after the grant, and renewals cannot exceed it. */
  readonly maxHoldMs?: number | undefined;
  /**
   * Keeps the lock for so long after the grant, even if the hold is released earlier. It is for jobs that start on several
   * machines whose clocks differ, and must run once. At most the server's `slock.max-ttl-ms`; checked before the lock is
   * asked for.
   */
  readonly atLeastMs?: number | undefined;
  /**
   * The owner token, of 1 to 255 bytes. Without it each acquisition draws 128 random bits. Give all locks of one task the
   * same token, and the server refuses a wait that would be a deadlock of tasks. Two acquisitions of one key by one token
   * are one hold for the server. If a command without a reply arrives late, it may take the lock again for its ttl: with a
   * drawn token, the server refuses it.
   */
  readonly token?: string | undefined;
  /** The hold counts only if so many replicas acknowledge it, at the grant and at each renewal. A quorum ignores it. */
  readonly minReplicas?: number | undefined;
  /** How long `minReplicas` has. The default is 1,000. */
  readonly replicaTimeoutMs?: number | undefined;
  /** The name of the request for hooks. The default is the first key. */
  readonly label?: string | undefined;
  /** For reading: at most so many readers hold the lock at once, a semaphore. Give all requests for a key the same limit. */
  readonly limit?: number | undefined;
}

/** Options of Locks, and the defaults of all requests. */
export interface LocksOptions extends RequestOptions {
  /** Put before each key that is sent, after the key prefix of the client, and taken off in `info` and `queues`. */
  readonly prefix?: string | undefined;
  /** How long a call goes on while no reply comes at all. The default is 3,000: then it rejects with `NoAnswerError`. */
  readonly retryForMs?: number | undefined;
  /** How long a request that waits survives an outage after the server has replied to it once: 1,000 or more, by default 60,000. */
  readonly retryWaitForMs?: number | undefined;
  readonly hooks?: Hooks | undefined;
}

/** Options of a quorum. */
export interface QuorumOptions extends LocksOptions {
  /** The pauses between attempts. The default is random pauses of 10 to 250 ms. `() => undefined` makes one attempt. */
  readonly poll?: Strategy | undefined;
  /** How long one node may take. The default is a twentieth of the ttl, at least 50 and at most `retryForMs`. */
  readonly nodeTimeoutMs?: number | undefined;
  /** Which part of the ttl does not count, because clocks run at different speeds. The default is 0.01. */
  readonly driftFactor?: number | undefined;
  /** Ends an attempt as soon as the majority is out of reach, without the replies of the other nodes. */
  readonly failFast?: boolean | undefined;
}

/** The pause in ms before the further attempt n, counted from 0, or undefined if there is none. */
export type Strategy = (n: number) => number | undefined;

/** A pause that doubles from the first to the most, shortened by chance by up to a half, so that contenders do not try in step. @internal */
export const exponential = (firstMs: number, mostMs: number, n: number): number =>
  Math.min(firstMs * 2 ** n, Math.max(firstMs, mostMs)) * (0.5 + Math.random() / 2);

const METADATA = `host=${hostname()} pid=${process.pid}${isMainThread ? "" : ` task=worker-${threadId}`}`;

const REQUEST = {
  ttlMs: 10_000, waitMs: Infinity, metadata: METADATA, renew: true, maxHoldMs: Infinity, atLeastMs: 0, minReplicas: 0,
  replicaTimeoutMs: 1_000, token: undefined as string | undefined, label: undefined as string | undefined, limit: undefined as number | undefined,
};
const LOCKS = {...REQUEST, prefix: "", retryForMs: 3_000, retryWaitForMs: 60_000, hooks: {} as Hooks};
const QUORUM = {...LOCKS, poll: ((n) => exponential(20, 250, n)) as Strategy, nodeTimeoutMs: undefined as number | undefined, driftFactor: 0.01, failFast: false};

/** All options with their defaults. @internal */
export type Settings = Readonly<typeof QUORUM>;

/** @internal */
export function settingsOf(options: QuorumOptions, isQuorum: boolean): Settings {
  const settings = merged(QUORUM, options, isQuorum ? QUORUM : LOCKS);
  return {...settings, retryWaitForMs: Math.max(settings.retryWaitForMs, 1_000)}; // a shorter outage is not noticed
}

/** The settings with the options of a request. @internal */
export const requestSettings = (settings: Settings, options: RequestOptions): Settings => merged(settings, options, REQUEST);

/** The least value of each number but the ttl, and the type of what is none. */
const VALID: Record<string, number | string> = {
  waitMs: 0, limit: 1, maxHoldMs: 1, atLeastMs: 0, minReplicas: 0, replicaTimeoutMs: 1, retryForMs: 1, retryWaitForMs: 0, nodeTimeoutMs: 1,
  prefix: "string", metadata: "string", token: "string", label: "string", renew: "boolean", failFast: "boolean", hooks: "object", poll: "function",
};

function merged(settings: Settings, options: object, known: object): Settings {
  const some = given(options, known);
  for (const [name, value] of Object.entries(some as Record<string, unknown>)) {
    const valid = VALID[name];
    const isNumber = typeof valid === "number";
    if (valid === undefined || (isNumber ? typeof value === "number" && value >= valid : typeof value === valid)) continue;
    throw invalid(`${name} must be ${isNumber ? `a number of ${valid} or more` : `of the type ${valid}`}, not ${String(value)}`);
  }
  return {...settings, ...some};
}

/** The options that are given: null means the same as undefined. @internal */
export function given<T extends object>(options: T | null, known: object): Partial<T> {
  if (typeof options !== "object" || Array.isArray(options)) throw invalid(`the options must be an object, not ${String(options)}`);
  if (options && "aborted" in options) throw invalid("a signal is given to acquire, tryAcquire, run or upgrade as {signal}");
  const all = Object.entries(options ?? {}).filter(([, value]) => (value ?? undefined) !== undefined);
  for (const [name] of all) if (!(name in known)) throw invalid(`there is no option "${name}"`);
  return Object.fromEntries(all) as Partial<T>;
}

/** What else is wrong with a request, before anything is sent. @internal */
export function check(keys: readonly string[], mode: Mode, wanted: Settings, counted: (ttlMs: number) => number): void {
  const {ttlMs, limit, metadata, token, minReplicas} = wanted;
  if (keys.length < 1 || keys.length > 1024) throw invalid(`a request needs 1 to 1024 keys, not ${keys.length}`);
  if (keys.some((key) => typeof key !== "string" || key === "")) throw invalid("a key must be a text, and must not be empty");
  if (keys.length > 1 && new Set(keys).size < keys.length) throw invalid("a key is named twice");
  if (!Number.isSafeInteger((limit ?? 1) + minReplicas)) throw invalid(`limit and minReplicas must be whole numbers, not ${limit} and ${minReplicas}`);
  if (limit !== undefined && mode !== "read") throw invalid("a limit is for reading only");
  if (Buffer.byteLength(metadata) > 1024) throw invalid(`the metadata must have at most 1024 bytes, not ${Buffer.byteLength(metadata)}`);
  if (token === "" || Buffer.byteLength(token ?? "") > 255) throw invalid("the owner token must have 1 to 255 bytes");
  // A hold counts as valid for a little more than 1 ms less than its ttl, and in a quorum for less than that.
  if (!(Number.isFinite(ttlMs) && ttlMs >= 2)) throw invalid(`ttlMs must be a finite number of 2 or more, not ${String(ttlMs)}`);
  if (!(counted(ttlMs) > 0)) throw invalid(`ttlMs must be more than a quorum does not count of it, not ${ttlMs}`);
}
