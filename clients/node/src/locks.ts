// SPDX-License-Identifier: MIT OR Apache-2.0

// What a program makes once: it gives requests, and carries them out on one server or cluster.

import {Acquisition, counted} from "./acquisition.js";
import {monotonic} from "./clock.js";
import {ClosedError, NotHeldError, WrongModeError, invalid} from "./errors.js";
import {LocksState, type HeldLock} from "./hold.js";
import {Reporter} from "./hooks.js";
import {lockInfo, queueInfos, type LockInfo, type QueueInfo} from "./info.js";
import {given, requestSettings, type Mode, type RequestOptions, type Settings} from "./options.js";
import {Owner} from "./protocol.js";
import {LockRequest, type Backend, type Request} from "./request.js";
import {Server, repeat} from "./server.js";
import type {Stop} from "./stop.js";
import {ReplyError, type Transport} from "./transport.js";

/** What a program asks for locks. */
export interface Locks extends AsyncDisposable {
  /** A request for the lock of a key, or of all keys or none, as the one writer. It sends nothing. */
  write(keys: string | readonly string[], options?: RequestOptions): Request;
  /** The same as a reader. With a limit it is one of so many permits. */
  read(keys: string | readonly string[], options?: RequestOptions): Request;
  /** Who holds the lock of the key and who waits for it, all of them. Of a quorum: at its first node. */
  info(key: string): Promise<LockInfo>;
  /** Which locks are waited for whose keys begin with the prefix, on all nodes of a cluster, the longest wait first. */
  queues(): Promise<QueueInfo[]>;
  /**
   * Releases what an owner token holds of the keys, in whichever mode, and tells on how many keys it did, or on how many nodes
   * of a quorum. It is for a token that another process took; a `Hold` has `release`.
   */
  release(keys: string | readonly string[], token: string): Promise<number>;
  /**
   * Ends the waits and the renewals. Waits and later calls reject with `ClosedError`. Holds are lost at the end of their ttl
   * with the reason `closed`, and may still be released; with `release` they are released now. The program's client stays open.
   */
  close(options?: {readonly release?: boolean | undefined}): Promise<void>;
}

/** Locks over one transport, or over those of a quorum. @internal */
export class LockService implements Locks {
  readonly #state: LocksState;
  readonly #servers: readonly Server[];
  readonly #backend: Backend;

  constructor(transports: readonly Transport[], given: Settings, backend: (servers: readonly Server[], settings: Settings) => Backend) {
    const [first, ...others] = transports.map(({topology}) => topology.prefix ?? "");
    if (others.some((prefix) => prefix !== first)) throw invalid("the clients of a quorum must have the same key prefix");
    const settings = {...given, prefix: (first ?? "") + given.prefix};
    const reporter = new Reporter(settings.hooks);
    const renewed = (): HeldLock[] => this.#state.holds.filter(({isRenewed}) => isRenewed);
    this.#servers = transports.map((transport) => new Server(transport, settings, reporter, renewed));
    this.#backend = backend(this.#servers, settings);
    this.#state = new LocksState(settings, reporter, this.#backend.counted);
  }

