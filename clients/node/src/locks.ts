// What a program makes once: it gives requests, and carries them out on one server or cluster.

import {ServerAcquisition, counted} from "./acquisition.js";
import {monotonic} from "./clock.js";
import {ClosedError, NotHeldError, WrongModeError, invalid} from "./errors.js";
import type {LiveHold} from "./hold.js";
import {Reporter} from "./hooks.js";
import {lockInfo, queueInfos, type LockInfo, type QueueInfo} from "./info.js";
import type {HeldLock} from "./mode.js";
import {requestSettings, settingsOf, type QuorumOptions, type ReadOptions, type RequestOptions, type Settings} from "./options.js";
import {Owner} from "./protocol.js";
import {LockRequest, notHeld, type Backend, type Request, type Requesting} from "./request.js";
import {Server, repeat} from "./server.js";
import type {Stop} from "./stop.js";
import {ReplyError, type Transport} from "./transport.js";
import {Watchdog} from "./watchdog.js";

/** What a program asks for locks. */
export interface Locks extends AsyncDisposable {
  /** A request for the lock of a key, or of all keys or none, as the one writer. It sends nothing. */
  write(keys: string | readonly string[], options?: RequestOptions): Request;
  /** The same as a reader. With a limit it is one of so many permits. */
  read(keys: string | readonly string[], options?: ReadOptions): Request<ReadOptions>;
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

/** Locks over one transport, or over those of a quorum. */
export class LockService implements Locks, Requesting {
  readonly settings: Settings;
  readonly reporter: Reporter;
  readonly running = new Set<Stop>();
  readonly servers: readonly Server[];
  readonly backend: Backend;
  isClosed = false;
  readonly #watchdog: Watchdog;

  constructor(transports: readonly Transport[], options: QuorumOptions, quorum?: (servers: readonly Server[], settings: Settings) => Backend) {
    const [first, ...others] = transports.map(({topology}) => topology.prefix ?? "");
    if (others.some((prefix) => prefix !== first)) throw invalid("the clients of a quorum must have the same key prefix");
    const settings = settingsOf(options, quorum !== undefined);
    this.settings = {...settings, prefix: (first ?? "") + settings.prefix};
    this.reporter = new Reporter(settings.hooks);
    const confirm = (): void => this.#watchdog.renewed().forEach((hold) => hold.confirm());
    this.servers = transports.map((transport) => new Server(
      transport, this.settings, this.reporter, () => { if (transport.topology.hasFailover) confirm(); },
    ));
    this.#watchdog = new Watchdog(this.reporter, (key) => {
      const [{listener, transport}] = this.servers as [Server];
      if (!transport.topology.hasFailover) return;
      if (key === undefined) listener.unfollow();
      else listener.follow(key);
    });
    this.backend = quorum ? quorum(this.servers, this.settings) : new ServerBackend(this.servers[0]!);
  }

  write(keys: string | readonly string[], options: RequestOptions = {}): LockRequest { return this.#request("write", keys, options); }

  read(keys: string | readonly string[], options: ReadOptions = {}): LockRequest { return this.#request("read", keys, options); }

  async info(key: string): Promise<LockInfo> {
    this.read(key).check();
    const name = this.settings.prefix + key;
    return lockInfo(await this.#query(name, ["SLOCK.INFO", name, "FULL", "COUNT", "0"]));
  }

  async queues(): Promise<QueueInfo[]> {
    if (this.isClosed) throw new ClosedError();
    return queueInfos(await this.#query("", ["SLOCK.QUEUES", "COUNT", "0"]) as unknown[], this.settings.prefix);
  }

  async release(keys: string | readonly string[], token: string): Promise<number> {
    const request = this.read(keys, {token});
    request.check();
    return this.backend.release(request);
  }

  async close({release = false}: {readonly release?: boolean | undefined} = {}): Promise<void> {
    this.isClosed = true;
    const releases = release ? this.#watchdog.all().map((hold) => hold.release()) : [];
    for (const stop of this.running) stop.close();
    const until = monotonic() + this.settings.retryForMs;
    const released = await Promise.allSettled(releases);
    while (monotonic() < until && (this.running.size > 0 || !this.servers.every(({ends}) => ends.isIdle))) {
      await new Promise((resolve) => setTimeout(resolve, 1));
    }
    for (const {listener, transport} of this.servers) {
      listener.close();
      transport.close();
    }
    const failed = released.find((one) => one.status === "rejected" && !(one.reason instanceof NotHeldError));
    if (failed) throw (failed as PromiseRejectedResult).reason;
  }

  [Symbol.asyncDispose](): Promise<void> { return this.close(); }

  counted(ttlMs: number): number { return (this.backend.counted ?? counted)(ttlMs); }

  watch(hold: HeldLock): void { this.#watchdog.watch(hold); }

  ended(hold: LiveHold): void { this.#watchdog.forget(hold); }

  #request(mode: "write" | "read", keys: string | readonly string[], options: ReadOptions): LockRequest {
    const names = typeof keys === "string" ? [keys] : [...keys];
    return new LockRequest(this, names, mode, requestSettings(this.settings.request, options));
  }

  /** Sends a question until it is answered, to the node of the key or without a key to all. */
  async #query(key: string, command: readonly string[]): Promise<unknown> {
    const [server] = this.servers as [Server];
    let answer: unknown;
    await repeat([], this.settings.retryForMs, async (until) => {
      answer = (await server.try({key, command}, until)).value;
      const problem = key === "" ? (answer as unknown[]).find((one) => one instanceof ReplyError) : answer;
      if (problem instanceof ReplyError) throw problem;
    });
    return answer;
  }
}

/** Requests at one server or cluster. */
class ServerBackend implements Backend {
  constructor(readonly server: Server) {}

  async acquire({keys, mode, settings}: LockRequest, stop: Stop, isTry: boolean): ReturnType<Backend["acquire"]> {
    const {server} = this;
    const owner = new Owner(keys, server.settings.prefix, settings.token);
    const acquisition = new ServerAcquisition(server, owner, owner.lock(mode, settings), settings, stop, isTry);
    let grant;
    try {
      grant = await acquisition.run();
    } finally {
      if (!grant && acquisition.isOpen) server.endLater(owner, 0);
    }
    return grant && {keeper: server, owner, grant};
  }

  async adopt(request: LockRequest): ReturnType<Backend["adopt"]> {
    const {keys, mode, settings} = request;
    const owner = new Owner(keys, this.server.settings.prefix, settings.token);
    try {
      const {number, sent} = await this.server.ask(keys, owner.adopt(mode, settings.ttlMs));
      if (number > 0) return {keeper: this.server, owner, grant: {fence: number, from: sent}};
    } catch (error) {
      if (!(error instanceof WrongModeError)) throw error;
    }
    throw notHeld(request);
  }

  async release({keys, settings}: LockRequest): Promise<number> {
    const owner = new Owner(keys, this.server.settings.prefix, settings.token);
    return (await this.server.ask(keys, owner.end(0))).number;
  }
}
