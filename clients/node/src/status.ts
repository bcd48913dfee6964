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
  readonly mode: Mode | "upgrade";
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
  const fields = read(answer);
  return {...fields, fence: fields.fence || undefined};
}

/** From the answer of `SLOCK.QUEUES`. */
export function queueInfos(answer: unknown): QueueInfo[] { return (answer as unknown[][]).map(read); }

/** The map whose names and values come in turn, and the maps within it, with the names of this library. */
function read(flat: readonly unknown[]): any {
  const fields: Record<string, unknown> = {};
  for (let at = 0; at < flat.length; at += 2) {
    const name = String(flat[at]);
    const value = flat[at + 1];
    const kept = typeof value === "number" ? Math.max(0, value) : value || undefined; // no text is none
    fields[NAMES[name] ?? name.replace(/-(.)/g, (_, letter) => letter.toUpperCase())] = Array.isArray(value) ? value.map(read) : kept;
  }
  return fields;
}

const NAMES: Record<string, string> = {pttl: "timeLeftMs", meta: "metadata"};
