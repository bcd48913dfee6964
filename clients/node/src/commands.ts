// The words of each command, as they are sent. Pure.

import {randomFillSync} from "node:crypto";

export type Key = string | Buffer;
export type Mode = "write" | "read";
export type Command = readonly (string | Buffer)[];

/**
 * How long the server refuses the token of an acquisition that was given up, in ms: what was sent before cannot come
 * later than that.
 */
export const REFUSE_MS = 120_000;

/** No hold has it. */
export const NO_FENCE = 1;

// Random bytes for so many tokens at once: to ask for a few each time takes long.
const TOKEN_BYTES = 16;
const random = Buffer.alloc(128 * TOKEN_BYTES);
let next = 0;

/** 128 random bits in 22 characters, which the server keeps without memory of their own. */
export function newToken(): string {
  if (next === 0) randomFillSync(random);
  const from = next;
  next = (from + TOKEN_BYTES) % random.length;
  return random.toString("base64url", from, from + TOKEN_BYTES);
}

/** Keys for people to read. */
export function namesOf(keys: readonly Key[]): string {
  return keys.length === 1 ? String(keys[0]) : keys.map(String).join(", ");
}

/** What an acquisition asks for, as far as its words need it. */
export interface Asked {
  readonly keys: readonly Key[];
  readonly mode: Mode;
  readonly options: {readonly ttlMs: number; readonly metadata?: string | undefined; readonly limit?: number | undefined};
}

/** Asks for a hold. Without `waiting` it is refused at once. */
export function acquire(asked: Asked, token: string): Command {
  const {ttlMs, metadata, limit} = asked.options;
  const command = lock(asked.keys, asked.mode, token, ttlMs);
  if (metadata !== undefined) command.push("META", metadata);
  if (limit !== undefined) command.push("LIMIT", `${limit}`);
  return command;
}

/** The fence when the token holds all keys in this mode already, else 0. Never a new hold. */
export function refresh(keys: readonly Key[], mode: Mode, token: string, ttlMs: number): Command {
  return [...lock(keys, mode, token, ttlMs), "XX"];
}

/** The fence of what the token holds to write, and to read. */
export function lookAtModes(keys: readonly Key[], token: string, ttlMs = 1): Command[] {
  return [refresh(keys, "write", token, ttlMs), refresh(keys, "read", token, ttlMs)];
}

/** The command with a wait of at most so long, without limit for 0, whose end is told by a message: `[channel, tag]`. */
export function waiting(command: Command, waitMs: number, message?: readonly [channel: string, tag: string]): Command {
  return [...command, "WAIT", `${waitMs}`, ...(message ? ["NOTIFY", ...message] : [])];
}

/** Makes the reader the writer, or the writer a reader. */
export function change(to: Mode, key: Key, token: string, ttlMs: number, fence: number): Command {
  return [to === "write" ? "SLOCK.UPGRADE" : "SLOCK.DOWNGRADE", key, token, `${ttlMs}`, "FENCE", `${fence}`];
}

/** Moves the deadline to now + ttl unless it is later: 1, or 0 when the token has lost this hold. */
export function extend(keys: readonly Key[], token: string, ttlMs: number, fence: number): Command {
  return [...named("SLOCK.EXTEND", "SLOCK.MEXTEND", keys), token, `${ttlMs}`, "GT", "FENCE", `${fence}`];
}

/** Releases the hold with this fence: how many keys were held. */
export function release(keys: readonly Key[], mode: Mode, token: string, fence: number): Command {
  return [...named(mode === "write" ? "SLOCK.UNLOCK" : "SLOCK.RUNLOCK", "SLOCK.MUNLOCK", keys), token, "FENCE", `${fence}`];
}

/** Releases whatever the token holds, or the hold with this fence: how many keys were held. */
export function releaseInAnyMode(keys: readonly Key[], token: string, fence?: number): Command {
  return ["SLOCK.MUNLOCK", `${keys.length}`, ...keys, token, ...(fence === undefined ? [] : ["FENCE", `${fence}`])];
}

/** Withdraws what waits. With `refuse` later requests of the token for these keys are refused. */
export function cancel(keys: readonly Key[], token: string, refuse: boolean): Command[] {
  return keys.map((key) => ["SLOCK.CANCEL", key, token, ...(refuse ? ["REFUSE", `${REFUSE_MS}`] : [])]);
}

/**
 * What ends an acquisition in doubt. A token that the program gave is not refused, as others may use it, and is released
 * by its fence alone: the answers to the two commands before the last one tell which that is, or 0.
 */
export function theEnd(keys: readonly Key[], token: string, given: boolean, fence = NO_FENCE): Command[] {
  if (!given) return [...cancel(keys, token, true), releaseInAnyMode(keys, token)];
  return [...cancel(keys, token, false), ...lookAtModes(keys, token), releaseInAnyMode(keys, token, fence)];
}

export function info(key: Key): Command { return ["SLOCK.INFO", key, "FULL", "COUNT", "0"]; }

export function queues(): Command { return ["SLOCK.QUEUES", "COUNT", "0"]; }

/** How many replicas have all that this connection wrote before. */
export function waitForReplicas(replicas: number, timeoutMs: number): Command {
  return ["WAIT", `${replicas}`, `${timeoutMs}`];
}

function lock(keys: readonly Key[], mode: Mode, token: string, ttlMs: number): (string | Buffer)[] {
  const command = mode === "write" ? named("SLOCK.LOCK", "SLOCK.MLOCK", keys) : named("SLOCK.RLOCK", "SLOCK.MRLOCK", keys);
  return [...command, token, `${ttlMs}`];
}

/** The name of a command for one key, or of that for several, and the keys. */
function named(one: string, several: string, keys: readonly Key[]): (string | Buffer)[] {
  return keys.length === 1 ? [one, keys[0]!] : [several, `${keys.length}`, ...keys];
}
