// `Locks`: made once from a client of a base library. It makes requests, adopts, releases by token, and looks.

import {Acquisition, CALL_OVERDUE_MS, type Granted} from "./acquisition.js";
import {NoAnswer, problemsIn} from "./answers.js";
import type {Client} from "./base.js";
import {now} from "./clock.js";
import * as commands from "./commands.js";
import type {Command, Key, Mode} from "./commands.js";
import {NotHeldError, TooFewReplicasError} from "./errors.js";
import {Held, Hold} from "./hold.js";
import {SERVER_DRIFT, isPrompt, validUntil} from "./lease.js";
import {keysOf, type HoldOptions, type LocksOptions, type Wanted} from "./options.js";
import {Strategy} from "./polling.js";
import {Acquirer} from "./request.js";
import {ask} from "./servers.js";
import {ANSWER_OVERDUE_MS, CALLER_WAITS_MS, Shared, type Answered} from "./shared.js";
import {lockInfo, queueInfos, type LockInfo, type QueueInfo} from "./status.js";
import type {Stop} from "./stop.js";

/**
 * Makes requests for locks: one for a program, from a client of node-redis or ioredis. `Locks` opens connections of its own
 * with the options of the client, which stays as it is.
 */
export class Locks extends Acquirer<Hold> {
  constructor(client: Client, options: LocksOptions = {}) {
    const {waiting = "notify", retryForMs, retryWaitForMs, hooks, ...defaults} = options;
    const shared = new Shared(client, {retryForMs, retryWaitForMs, hooks});
    super([shared], defaults);
    if (waiting instanceof Strategy) shared.strategy = waiting;
    else if (waiting === "block") shared.blocks = true;
    else if (waiting !== "notify") throw new TypeError("waiting must be 'notify', 'block', or a Strategy");
  }

  async adopt(keys: Key | readonly Key[], token: string, mode: Mode, options?: HoldOptions): Promise<Hold> {
    const wanted = this.wanted(keys, mode, {...options, token});
    const held = new Held(this.shared, wanted, token, SERVER_DRIFT);
    const refresh = commands.refresh(held.keys, mode, token, held.ttlMs);
    const {answers, sent} = await this.ask(wanted.names, wanted.key, [refresh]);
    const fence = Number(answers[0]);
    if (!fence) throw new NotHeldError(`the token does not hold ${wanted.names} for ${mode}`);
    held.granted(fence, mode, sent, held.ttlMs);
    return new Hold(wanted, held, now());
  }

  /** When it had to be sent again, 0 can also mean that the first attempt did it. */
  async release(keys: Key | readonly Key[], token: string): Promise<number> {
    const all = keysOf(keys);
    const {answers} = await this.ask(commands.namesOf(all), all[0]!, [commands.releaseInAnyMode(all, token)]);
    return Number(answers[0]);
  }

  /** Who holds the lock and who waits for it. */
  async info(key: Key): Promise<LockInfo> {
    return lockInfo((await this.ask(String(key), key, [commands.info(key)])).answers[0]);
  }

  /** The locks for which somebody waits, the longest wait first. In a cluster those of all nodes. */
  async queues(): Promise<QueueInfo[]> {
    const end = now() + this.shared.retryForMs;
    const queuesAt = async (key: Key): Promise<QueueInfo[]> =>
      queueInfos((await this.ask("the queues", key, [commands.queues()], end)).answers[0]);
    const here = await queuesAt("queues"); // by then the nodes are known
    const others = await Promise.all(this.shared.servers.keysElsewhere("queues").map(queuesAt));
    return [here, ...others].flat().sort((one, other) => other.longestWaitMs - one.longestWaitMs);
  }

  protected attempt(wanted: Wanted, once: boolean, stop: Stop, began: number): Promise<Hold | undefined> {
    return new NewHold(this.shared, wanted, once, stop, began).hold();
  }

  private ask(names: string, key: Key, words: readonly Command[], end = now() + this.shared.retryForMs): Promise<Answered> {
    this.shared.checkOpen();
    return this.shared.insist(names, key, words, end);
  }
}

/** The acquisition of a new hold, with the token that is made for it. */
class NewHold extends Acquisition {
  private readonly held: Held;

  constructor(shared: Shared, wanted: Wanted, private readonly refusalIsAnswer: boolean, stop: Stop, began: number) {
    const {waitMs} = wanted.options;
    const held = new Held(shared, wanted, wanted.newToken(), SERVER_DRIFT);
    super(shared, wanted, commands.acquire(wanted, held.token), waitMs, refusalIsAnswer || waitMs === 0, stop, began);
    this.held = held;
  }

  async hold(): Promise<Hold | undefined> {
    const {held, wanted} = this;
    let hold: Hold | undefined;
    try {
      const granted = await this.granted();
      if (granted === undefined && !this.refusalIsAnswer) throw this.timedOut("the lock is not free");
      this.forget();
      if (granted === undefined) return undefined;
      this.stop.check();
      held.lease.inDoubt = this.unanswered;
      held.granted(granted.fence, wanted.mode, granted.sent, held.ttlMs);
      return (hold = new Hold(wanted, held, granted.received));
    } finally {
      if (hold === undefined) { // also what was refused: a copy before may come late
        this.forget();
        held.lease.inDoubt = this.inDoubt;
        await held.giveUp(Math.min(CALLER_WAITS_MS, this.leftToGiveUpMs));
      }
    }
  }

  protected override async attempt(): Promise<Granted | undefined> {
    if (!this.shared.isPermitted(this.wanted)) {
      await this.shared.checkPermission(this.wanted, this.limit + ANSWER_OVERDUE_MS, this.stop);
      this.heard();
    }
    const granted = await super.attempt();
    this.held.lease.fence = granted?.fence;
    const {minReplicas, ttlMs} = this.wanted.options;
    if (granted === undefined || (minReplicas === 0 && isPrompt(granted.sent, granted.received, ttlMs))) return granted;
    return this.extended(granted.fence);
  }

  /** Extends it before it is handed out. When it is over by then, it is asked for again. */
  private async extended(fence: number): Promise<Granted> {
    const {shared, stop} = this;
    const {keys, names, options: {ttlMs, minReplicas, replicaTimeoutMs}} = this.wanted;
    // The replicas have it when they have what this connection wrote. To the same millisecond an extension would write
    // nothing, and any replica would do.
    const words = [commands.extend(keys, this.held.token, minReplicas > 0 ? ttlMs + 1 : ttlMs, fence)];
    if (minReplicas > 0) words.push(commands.waitForReplicas(minReplicas, replicaTimeoutMs));
    const look = minReplicas > 0 ? async (): Promise<number> => Infinity : undefined;
    const sent = now();
    const until = minReplicas > 0 ? sent + replicaTimeoutMs + CALL_OVERDUE_MS : Math.max(sent, this.limit) + ANSWER_OVERDUE_MS;
    const answers = await ask(shared.servers, this.wanted.key, words, until, {look, stop});
    const [problem] = problemsIn(answers);
    if (problem !== undefined) throw problem;
    const received = now();
    if (!answers[0] || received >= validUntil(SERVER_DRIFT, sent, ttlMs)) throw new NoAnswer("the hold was over before the answer came", true);
    if (Number(answers[1] ?? 0) < minReplicas) throw new TooFewReplicasError(`${answers[1]} of ${minReplicas} replicas have ${names}`);
    return {fence, sent, received};
  }
}
