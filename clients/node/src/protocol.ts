// SPDX-License-Identifier: MIT OR Apache-2.0

// The words of the commands, and what the replies mean. It sends nothing.

import {randomFillSync} from "node:crypto";
import {
  DeadlockError, ModuleNotLoadedError, NotHeldError, QueueFullError, RefusedError, SlockError, WrongModeError, isError, isProgramming,
} from "./errors.js";
import type {Mode, Settings} from "./options.js";
import {ReplyError, type Call} from "./transport.js";

/** For how long the server refuses an owner token after the end of its acquisition, in ms: nothing is on its way after that. */
export const REFUSE_MS = 120_000;

const RANDOM = Buffer.alloc(4_096);
let used = RANDOM.length;

/** 128 random bits in 22 characters, as secret as an owner token and a tag have to be. With a hyphen it could look like an option. */
export function draw(): string {
  if (used === RANDOM.length) {
    randomFillSync(RANDOM);
    used = 0;
  }
  return RANDOM.toString("base64url", used, (used += 16)).replaceAll("-", ".");
}

/** An owner token and the keys that it wants or holds. */
export class Owner {
  readonly token: string;
  /** Whether the program gave the token: other acquisitions may use it too. */
  readonly isGiven: boolean;
  readonly keys: readonly string[];

  /** `names` are the keys for the program; for the server a prefix comes before each. */
  constructor(readonly names: readonly string[], prefix: string, token: string | undefined) {
    this.isGiven = token !== undefined;
    this.token = token ?? draw();
    this.keys = prefix ? names.map((name) => prefix + name) : names;
  }

  lock(mode: Mode, wanted: Pick<Settings, "ttlMs"> & Partial<Settings>): Call {
    const [single, several] = mode === "write" ? ["SLOCK.LOCK", "SLOCK.MLOCK"] : ["SLOCK.RLOCK", "SLOCK.MRLOCK"];
    const words = [milliseconds(wanted.ttlMs)];
    if (wanted.metadata) words.push("META", wanted.metadata);
    if (wanted.limit !== undefined) words.push("LIMIT", String(wanted.limit));
    return this.#command(single!, several!, words);
  }

  /** Gives the fence of what the token holds in the mode, and never takes a lock. */
  adopt(mode: Mode, {ttlMs, metadata}: Pick<Settings, "ttlMs" | "metadata">): Call { return add(this.lock(mode, {ttlMs, metadata}), "XX"); }

  /** Has the hold with the fence, or whatever the token holds if it is 0, end a ttl from now or later. */
  extend(ttlMs: number, fence: number): Call {
    return {...this.#command("SLOCK.EXTEND", "SLOCK.MEXTEND", [milliseconds(ttlMs), "GT", ...fenced(fence)]), reserved: true};
  }

  /** Has the hold end a ttl from now. */
  shorten(ttlMs: number, fence: number): Call {
    return this.#command("SLOCK.EXTEND", "SLOCK.MEXTEND", [milliseconds(ttlMs), ...fenced(fence)]);
  }

  /** Makes the hold of a single key one of this mode. */
  change(to: Mode, ttlMs: number, fence: number): Call {
    return this.#command(to === "write" ? "SLOCK.UPGRADE" : "SLOCK.DOWNGRADE", "", [milliseconds(ttlMs), ...fenced(fence)]);
  }

  /** Ends what waits for the first key, also if it waits for all keys. */
  withdraw(): Call { return {key: this.keys[0]!, command: ["SLOCK.CANCEL", this.keys[0]!, this.token]}; }

  /**
   * Ends the acquisition: the server withdraws what waits, releases what is held, and refuses what arrives later. A
   * token of the program's may be in use for another hold: it is not refused, what waits stays (see `withdraw`), and the hold
   * with the fence ends, if that is known.
   */
  end(fence: number): Call {
    return this.#command("", "SLOCK.MUNLOCK", this.isGiven ? fenced(fence) : ["REFUSE", String(REFUSE_MS)]);
  }

  #command(single: string, several: string, words: readonly string[]): Call {
    const {keys, token} = this;
    const key = keys[0]!;
    if (single && keys.length === 1) return {key, command: [single, key, token, ...words]};
    return {key, command: [several, String(keys.length), ...keys, token, ...words]};
  }
}

