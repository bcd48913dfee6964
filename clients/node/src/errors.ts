// SPDX-License-Identifier: MIT OR Apache-2.0

// The errors that a program can tell apart. All others are those of the Redis client library, and a `TypeError` for a
// wrong argument.

import {getSystemErrorMap, types} from "node:util";
import type {Holder} from "./info.js";

/** Why a hold was lost. `closed`: its time passed after `close` of its Locks. */
export type Reason = "gone" | "expired" | "max hold" | "closed";

/** What one node of a quorum replied. */
export interface NodeReply {
  /** The address of the node. */
  readonly node: string;
  /** Whether the node granted, extended or released. If not, and without an error, others have the lock there. */
  readonly granted: boolean;
  readonly error?: unknown;
}

/** The base of all errors of this library. The cause is the error of the Redis client library, if there is one. */
export class SlockError extends Error {
  /** The keys of the request, without a prefix. */
  readonly keys: readonly string[];
  /**
   * Who held the lock when a wait was over, at most 10. There are none if nobody held it by then, or if the user may not run
   * SLOCK.INFO.
   */
  readonly holders: readonly Holder[];
  /** Of a quorum: what each node replied, in the order of the clients. */
  readonly nodes: readonly NodeReply[];

  constructor(
    text: string, keys: readonly string[] = [],
    {cause, holders = [], nodes = []}: {cause?: unknown; holders?: readonly Holder[]; nodes?: readonly NodeReply[]} = {},
  ) {
    const lock = keys.length > 0 ? ` (lock ${keys.join(", ")})` : "";
    const who = holders.map(({metadata, token}) => `${metadata} ${token}`.trim()).join(" and ");
    const why = cause === undefined || text.includes(textOf(cause)) ? "" : `: ${textOf(cause)}`;
    super(`${text}${lock}${who && `, held by ${who}`}${why}${nodes.map(describe).join("")}`, cause === undefined ? {} : {cause});
    this.name = new.target.name;
    this.keys = keys;
    this.holders = holders;
    this.nodes = nodes;
  }
}

/** The server replied, and others held the lock until the wait was over. */
export class TimedOutError extends SlockError {}

/** No reply came within the limit, or none that decides. */
export class NoAnswerError extends SlockError {}

/** The hold ended, and nobody released it through this library. Of an expired one the cause is the error of its last renewal. */
export class LostError extends SlockError {
  constructor(keys: readonly string[], readonly reason: Reason, cause?: unknown) { super(`the lock was lost, ${reason}`, keys, {cause}); }
}

/** The owner token does not hold all the keys, for example because the hold was released. */
export class NotHeldError extends SlockError {}

/** The owner token holds the lock in the other mode. */
export class WrongModeError extends SlockError {}

/** The wait would have closed a cycle of owners that wait for each other. The text names them. */
export class DeadlockError extends SlockError {}

/** The server lets no more requests wait. */
export class QueueFullError extends SlockError {}

/** The server refuses the owner token, because its acquisition has been ended. */
export class RefusedError extends SlockError {}

/** Neither a majority of the nodes of a quorum granted the lock, nor a majority refused it. */
export class QuorumMissedError extends SlockError {}

/** The lock was granted, but too few replicas acknowledged it. It has been released. */
export class TooFewReplicasError extends SlockError {}

/** The server does not know the commands of the module. */
export class ModuleNotLoadedError extends SlockError {}

/** The Locks has been closed. */
export class ClosedError extends SlockError {
  constructor() { super("the Locks has been closed"); }
}

const describe = ({node, granted, error}: NodeReply): string =>
  `; ${node}: ${error === undefined ? (granted ? "granted" : "refused") : textOf(error)}`;

/** Whether it is an error, also one of another realm: under Jest those of Node are. @internal */
export const isError = (error: unknown): error is Error => types.isNativeError(error) || error instanceof Error;

/** Whether the program is wrong: the same call will never succeed. @internal */
export const isProgramming = (error: unknown): boolean => isError(error) && /^(Type|Reference|Range)Error$/.test(error.name);

/** What an error says. An error of the system also says in words what happened. @internal */
export function textOf(error: unknown): string {
  if (!isError(error)) return String(error);
  const [first] = (error as Partial<AggregateError>).errors ?? []; // of a name with several addresses
  if (!error.message && first) return textOf(first);
  const [, words] = getSystemErrorMap().get((error as NodeJS.ErrnoException).errno!) ?? [];
  return words && !error.message.includes(words) ? `${error.message}: ${words}` : error.message || error.name;
}

/** Whether the server said that a key is no lock: another type has replaced it. @internal */
export const isWrongType = (error: unknown): boolean => isError(error) && error.message.startsWith("WRONGTYPE");

/** A duration for people. @internal */
export const duration = (ms: number): string => (ms < 1_000 ? `${Math.round(ms)}ms` : `${Math.round(ms) / 1_000}s`);

/** The error of a wrong argument. @internal */
export const invalid = (text: string): TypeError => new TypeError(text);
