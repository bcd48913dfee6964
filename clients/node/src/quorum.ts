// A quorum is N `Locks` and arithmetic: majority, drift, validity, release everywhere.

import {errorOf, isTemporary, mayBeExecuted, type Answer} from "./answers.js";
import type {Client} from "./base.js";
import {now} from "./clock.js";
import {acquire, refresh, releaseInAnyMode, type Command, type Key, type Mode} from "./commands.js";
import {positive} from "./durations.js";
import {NotHeldError, QuorumMissedError, TimedOutError, textOf} from "./errors.js";
import {AnyHold, Held} from "./hold.js";
import type {Hooks} from "./hooks.js";
import {majority, validUntil, type Drift, type Told} from "./lease.js";
import type {HoldOptions, ReadOptions, Wanted} from "./options.js";
import {Strategy} from "./polling.js";
import {Acquirer} from "./request.js";
import {answerTo} from "./servers.js";
import {CALLER_WAITS_MS, Shared} from "./shared.js";
import type {Stop} from "./stop.js";
import {Watchdog} from "./watchdog.js";

// What a clock may drift whatever the ttl, in ms.
const LEAST_DRIFT_MS = 2;

const LEAST_NODE_TIMEOUT_MS = 50;
const NODE_TIMEOUT_PART = 1 / 20;

// A renewal begins after a third of the ttl. A node may take as long again, so that there is time for another.
const MOST_OF_TTL = 1 / 3;

/** The options of `Quorum`, and defaults for its requests. */
export interface QuorumOptions extends Omit<ReadOptions, "minReplicas" | "replicaTimeoutMs"> {
  /** How long a node may take for an answer. By default a twentieth of the ttl, from 50 ms to 3 s; at most a third of it. */
  nodeTimeoutMs?: number | undefined;
  /** Which part of the ttl the clocks may drift. By default 0.01. */
  driftFactor?: number | undefined;
  /** An attempt ends as soon as the majority cannot be reached. */
  failFast?: boolean | undefined;
  /** How it asks again when it is refused. */
  poll?: Strategy | undefined;
  hooks?: Hooks | undefined;
}

/** What the nodes have answered to one question: a number above zero, 0, or an error. */
class Tally {
  readonly errors: unknown[] = [];
  /** How many said yes. */
  given = 0;
  private refused = 0;
  private readonly words: Record<string, string>;

  constructor(private readonly nodes: readonly string[]) {
    this.words = Object.fromEntries(nodes.map((node) => [node, "not waited for"]));
  }

  add(node: string, answer: Answer): void {
    this.words[node] = answer instanceof Error ? textOf(answer) : answer ? "yes" : "no";
    if (answer instanceof Error) this.errors.push(answer);
    else if (answer) this.given += 1;
    else this.refused += 1;
  }

  get hasMajority(): boolean { return this.given >= majority(this.nodes.length); }

  /** Whether so many answered 0 that there can be no majority, whatever the others say. */
  get isRefused(): boolean { return this.refused > this.nodes.length - majority(this.nodes.length); }

  /** Whether the majority cannot be reached any more. */
  get isHopeless(): boolean { return this.refused + this.errors.length > this.nodes.length - majority(this.nodes.length); }

  missed(what: string): QuorumMissedError { return new QuorumMissedError(`${what} has no majority in time`, this.words); }
}

/** What the token of a quorum's hold has at one node. When it is gone, the node is asked for it anew. */
class NodeHold extends Held {
  /** When the last command was sent to which the node said that it has the hold, and that to which it did not. */
  confirmedAt = -Infinity;
  goneAt = -Infinity;
  /** Whether the node is being asked for the hold. */
  isAsked = false;
  private unanswered = false; // whether a copy of the request had no answer

  constructor(readonly name: string, shared: Shared, wanted: Wanted, token: string, drift: Drift) {
    super(shared, wanted, token, drift);
  }

  /** Asks for the hold: its fence, 0, or an error. `sent` is a moment before. */
  async grant(sent: number, until: number): Promise<Answer> {
    this.isAsked = true;
    try {
      if (!this.shared.isPermitted(this.wanted)) await this.shared.checkPermission(this.wanted, until);
      return this.ended ? 0 : await this.get(acquire(this.wanted, this.token), sent, until);
    } finally {
      this.isAsked = false;
    }
  }

  /** The fence of a hold that another process took; 0 when there is none; or an error. */
  refresh(sent: number, until: number): Promise<Answer> {
    return this.get(refresh(this.keys, this.wanted.mode, this.token, this.ttlMs), sent, until);
  }

  /** 1 when the node has the hold, for at least `ttlMs` from `sent` on; 0 when it is gone. */
  async extend(sent: number, until: number, ttlMs: number): Promise<Answer> {
    return this.lease.isHeld ? this.renew(sent, until, ttlMs) : 0;
  }

  /** The quorum missed its majority, or was given up. */
  async giveUpOrRelease(): Promise<void> {
    this.ended = true;
    await this.giveUp(CALLER_WAITS_MS);
  }

