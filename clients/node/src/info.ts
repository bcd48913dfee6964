// SPDX-License-Identifier: MIT OR Apache-2.0

// What the server tells of locks: who holds one, who waits for it, and which are waited for.

/** Who holds a lock. */
export interface Holder {
  readonly token: string;
  readonly fence: number;
  /** Until its deadline. */
  readonly remainingMs: number;
  /** Since the hold began. */
  readonly heldMs: number;
  readonly metadata: string;
}

/** Who waits for a lock. */
export interface Waiter {
  readonly token: string;
  readonly mode: "write" | "read" | "upgrade";
  readonly waitingMs: number;
  readonly metadata: string;
}

/** What SLOCK.INFO tells of one lock. */
export interface LockInfo {
  readonly mode: "write" | "read" | "free";
  readonly readers: number;
  readonly waiters: number;
  /** The highest of the holders; 0 if nobody holds it. */
  readonly fence: number;
  /** Until the last holder's deadline. */
  readonly remainingMs: number;
  /** In the order in which their holds began. */
  readonly holders: readonly Holder[];
  /** In the order in which they will be granted. */
  readonly queue: readonly Waiter[];
}

/** A lock that is waited for. */
export interface QueueInfo {
  readonly key: string;
  readonly waiters: number;
  /** How many of them want to write. */
  readonly writers: number;
  readonly longestWaitMs: number;
  readonly mode: "write" | "read" | "free";
  readonly readers: number;
  /** Of the oldest hold. */
  readonly heldMs: number;
}

const FREE: LockInfo = {mode: "free", readers: 0, waiters: 0, fence: 0, remainingMs: 0, holders: [], queue: []};

/** From the reply to `SLOCK.INFO key FULL`. @internal */
export const lockInfo = (reply: unknown): LockInfo => (reply === null ? FREE : (read(reply) as LockInfo));

/** From a page of a reply to `SLOCK.QUEUES`: those whose keys begin with the prefix. @internal */
export function queueInfos(page: unknown, prefix: string): QueueInfo[] {
  return (read(page) as QueueInfo[]).filter(({key}) => key.startsWith(prefix))
    .map((queue) => ({...queue, key: queue.key.slice(prefix.length)}));
}

const NAMES: Record<string, string> = {pttl: "remainingMs", meta: "metadata"};
/** Values that a client of ioredis with `stringNumbers` gives as texts. */
const NUMBERS = /^(readers|waiters|writers|fence|.*Ms)$/;

/** A list, or a map with the names of this library. By RESP2 a map is an array whose names and values come in turn. */
function read(reply: unknown): unknown {
  if (reply === null || typeof reply !== "object") return reply;
  if (Array.isArray(reply) && typeof reply[0] !== "string") return reply.map(read);
  const pairs = Array.isArray(reply)
    ? Array.from({length: reply.length / 2}, (_, at) => [reply[2 * at], reply[2 * at + 1]] as const)
    : reply instanceof Map ? [...reply] : Object.entries(reply);
  return Object.fromEntries(pairs.map(([word, value]) => {
    const name = NAMES[word] ?? String(word).replace(/-(.)/g, (_, letter: string) => letter.toUpperCase());
    return [name, NUMBERS.test(name) ? Number(value) : read(value)];
  }));
}
