// Locks on several independent servers: N servers, and arithmetic. The algorithm is that of redsync and of the Redis
// documentation ("Distributed Locks with Redis").

import {Acquisition, type Step} from "./acquisition.js";
import {monotonic, now} from "./clock.js";
import {QuorumMissedError, TimedOutError, duration, invalid, type NodeReply, type SlockError} from "./errors.js";
import type {Keeper} from "./hold.js";
import type {Settings} from "./options.js";
import {Owner, codeOf, explain, passes} from "./protocol.js";
import {notHeld, type Backend, type LockRequest} from "./request.js";
import type {Answer, Extension, Server} from "./server.js";
import type {Stop} from "./stop.js";
import {SilentError, type Call} from "./transport.js";

/** The replies of all nodes. Those that have not replied have a `SilentError`. */
class Tally {
  readonly nodes: NodeReply[];

  constructor(servers: readonly Server[]) {
    this.nodes = servers.map(({transport}) => ({node: transport.topology.name, granted: false, error: new SilentError()}));
  }

  /** A majority granted. */
  get isGranted(): boolean { return this.granted > this.#half; }
  /** Others have the lock at so many nodes that there can be no majority, whatever the others say. */
  get isRefused(): boolean { return this.#count(({granted, error}) => !granted && error === undefined) > this.#minority; }
  /** A majority is out of reach. */
  get isLost(): boolean { return this.#count(({granted, error}) => !granted && !(error instanceof SilentError)) > this.#minority; }
  /** A majority of nodes gives errors that last. */
  get isFinal(): boolean { return this.#count(({error}) => error !== undefined && !passes(error)) > this.#half; }
  get isCertain(): boolean { return this.isGranted || this.isRefused; }
  get granted(): number { return this.#count(({granted}) => granted); }

  /** The error of a call that got no majority. */
  missed(keys: readonly string[], waitedMs: number): SlockError {
    const text = `no majority of ${this.nodes.length} nodes after ${duration(waitedMs)}`;
    const nodes = this.nodes.map(({error, ...reply}) => (error === undefined ? reply : {...reply, error: explain(error, [])}));
    return this.isRefused ? new TimedOutError(text, keys, [], nodes) : new QuorumMissedError(text, keys, nodes);
  }

  get #half(): number { return Math.floor(this.nodes.length / 2); }
  get #minority(): number { return Math.floor((this.nodes.length - 1) / 2); }
  #count(is: (reply: NodeReply) => boolean): number { return this.nodes.filter(is).length; }
}

export class Quorum implements Backend {
  constructor(readonly servers: readonly Server[], readonly settings: Settings) {
    const {driftFactor} = settings;
    if (servers.length === 0 || !(driftFactor >= 0 && driftFactor < 1)) {
      throw invalid(`a quorum needs clients, and a drift factor of at least 0 and less than 1, not ${servers.length} and ${driftFactor}`);
    }
  }

  readonly counted = (ttlMs: number): number => ttlMs - ttlMs * this.settings.driftFactor - 2;

  check({settings: {ttlMs}}: LockRequest): void {
    if (this.counted(ttlMs) <= 0) throw invalid(`the ttl must be above 2 ms and the drift, not ${ttlMs}`);
  }

  async acquire(request: LockRequest, stop: Stop, isTry: boolean): ReturnType<Backend["acquire"]> {
    const acquisition = new QuorumAcquisition(this, request, stop, isTry);
    const grant = await acquisition.run();
    const {votes} = acquisition;
    return grant && {keeper: votes!, owner: votes!.owner, grant};
  }

  async adopt(request: LockRequest): ReturnType<Backend["adopt"]> {
    const votes = new Votes(this, request);
    const {owner, sent} = votes;
    const {mode, settings: {ttlMs}} = request;
    const tally = await votes.ask(ttlMs, () => false, (vote, until) => vote.take(owner.adopt(mode, ttlMs), until));
    if (tally.isGranted) return {keeper: votes, owner, grant: {fence: 0, from: sent}};
    throw tally.isRefused ? notHeld(request) : tally.missed(request.keys, now() - sent);
  }

  async release(request: LockRequest): Promise<number> {
    const votes = new Votes(this, request);
    return (await votes.ask(request.settings.ttlMs, () => false, votes.releaseAt)).granted;
  }
}

class QuorumAcquisition extends Acquisition {
  votes: Votes | undefined;
  #tally: Tally | undefined;

  constructor(readonly quorum: Quorum, readonly request: LockRequest, stop: Stop, isTry: boolean) {
    super(stop, quorum.settings, request.settings, isTry, quorum.settings.poll);
  }

  protected override async failed(): Promise<SlockError> {
    this.#tally ??= new Tally(this.quorum.servers);
    return this.#tally.missed(this.request.keys, monotonic() - this.began);
  }

  protected override async send(): Promise<Step | undefined> {
    const votes = this.votes = new Votes(this.quorum, this.request);
    const tally = await votes.attempt(this.stop);
    this.#tally = tally;
    this.replied();
    if (tally.isGranted) return {fence: 0, from: votes.sent};
    if (tally.isRefused && this.isTry) return undefined;
    if (this.isOnce || tally.isFinal) throw await this.failed();
    if (tally.isRefused) this.contact = monotonic();
    else this.last = new SilentError();
    return "poll";
  }
}

/** What one node gave. */
class Vote {
  fence = 0;
  /** Whether a command that asks for the lock has no reply yet. */
  #isAsked = false;

  constructor(readonly server: Server) {}

  /** Sends the node a command that gives a fence or 0. */
  async take(call: Call, until: number): Promise<boolean> {
    if (this.#isAsked) throw new SilentError();
    this.#isAsked = true;
    try {
      this.fence = (await this.server.number(call, until)).number;
      return this.fence > 0;
    } catch (error) {
      if (!["WRONGMODE", "NOTHELD", "WRONGTYPE"].includes(codeOf(error))) throw error;
      this.fence = 0;
      return false;
    } finally {
      this.#isAsked = false;
    }
  }
}

/** What the nodes gave one owner: the keeper of a hold. */
class Votes implements Keeper {
  readonly owner: Owner;
  /** Before the first command was sent. */
  readonly sent = now();
  readonly #votes: readonly Vote[];

  constructor(readonly quorum: Quorum, readonly request: LockRequest) {
    this.owner = new Owner(request.keys, quorum.settings.prefix, request.settings.token);
    this.#votes = quorum.servers.map((server) => new Vote(server));
  }

  get fences(): readonly number[] { return this.#votes.map(({fence}) => fence); }

  /**
   * Asks all nodes at once. Gives the replies that came until they were enough, or within the time for nodes. A node that has
   * not replied by then may still do so.
   */
  async ask(
    ttlMs: number, isEnough: (tally: Tally) => boolean, node: (vote: Vote, until: number) => Promise<boolean>, stop?: Stop,
  ): Promise<Tally> {
    const {nodeTimeoutMs, retryForMs} = this.quorum.settings;
    const timeoutMs = Math.min(nodeTimeoutMs ?? Math.min(Math.max(ttlMs / 20, 50), retryForMs), ttlMs * 0.9);
    const until = monotonic() + timeoutMs;
    const tally = new Tally(this.quorum.servers);
    let isOver = false;
    const enough = new Promise<void>((resolve) => {
      let left = this.#votes.length;
      const timer = setTimeout(() => setImmediate(resolve), timeoutMs); // what has arrived by then counts
      const note = (at: number, reply: NodeReply): void => {
        if (isOver) return;
        tally.nodes[at] = reply;
        left -= 1;
        if (left > 0 && !isEnough(tally)) return;
        clearTimeout(timer);
        resolve();
      };
      this.#votes.forEach((vote, at) => {
        const {node: name} = tally.nodes[at]!;
        node(vote, until).then((granted) => note(at, {node: name, granted}), (error: unknown) => note(at, {node: name, granted: false, error}));
      });
    });
    try {
      await (stop ? stop.wait(enough) : enough);
    } finally {
      isOver = true;
    }
    return tally;
  }

  /** Asks all nodes once for the lock. Without a majority in time it ends what they gave. */
  async attempt(stop: Stop): Promise<Tally> {
    const {settings: {failFast}} = this.quorum;
    const {mode, settings} = this.request;
    const call = this.owner.lock(mode, settings);
    const isEnough = (tally: Tally): boolean => tally.isGranted || (failFast && tally.isLost);
    let tally: Tally;
    try {
      tally = await this.ask(settings.ttlMs, isEnough, (vote, until) => vote.take(call, until), stop);
    } catch (error) {
      void this.ask(settings.ttlMs, () => false, this.releaseAt);
      throw error;
    }
    if (tally.isGranted && now() - this.sent < this.quorum.counted(settings.ttlMs)) return tally; // the other nodes may still grant
    // It waits, because the next attempt would find what this one holds.
    await this.ask(settings.ttlMs, () => false, this.releaseAt);
    tally.nodes.forEach((reply, at) => {
      if (reply.granted) tally.nodes[at] = {...reply, granted: false, error: new Error("granted, and released since there was no majority")};
    });
    return tally;
  }

  /**
   * Counts the nodes that still have the hold with the fence that they gave. All are sent the command that asks for the lock:
   * for the same owner token it extends the hold, and it brings a node back that has lost it.
   */
  async extend(owner: Owner, {ttlMs, wanted}: Extension): Promise<Answer> {
    const call = {...owner.lock(this.request.mode, {...wanted, ttlMs}), reserved: true};
    const sent = now();
    const tally = await this.ask(ttlMs, ({isCertain}) => isCertain, async (vote, until) => {
      const before = vote.fence;
      try {
        await vote.take(call, until);
      } catch (error) {
        if (codeOf(error) === "GRACE") return false; // it gives no new hold, so it has not got this one
        throw error;
      }
      return before !== 0 && vote.fence === before;
    });
    if (!tally.isCertain) throw tally.missed(owner.names, now() - sent);
    return {number: tally.isGranted ? tally.granted : 0, sent, isAlone: true};
  }

  async end(owner: Owner, _: number, afterMs: number): Promise<boolean> {
    const node = afterMs > 0 ? (vote: Vote): Promise<boolean> => vote.server.end(owner, vote.fence, afterMs) : this.releaseAt;
    const sent = now();
    const tally = await this.ask(this.request.settings.ttlMs, ({isCertain}) => isCertain, node);
    if (!tally.isCertain) throw tally.missed(owner.names, now() - sent);
    return tally.isGranted;
  }

  endLater(): void { void this.ask(this.request.settings.ttlMs, () => false, this.releaseAt); }

  /** Ends the hold at one node, in the background if the node does not reply in time. */
  readonly releaseAt = async (vote: Vote, until: number): Promise<boolean> => {
    const call = this.owner.end(vote.fence);
    vote.fence = 0;
    try {
      return (await vote.server.number(call, until)).number > 0;
    } catch (error) {
      if (passes(error)) vote.server.ends.deliver(call);
      throw error;
    }
  };
}