  override told(told: Told, sent: number): void {
    if (told === "held") this.confirmedAt = sent;
    if (told === "gone") {
      this.renewAt = Infinity;
      this.goneAt = sent;
    }
    super.told(told, sent);
  }

  /** The fence that a command gave, 0, or an error. */
  private async get(command: Command, sent: number, until: number): Promise<Answer> {
    this.lease.inDoubt = true; // until it is answered; who gives up meanwhile must not leave it
    const answer = await answerTo(this.shared.servers, this.wanted.key, command, until);
    this.unanswered ||= mayBeExecuted(answer);
    this.lease.inDoubt = this.unanswered;
    if (typeof answer === "number" && answer > 0) this.granted(answer, this.wanted.mode, sent, this.ttlMs);
    else if (answer instanceof Error) this.owner?.renewalFailed(answer);
    this.told(this.lease.isHeld ? "held" : "gone", sent);
    // Nobody waits for it any more.
    if (this.ended && !this.owner?.handedOver) void this.giveUpOrRelease();
    return answer;
  }
}

/** A lock that is held on the majority of the servers. `Quorum` makes it; `release` ends it. */
export class QuorumHold extends AnyHold {
  constructor(private readonly quorum: Quorum, wanted: Wanted, private readonly nodes: readonly NodeHold[]) {
    super(wanted, nodes, now());
  }

  /** The fence of each node that granted it, by address. Those of different nodes cannot be compared. */
  get fences(): Readonly<Record<string, number>> {
    const held = this.nodes.filter((node) => node.lease.isHeld);
    return Object.fromEntries(held.map((node) => [node.name, node.lease.fence ?? 0]));
  }

  override told(told: Told): void {
    super.told(told);
    this.lookAgain();
    // One that has lost it is asked to grant it anew, once a majority is known to have had it since then.
    for (const one of this.nodes) {
      if (one.lease.isHeld || one.isAsked || this.hasEnded) continue;
      const having = this.nodes.filter((other) => other.lease.isHeld && other.confirmedAt >= one.goneAt).length;
      if (having < majority(this.nodes.length)) continue;
      const sent = now();
      one.grant(sent, sent + this.quorum.timeoutMs(this.ttlMs)).catch(() => {}); // after the next renewal again
    }
  }

  protected async releaseAtServers(_held: boolean, moment: number): Promise<boolean> {
    const until = moment + this.quorum.timeoutMs(this.ttlMs);
    const tally = await tallyOf(this.nodes, async (node) => Number(await node.release(moment, until)), (so) => so.hasMajority || so.isHopeless);
    if (!tally.hasMajority && !tally.isRefused) throw tally.missed(`the release of ${this.wanted.names}`);
    return tally.hasMajority;
  }

  protected async extendAtServers(ttlMs: number): Promise<void> {
    const sent = now();
    const until = sent + this.quorum.timeoutMs(ttlMs);
    const tally = await tallyOf(this.nodes, (node) => node.extend(sent, until, ttlMs), (so) => so.hasMajority || so.isRefused);
    this.check();
    if (!tally.hasMajority) throw tally.missed(`the extension of ${this.wanted.names}`);
  }
}

/**
 * Makes requests for locks that more than half of several independent servers must grant. It stays usable while a minority
 * of them is away. There is no one fence: where the lock protects something that can compare fences, one server with
 * replicas is the better choice.
 *
 * A node is named by its address. Nodes of one name also have their number in `clients`: `main (2)`.
 */
export class Quorum extends Acquirer<QuorumHold> {
  private readonly drift: Drift;
  private readonly failFast: boolean;
  private readonly poll: Strategy;
  private readonly nodeTimeoutMs: number | undefined;
  private readonly nodes: ReadonlyMap<string, Shared>;

  constructor(clients: readonly Client[], options: QuorumOptions = {}) {
    const {nodeTimeoutMs, driftFactor = 0.01, failFast = false, poll, hooks, ...defaults} = options;
    refuse(defaults);
    if (clients.length === 0) throw new RangeError("a quorum needs servers");
    const watchdog = new Watchdog();
    const shareds = clients.map((client) => new Shared(client, {hooks}, watchdog));
    super(shareds, defaults);
    const names = shareds.map((shared) => shared.servers.name);
    const isTwice = (name: string): boolean => names.indexOf(name) !== names.lastIndexOf(name);
    this.nodes = new Map(names.map((name, at) => [isTwice(name) ? `${name} (${at + 1})` : name, shareds[at]!]));
    this.nodeTimeoutMs = nodeTimeoutMs === undefined ? undefined : positive("nodeTimeoutMs", nodeTimeoutMs);
    this.drift = {part: driftFactor, ms: LEAST_DRIFT_MS};
    this.failFast = failFast;
    this.poll = poll ?? Strategy.exponential(20, 250);
  }

