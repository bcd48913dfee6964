// What the classes in the manner of redlock 4 and 5 share: one server's queue or a quorum behind their settings, and what
// each client replied.

import {setTimeout as sleep} from "node:timers/promises";
import type {Client} from "./client.js";
import {SlockError, isWrongType} from "./errors.js";
import type {Hold} from "./hold.js";
import {Locks, Quorum, constantPause} from "./index.js";

/** How often and how soon redlock tries again. */
export interface Retries {
  /** How often it tries again; -1: for ever. With one client, which waits in the server's queue: how many delays it waits. */
  readonly retryCount: number;
  /** The ms between two attempts. */
  readonly retryDelay: number;
  /** So many ms, by chance, are added to or taken from each delay. */
  readonly retryJitter: number;
}

/** What one client replied. */
export interface Vote {
  readonly client: Client;
  /** What was against it; undefined: it granted, extended or released. */
  readonly problem: unknown;
}

export class Attempts {
  readonly locks: Locks;
  readonly #isQuorum: boolean;

  /** `failed` is called with the errors of renewals, which are tried again. */
  constructor(readonly clients: readonly Client[], driftFactor: number, failed: (error: unknown) => void) {
    const hooks = {renewalFailed: (_: string, error: unknown) => failed(error), warning() {}};
    this.#isQuorum = clients.length > 1;
    this.locks = this.#isQuorum ? new Quorum(clients, {driftFactor, hooks, poll: constantPause(0, 0)}) : new Locks(clients[0]!, {hooks});
  }

  /** Acquires as often as the retries say. A key that a process with redlock itself holds is a plain one, and is waited for. */
  async acquire(resources: readonly string[], ttlMs: number, {retryCount, retryDelay, retryJitter}: Retries, renew: boolean): Promise<Hold> {
    const most = retryCount < 0 ? Infinity : retryCount;
    const until = Date.now() + (most > 0 ? most * Math.max(1, retryDelay) : 0);
    for (let attempts = 0; ; attempts++) {
      try {
        const waitMs = this.#isQuorum ? 0 : Math.max(0, until - Date.now());
        return await this.locks.write(resources, {ttlMs, waitMs, renew}).acquire();
      } catch (error) {
        const isFinal = error instanceof TypeError || !(this.#isQuorum || isWrongType(error));
        if (isFinal || attempts >= most) throw error;
      }
      await sleep(Math.max(0, retryDelay + Math.floor((Math.random() * 2 - 1) * retryJitter)));
    }
  }

  /** What each client replied, by the error of a call, or in favour. `locked` makes the problem of a client where others have the lock. */
  votes(error: unknown, locked: () => Error): Vote[] {
    const nodes = error instanceof SlockError ? error.nodes : [];
    return this.clients.map((client, at) => {
      const node = nodes[at] ?? {granted: error === undefined, error: isTimeout(error) ? undefined : error};
      return {client, problem: node.granted ? undefined : isWrongType(node.error) || node.error === undefined ? locked() : node.error};
    });
  }
}

const isTimeout = (error: unknown): boolean => error instanceof SlockError && error.name === "TimedOutError";
