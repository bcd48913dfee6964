// What the classes in the manner of redlock 4 and 5 share: one server's queue, or a quorum, behind their settings.

import {setTimeout as sleep} from "node:timers/promises";
import {TimedOutError, isWrongType} from "./errors.js";
import type {Hold} from "./hold.js";
import {Locks, Quorum, constantPause, type Client} from "./index.js";

export interface Settings {
  /** Of a quorum: which part of the duration the clocks may drift. */
  readonly driftFactor: number;
  /** How often it tries again; -1: for ever. With one client, which waits in the server's queue: how many delays it waits. */
  readonly retryCount: number;
  /** The ms between two attempts. */
  readonly retryDelay: number;
  /** So many ms, by chance, are added to or taken from each delay. */
  readonly retryJitter: number;
}

export const DEFAULTS: Settings = {driftFactor: 0.01, retryCount: 10, retryDelay: 200, retryJitter: 100};

export class Attempts {
  readonly locks: Locks;
  readonly #isQuorum: boolean;

  /** `failed` is called with the errors of renewals, which are tried again. */
  constructor(clients: readonly Client[], {driftFactor}: Settings, failed: (error: unknown) => void) {
    const hooks = {renewalFailed: (_: string, error: unknown) => failed(error), warning() {}};
    this.#isQuorum = clients.length > 1;
    this.locks = this.#isQuorum ? new Quorum(clients, {driftFactor, hooks, poll: constantPause(0, 0)}) : new Locks(clients[0]!, {hooks});
  }

  /** Acquires as often as the settings say. A key that a process with redlock itself holds is a plain one, and is waited for. */
  async acquire(resources: readonly string[], ttlMs: number, {retryCount, retryDelay, retryJitter}: Settings, renew = false): Promise<Hold> {
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
}

/** Whether others have a resource. */
export const isLocked = (error: unknown): boolean => error instanceof TimedOutError || isWrongType(error);

/** Quits the clients of the program, as redlock does. */
export const quit = (clients: Iterable<Client>): Promise<unknown[]> =>
  Promise.all([...clients].map((client) => (client as {quit?(): unknown}).quit?.()));
