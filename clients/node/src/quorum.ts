// SPDX-License-Identifier: MIT OR Apache-2.0

// Locks on several independent servers: N servers, and arithmetic. The algorithm is that of redsync and of the Redis
// documentation ("Distributed Locks with Redis").

import {monotonic, now} from "./clock.js";
import {QuorumMissedError, TimedOutError, duration, invalid, type NodeReply, type SlockError} from "./errors.js";
import type {Keeper} from "./hold.js";
import type {Settings} from "./options.js";
import {Owner, REFUSE_MS, codeOf, explain, passes} from "./protocol.js";
import type {Backend, Granted, LockRequest} from "./request.js";
import type {Answer, Server} from "./server.js";
import {Stop} from "./stop.js";
import {SilentError, type Call} from "./transport.js";

/** What one node gave. */
interface Vote {
  readonly server: Server;
  fence: number;
  /** The reply to the last command that asked for the lock. */
  asked: Promise<unknown>;
}

/** Asks one node, until a time. True: it granted, extended or released. */
type Question = (vote: Vote, until: number) => Promise<boolean>;

/** The replies of all nodes. Those that have not replied have a `SilentError`. */
class Tally {
  constructor(readonly nodes: NodeReply[]) {}

  get granted(): number { return this.#count(({granted}) => granted); }
  /** A majority granted. */
  get isGranted(): boolean { return this.granted > this.nodes.length / 2; }
  /** Others have the lock at so many nodes that there can be no majority, whatever the others say. */
  get isRefused(): boolean { return this.#count(({granted, error}) => !granted && error === undefined) >= this.nodes.length / 2; }
  /** A majority is out of reach. */
  get isLost(): boolean { return this.#count(({granted, error}) => !granted && !(error instanceof SilentError)) >= this.nodes.length / 2; }
  /** A majority of nodes gives errors that last. */
  get isFinal(): boolean { return this.#count(({error}) => error !== undefined && !passes(error)) > this.nodes.length / 2; }
  get isCertain(): boolean { return this.isGranted || this.isRefused; }

  /** The error of a call that got no majority. */
  missed(keys: readonly string[], waitedMs: number): SlockError {
    const nodes = this.nodes.map(({error, ...reply}) => (error === undefined ? reply : {...reply, error: explain(error, [])}));
    const Kind = this.isRefused ? TimedOutError : QuorumMissedError;
    return new Kind(`no majority of ${nodes.length} nodes after ${duration(waitedMs)}`, keys, {nodes});
  }

  #count(is: (reply: NodeReply) => boolean): number { return this.nodes.filter(is).length; }
}

export class QuorumBackend implements Backend {
  constructor(readonly servers: readonly Server[], readonly settings: Settings) {
    const {driftFactor} = settings;
    if (servers.length > 0 && driftFactor >= 0 && driftFactor < 1) return;
    throw invalid(`a quorum needs clients, and a drift factor of at least 0 and less than 1, not ${servers.length} and ${driftFactor}`);
  }

  readonly counted = (ttlMs: number): number => ttlMs - ttlMs * this.settings.driftFactor - 2;

  async acquire(request: LockRequest, stop: Stop, isTry: boolean): Promise<Granted | undefined> {
    const {poll, retryForMs, retryWaitForMs} = this.settings;
    const {waitMs} = request.settings;
    const began = monotonic();
    const isOnce = isTry || waitMs < 1;
    let until = began + Math.min(retryForMs, isOnce ? Infinity : waitMs); // a majority has to have replied
    const permitted = new Set<Server>();
    for (let attempts = 0; ; attempts++) {
      const votes = new Votes(this, request);
      const tally = await votes.attempt(stop, permitted);
      if (stop.problem) throw stop.problem.reason;
      if (tally.isGranted) return votes.grant;
      if (tally.isRefused && isTry) return undefined;
      if (tally.isRefused) until = Math.min(monotonic() + retryWaitForMs, began + waitMs);
      const pause = isOnce || tally.isFinal ? undefined : poll(attempts);
      await stop.sleep(Math.min(pause ?? 0, until - monotonic()));
      if (pause === undefined || (monotonic() >= until && !stop.problem)) throw tally.missed(request.keys, monotonic() - began);
    }
  }

  async adopt(request: LockRequest): Promise<Granted | undefined> {
    const {mode, settings} = request;
    const votes = new Votes(this, request);
    const {isGranted} = await votes.decide((vote, until) => votes.take(vote, votes.owner.adopt(mode, settings), until), settings.ttlMs);
    return isGranted ? votes.grant : undefined;
  }

  async release(request: LockRequest): Promise<number> { return (await new Votes(this, request).releaseAll()).granted; }
}

/** What the nodes gave one owner: the keeper of a hold. */
class Votes implements Keeper {
  readonly owner: Owner;
  /** Before the first command was sent. */
  readonly sent = now();
  readonly #votes: readonly Vote[];
  /** Nothing that asks for the lock follows the end: a node that has restarted meanwhile would give it, and nobody would release it. */
  #isEnding = false;

  constructor(readonly quorum: QuorumBackend, readonly request: LockRequest) {
    this.owner = new Owner(request.keys, quorum.settings.prefix, request.settings.token);
    this.#votes = quorum.servers.map((server) => ({server, fence: 0, asked: Promise.resolve()}));
  }

  get grant(): Granted { return {keeper: this, owner: this.owner, answer: {number: 0, sent: this.sent}}; }

  get fences(): readonly number[] { return this.#votes.map(({fence}) => fence); }

  /**
   * Asks all nodes at once. Gives the replies that came until they were enough, or within the time for nodes, or until the call
   * was stopped. A node that has not replied by then may still do so.
   */
  async ask(isEnough: (tally: Tally) => boolean, question: Question, ttlMs = this.request.settings.ttlMs, stop = new Stop(new Set())): Promise<Tally> {
    const {nodeTimeoutMs, retryForMs} = this.quorum.settings;
    const timeoutMs = Math.min(nodeTimeoutMs ?? Math.min(Math.max(ttlMs / 20, 50), retryForMs), ttlMs * 0.9);
    const until = monotonic() + timeoutMs;
    const names = this.#votes.map(({server}) => server.transport.topology.name);
    const tally = new Tally(names.map((node) => ({node, granted: false, error: new SilentError()})));
    let left = names.length;
    const enough = new Promise<void>((resolve) => this.#votes.forEach(async (vote, at) => {
      const reply = await question(vote, until).then((granted) => ({granted}), (error: unknown) => ({granted: false, error}));
      tally.nodes[at] = {node: names[at]!, ...reply};
      left -= 1;
      if (left === 0 || isEnough(tally)) resolve();
    }));
    await stop.wait(enough, timeoutMs + 10).catch(() => {}); // a node's own limit comes first
    return new Tally([...tally.nodes]);
  }

  /** Asks all nodes at once, and rejects if neither a majority grants nor a majority refuses. */
  async decide(question: Question, ttlMs?: number): Promise<Tally> {
    const began = monotonic();
    const tally = await this.ask(({isCertain}) => isCertain, question, ttlMs);
    if (!tally.isCertain) throw tally.missed(this.owner.names, monotonic() - began);
    return tally;
  }

  /** Sends a node a command that gives a fence or 0, when it has replied to the one before. */
  async take(vote: Vote, call: Call, until: number): Promise<boolean> {
    const reply = vote.asked.then(() => {
      if (this.#isEnding || monotonic() >= until) throw new SilentError();
      return vote.server.number(call, until);
    });
    vote.asked = reply.catch(() => {});
    try {
      vote.fence = (await reply).number;
    } catch (error) {
      if (!["WRONGMODE", "NOTHELD", "WRONGTYPE"].includes(codeOf(error))) throw error;
      vote.fence = 0;
    }
    return vote.fence > 0;
  }

  /**
   * Asks all nodes once for the lock, those that are not in `permitted` first for its minimum hold time. Without a majority in
   * time it ends what they gave.
   */
  async attempt(stop: Stop, permitted: Set<Server>): Promise<Tally> {
    const {keys, mode, settings} = this.request;
    const call = this.owner.lock(mode, settings);
    const isEnough = (tally: Tally): boolean => tally.isGranted || (settings.failFast && tally.isLost);
    const tally = await this.ask(isEnough, async (vote, until) => {
      if (!permitted.has(vote.server)) await vote.server.permit(keys, settings, until);
      permitted.add(vote.server);
      return this.take(vote, call, until);
    }, settings.ttlMs, stop);
    const isInTime = now() - this.sent < this.quorum.counted(settings.ttlMs);
    if (tally.isGranted && isInTime && !stop.problem) return tally; // the other nodes may still grant
    const released = this.releaseAll();
    if (!stop.problem) await released; // because the next attempt would find what this one holds
    const error = new Error("granted, and released since there was no majority");
    return new Tally(tally.nodes.map((reply) => (reply.granted ? {...reply, granted: false, error} : reply)));
  }

  /**
   * Counts the nodes that still have the hold with the fence that they gave. All are sent the command that asks for the lock:
   * for the same owner token it extends the hold, and it brings a node back that has lost it.
   */
  async extend(owner: Owner, ttlMs: number, _: number, wanted: Settings): Promise<Answer> {
    const call = {...owner.lock(this.request.mode, {...wanted, ttlMs}), reserved: true};
    const sent = now();
    const tally = await this.decide(async (vote, until) => {
      await vote.asked;
      const {fence} = vote;
      // During its grace a node gives no new hold, so it has not got this one.
      const isHeld = await this.take(vote, call, until).catch((error: unknown) => { if (codeOf(error) !== "GRACE") throw error; });
      return Boolean(isHeld) && vote.fence === fence;
    }, ttlMs);
    return {number: tally.isGranted ? tally.granted : 0, sent};
  }

  async end(owner: Owner, _: number, afterMs: number): Promise<boolean> {
    this.#isEnding = true;
    return (await this.decide(afterMs > 0 ? ({server, fence}) => server.end(owner, fence, afterMs) : this.#release)).isGranted;
  }

  endLater(): void { void this.releaseAll(); }

  releaseAll(): Promise<Tally> {
    this.#isEnding = true;
    return this.ask(() => false, this.#release);
  }

  /** Ends the hold at one node, in the background if the node does not reply in time. */
  readonly #release: Question = async (vote, until) => {
    const call = this.owner.end(vote.fence);
    vote.fence = 0;
    try {
      return (await vote.server.number(call, until)).number > 0;
    } catch (error) {
      if (passes(error)) vote.server.deliver([call], REFUSE_MS);
      throw error;
    }
  };
}