  write(keys: string | readonly string[], options: RequestOptions = {}): LockRequest { return this.#request("write", keys, options); }

  read(keys: string | readonly string[], options: RequestOptions = {}): LockRequest { return this.#request("read", keys, options); }

  async info(key: string): Promise<LockInfo> {
    this.read(key).check();
    const name = this.#state.settings.prefix + key;
    return lockInfo(await this.#query(name, ["SLOCK.INFO", name, "FULL", "COUNT", "0"]));
  }

  async queues(): Promise<QueueInfo[]> {
    if (this.#state.isClosed) throw new ClosedError();
    const found = new Map<string, QueueInfo>();
    // All nodes are asked from the least of their cursors on, so some may tell the same again.
    for (let cursor = "0", isDone = false; !isDone;) {
      const reply = await this.#query("", ["SLOCK.QUEUES", "COUNT", "0", "CURSOR", cursor]);
      const pages = (this.#servers[0]!.transport.topology.isCluster ? reply : [reply]) as [string, unknown][];
      for (const [, page] of pages) {
        for (const queue of queueInfos(page, this.#state.settings.prefix)) found.set(queue.key, queue);
      }
      const next = pages.map(([after]) => BigInt(after)).filter((after) => after > 0n);
      isDone = next.length === 0;
      cursor = String(next.reduce((least, after) => (after < least ? after : least), next[0] ?? 0n));
    }
    return [...found.values()].sort((one, other) => other.longestWaitMs - one.longestWaitMs);
  }

  async release(keys: string | readonly string[], token: string): Promise<number> {
    const request = this.read(keys, {token});
    request.check();
    return this.#backend.release(request);
  }

  async close(options: {readonly release?: boolean | undefined} = {}): Promise<void> {
    const {release = false} = given(options, {release: true});
    const {running, holds, settings} = this.#state;
    this.#state.isClosed = true;
    const releases = release ? holds.map((hold) => hold.release()) : [];
    for (const stop of running) stop.close();
    const until = monotonic() + settings.retryForMs;
    const released = await Promise.allSettled(releases);
    while (monotonic() < until && (running.size > 0 || this.#servers.some(({delivering}) => delivering > 0))) {
      await new Promise((resolve) => setTimeout(resolve, 1));
    }
    for (const {listener, transport} of this.#servers) {
      listener.close();
      transport.close();
    }
    for (const one of released) if (one.status === "rejected" && !(one.reason instanceof NotHeldError)) throw one.reason;
  }

  [Symbol.asyncDispose](): Promise<void> { return this.close(); }

  #request(mode: Mode, keys: string | readonly string[], options: RequestOptions): LockRequest {
    if (typeof options === "string") throw invalid("several keys are given as an array");
    const all = typeof keys === "string" ? [keys] : keys;
    if (typeof all?.[Symbol.iterator] !== "function") throw invalid(`the keys must be a text or an array of texts, not ${String(keys)}`);
    const {settings} = this.#state;
    const defaults = mode === "read" || settings.limit === undefined ? settings : {...settings, limit: undefined}; // it is for readers
    return new LockRequest(this.#state, this.#backend, [...all], mode, requestSettings(defaults, options));
  }

  /** Sends a question until it is answered, to the node of the key or without a key to all. */
  async #query(key: string, command: readonly string[]): Promise<unknown> {
    const {value} = await repeat([], this.#state.settings.retryForMs, async (until) => {
      const reply = await this.#servers[0]!.try({key, command}, until);
      const problem = [reply.value].flat().find((one) => one instanceof ReplyError);
      if (problem) throw problem;
      return reply;
    });
    return value;
  }
}

/** Requests at one server or cluster. @internal */
export class ServerBackend implements Backend {
  readonly counted = counted;

  constructor(readonly server: Server) {}

  async acquire({keys, mode, settings}: LockRequest, stop: Stop, isTry: boolean): ReturnType<Backend["acquire"]> {
    const {server} = this;
    const owner = new Owner(keys, server.settings.prefix, settings.token);
    const {answer, error, isOpen} = await new Acquisition(server, owner, owner.lock(mode, settings), settings, stop, isTry).run();
    if (answer && server.transport.topology.hasFailover) server.listener.channel(owner.keys[0]!, true); // its end tells of another primary
    if (answer) return {keeper: server, owner, answer};
    if (isOpen) server.abandon(owner);
    if (error !== undefined) throw error;
    return undefined;
  }

  async adopt({keys, mode, settings}: LockRequest): ReturnType<Backend["adopt"]> {
    const owner = new Owner(keys, this.server.settings.prefix, settings.token);
    const answer = await this.server.ask(keys, owner.adopt(mode, settings)).catch((error: unknown) => {
      if (!(error instanceof WrongModeError)) throw error;
    });
    return answer && answer.number > 0 ? {keeper: this.server, owner, answer} : undefined;
  }

  async release({keys, settings}: LockRequest): Promise<number> {
    return (await this.server.ask(keys, new Owner(keys, this.server.settings.prefix, settings.token).end(0))).number;
  }
}
