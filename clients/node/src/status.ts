// Typed answers of `SLOCK.INFO` and `SLOCK.QUEUES`. Pure.

import type {Mode} from "./commands.js";

/** Who holds a lock. */
export interface Holder {
  readonly token: string;
  readonly fence: number;
  /** Until its deadline. */
  readonly timeLeftMs: number;
  readonly heldMs: number;
  readonly metadata: string | undefined;
}

/** Who waits for a lock. */
export interface Waiter {
  readonly token: string;
  readonly mode: Mode;
  readonly waitingMs: number;
  readonly metadata: string | undefined;
}

/** A lock, as one server tells it. */
export interface LockInfo {
  readonly mode: Mode | "free";
  readonly readers: number;
  readonly waiters: number;
  /** The highest of the holders; without one it is free. */
  readonly fence: number | undefined;
  readonly holders: readonly Holder[];
  /** In order of arrival. */
  readonly queue: readonly Waiter[];
}

/** A lock for which somebody waits. */
export interface QueueInfo {
  readonly key: string;
  readonly waiters: number;
  /** How many of them want to write. */
  readonly writers: number;
  readonly longestWaitMs: number;
  readonly mode: Mode | "free";
  readonly readers: number;
  readonly heldMs: number;
}

/** From the answer of `SLOCK.INFO key FULL`. */
export function lockInfo(answer: unknown): LockInfo {
  if (!Array.isArray(answer)) return {mode: "free", readers: 0, waiters: 0, fence: undefined, holders: [], queue: []};
  const fields = mapOf(answer);
  return {
    mode: fields["mode"],
    readers: Number(fields["readers"]),
    waiters: Number(fields["waiters"]),
    fence: Number(fields["fence"]) || undefined,
    holders: mapsOf(fields["holders"]).map((one) => ({
      token: one["token"],
      fence: Number(one["fence"]),
      timeLeftMs: msOf(one["pttl"]),
      heldMs: msOf(one["held-ms"]),
      metadata: one["meta"] || undefined,
    })),
    queue: mapsOf(fields["queue"]).map((one) => ({
      token: one["token"],
      mode: one["mode"],
      waitingMs: msOf(one["waiting-ms"]),
      metadata: one["meta"] || undefined,
    })),
  };
}

/** From the answer of `SLOCK.QUEUES`. */
export function queueInfos(answer: unknown): QueueInfo[] {
  return mapsOf(answer).map((one) => ({
    key: one["key"],
    waiters: Number(one["waiters"]),
    writers: Number(one["writers"]),
    longestWaitMs: msOf(one["longest-wait-ms"]),
    mode: one["mode"],
    readers: Number(one["readers"]),
    heldMs: msOf(one["held-ms"]),
  }));
}

type Fields = Record<string, any>;

function mapOf(flat: readonly unknown[]): Fields {
  const fields: Fields = {};
  for (let at = 0; at < flat.length; at += 2) fields[String(flat[at])] = flat[at + 1];
  return fields;
}

function mapsOf(answer: unknown): Fields[] { return Array.isArray(answer) ? answer.map(mapOf) : []; }

function msOf(value: unknown): number { return Math.max(0, Number(value ?? 0)); }