  /** `QuorumMissedError` when too many nodes did not answer. */
  async adopt(keys: Key | readonly Key[], token: string, mode: Mode, options?: HoldOptions): Promise<QuorumHold> {
    const wanted = this.wanted(keys, mode, {...options, token});
    this.shared.checkOpen();
    const nodes = this.nodeHolds(wanted);
    const sent = now();
    const until = sent + this.timeoutMs(wanted.options.ttlMs);
    const tally = await tallyOf(nodes, (node) => node.refresh(sent, until), () => false);
    if (tally.hasMajority) return new QuorumHold(this, wanted, nodes);
    if (tally.isRefused) throw new NotHeldError(`the token does not hold ${wanted.names}`);
    throw tally.missed(`the adoption of ${wanted.names}`);
  }

  /** It waits for all nodes, for each at most its time-out. One that does not answer in time is not counted. */
  async release(keys: Key | readonly Key[], token: string): Promise<number> {
    this.shared.checkOpen();
    const wanted = this.wanted(keys, "write", {token});
    const until = now() + this.timeoutMs(wanted.options.ttlMs);
    const command = releaseInAnyMode(wanted.keys, token);
    return (await tallyOf(this.nodeHolds(wanted), (node) => answerTo(node.shared.servers, wanted.key, command, until), () => false)).given;
  }

  /** How long a node may take for an answer about a hold with this ttl. */
  timeoutMs(ttlMs: number): number {
    const chosen = this.nodeTimeoutMs
      ?? Math.min(Math.max(ttlMs * NODE_TIMEOUT_PART, LEAST_NODE_TIMEOUT_MS), this.shared.retryForMs);
    return Math.min(chosen, ttlMs * MOST_OF_TTL);
  }

  /** Attempts with a token each, with pauses in between. */
  protected async attempt(wanted: Wanted, once: boolean, stop: Stop): Promise<QuorumHold | undefined> {
    const {waitMs} = wanted.options;
    const {retryForMs, retryWaitForMs} = this.shared;
    const end = now() + waitMs;
    let outageEnd = now() + retryForMs; // until when it goes on without a majority of answers
    const pauses = (once || waitMs === 0 ? Strategy.none() : this.poll).pauses();
    for (;;) {
      const made = await this.try(wanted, stop);
      if (made instanceof QuorumHold) return made;
      stop.check();
      if (made.isRefused) outageEnd = now() + retryWaitForMs;
      const pause = pauses.next();
      if (!pause.done && now() + pause.value < Math.min(end, outageEnd)) {
        await stop.sleep(pause.value);
        continue;
      }
      const error = made.missed(`the lock ${wanted.names}`);
      if (!made.isRefused) throw error;
      if (!once) throw new TimedOutError(`${wanted.names}: the lock is not free`, error);
      return undefined;
    }
  }

  /** A node that is not waited for any more may still grant: then it belongs to the hold, or is released. */
  private async try(wanted: Wanted, stop: Stop): Promise<QuorumHold | Tally> {
    const nodes = this.nodeHolds(wanted);
    const sent = now();
    const until = sent + this.timeoutMs(wanted.options.ttlMs);
    const isCertain = (tally: Tally): boolean => tally.hasMajority || (this.failFast && tally.isHopeless);
    let hold: QuorumHold | undefined;
    try {
      const tally = await stop.wait(tallyOf(nodes, (node) => node.grant(sent, until), isCertain));
      if (tally.hasMajority && now() < validUntil(this.drift, sent, wanted.options.ttlMs)) {
        return (hold = new QuorumHold(this, wanted, nodes));
      }
      for (const error of tally.isHopeless ? tally.errors : []) {
        const told = errorOf(error, wanted.names);
        if (!isTemporary(error) && told !== error) throw told;
      }
      return tally;
    } finally {
      // Those that do not answer are asked in the background.
      if (hold === undefined) await Promise.all(nodes.map((node) => node.giveUpOrRelease()));
    }
  }

  protected override wanted(keys: Key | readonly Key[], mode: Mode, options?: ReadOptions): Wanted {
    refuse(options ?? {});
    return super.wanted(keys, mode, options);
  }

  private nodeHolds(wanted: Wanted): NodeHold[] {
    const token = wanted.newToken();
    return [...this.nodes].map(([name, shared]) => new NodeHold(name, shared, wanted, token, this.drift));
  }
}

/** What the nodes answer, until the outcome is certain. They are asked at the same time, in any order. */
function tallyOf(nodes: readonly NodeHold[], question: (node: NodeHold) => Promise<Answer>, isCertain: (tally: Tally) => boolean): Promise<Tally> {
  const tally = new Tally(nodes.map((node) => node.name));
  let left = nodes.length;
  const inAnyOrder = nodes.map((node) => ({node, at: Math.random()})).sort((one, other) => one.at - other.at);
  return new Promise((resolve) => {
    for (const {node} of inAnyOrder) {
      const took = (answer: Answer): void => {
        left -= 1;
        tally.add(node.name, answer);
        if (left === 0 || isCertain(tally)) resolve(tally);
      };
      question(node).then(took, took);
    }
  });
}

/** Throws `TypeError` for options that a quorum does not have. */
function refuse(options: object): void {
  for (const name of ["minReplicas", "replicaTimeoutMs"]) {
    if (name in options) throw new TypeError(`a quorum has no option ${name}`);
  }
}