/** The call with further words. */
const add = (call: Call, ...words: readonly string[]): Call => ({...call, command: [...call.command, ...words]});

/** The call with a place in the queue, whose end is told on a channel. */
export const waiting = (call: Call, waitMs: number, channel: string, tag: string): Call =>
  add(call, "WAIT", milliseconds(waitMs), "NOTIFY", channel, tag);

const fenced = (fence: number): string[] => (fence > 0 ? ["FENCE", String(fence)] : []);

/** Rounded up: a wait of 0 ms would be one without end, and a ttl of 0 an error. */
const milliseconds = (ms: number): string => String(Math.ceil(ms));

/** The first word of an error reply of the server, and else empty. */
export const codeOf = (error: unknown): string => (error instanceof ReplyError ? error.message.split(" ", 1)[0]! : "");

/** The codes after which the same command, with the same token, may succeed a little later. */
const PASSING = new Set([
  "UNBLOCKED", "TRYAGAIN", "READONLY", "LOADING", "MASTERDOWN", "CLUSTERDOWN", "GRACE", "NOREPLICAS", "MISCONF", "MOVED", "ASK",
  "NOSUBSCRIBER",
]);

/** Whether a command may succeed if it is sent again: the server said so, or there was no reply. */
export function passes(error: unknown): boolean {
  if (error instanceof ReplyError) return PASSING.has(codeOf(error)) || error.message.includes("max number of clients reached");
  return isError(error) && !(error instanceof SlockError) && !isProgramming(error);
}

/** The errors that the server names by their code. */
const KINDS: Record<string, typeof NotHeldError> = {
  WRONGMODE: WrongModeError, NOTHELD: NotHeldError, DEADLOCK: DeadlockError, QUEUEFULL: QueueFullError, REFUSED: RefusedError,
};

const NOT_LOADED =
  "the server has not loaded the SLOCK module: start it with --loadmodule /path/to/libslock.so, or run MODULE LOAD /path/to/libslock.so";

/** The error of this library for an error reply. For others it is that of the Redis client library. */
export function explain(error: unknown, names: readonly string[]): unknown {
  if (error instanceof ReplyError) {
    const Kind = KINDS[codeOf(error)];
    if (Kind) return new Kind(error.message, names, {cause: error.cause});
    if (/unknown command/i.test(error.message)) return new ModuleNotLoadedError(NOT_LOADED, [], {cause: error.cause});
  }
  return error instanceof ReplyError ? (error.cause ?? error) : error;
}

/** Reads a message "<n> <tag>": n is a fence, 0, or the code of an error after a minus. */
export function readMessage(payload: string): {tag: string; fence: number; error?: ReplyError} {
  const at = payload.indexOf(" ");
  const word = payload.slice(0, at);
  const tag = payload.slice(at + 1);
  if (word.startsWith("-")) return {tag, fence: 0, error: new ReplyError(`${word.slice(1)} the server ended the wait`)};
  return {tag, fence: Number(word)};
}

/** The part of a key that tells its slot. */
export function hashTag(key: string): string {
  const open = key.indexOf("{");
  const close = key.indexOf("}", open);
  return open >= 0 && close > open + 1 ? key.slice(open + 1, close) : key;
}

/** The slot of a key or channel: CRC16/XMODEM of its hash tag, by the Redis Cluster specification. */
export function slotOf(key: string): number {
  let slot = 0;
  for (const byte of Buffer.from(hashTag(key))) {
    slot ^= byte << 8;
    for (let bit = 0; bit < 8; bit++) slot = ((slot << 1) ^ (slot >> 15 ? 0x1021 : 0)) & 0xffff;
  }
  return slot % 16384;
}
