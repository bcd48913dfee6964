// The life of an acquisition, from its first command to a grant or an error. All commands of it have one owner token, so each
// may be sent again: it is the same hold, or the same request in its place in the queue.

import {monotonic, now} from "./clock.js";
import {SlockError, TimedOutError, duration} from "./errors.js";
import {lockInfo, type Holder} from "./info.js";
import type {Ticket} from "./listener.js";
import {exponential, type RequestSettings, type Settings, type Strategy} from "./options.js";
import {explain, passes, waiting, type Owner} from "./protocol.js";
import {afterErrors, moreTelling, noAnswer, type Server} from "./server.js";
import {LEFT, type Stop} from "./stop.js";
import {ReplyError, type Call} from "./transport.js";

/** How long a request waits for its message before it is sent again, in ms. So a lost message costs no more. */
const SEND_AGAIN_MS = 5_000;
/** How long a request waits on the server at most unless it is sent again. One whose program has died leaves after that. */
const SERVER_WAIT_MS = 15_000;
/** How long after the end of a wait a reply, and the message that says so, are still waited for. */
export const LATE_REPLY_MS = 500;
const LATE_MESSAGE_MS = 50;
/** How long the confirmation of a new channel is waited for before the request is sent. */
const SUBSCRIBE_MS = 100;
/** How long a call that has timed out waits to learn who has the lock. */
const HOLDERS_MS = 250;

/** What an acquisition gives. The validity counts from then, by `now`. */
export interface Grant {
  readonly fence: number;
  readonly from: number;
}

/** What follows an attempt without a grant: it is sent again at once, or after a pause, since it cannot wait by a message. */
export type Step = Grant | "again" | "poll";

/** The part of a ttl that counts for the validity: a clock that is slewed runs up to 500 ppm fast, on both sides. */
export const counted = (ttlMs: number): number => ttlMs - ttlMs / 1_000 - 1;

/** One use of a request, or a change of mode that may have to wait, at a server or a quorum. */
export abstract class Acquisition {
  /** Whether a refusal ends it. */
  readonly isOnce: boolean;
  protected readonly began = monotonic();
  /** Of the wait. */
  protected readonly deadline: number;
  /** When the server last replied. */
  protected contact: number | undefined;
  /** The last error that passes; undefined after a reply without one. */
  protected last: unknown;
  #failures = 0;
  #polls = 0;

  constructor(
    protected readonly stop: Stop, protected readonly settings: Settings, protected readonly wanted: RequestSettings,
    protected readonly isTry: boolean, readonly polling: Strategy = (n) => exponential(20, 1_000, n),
  ) {
    this.isOnce = isTry || wanted.waitMs === 0;
    this.deadline = this.isOnce ? Infinity : this.began + wanted.waitMs;
  }

  /** Sends the request once, and waits for what comes of it. */
  protected abstract send(): Promise<Step | undefined>;

  /** The error of a call that is over, because others have the lock or without a reply. */
  protected abstract failed(isTimedOut: boolean): Promise<SlockError>;

  /** Sends the request until it is granted. `tryAcquire` gets undefined if others hold the lock. */
  async run(): Promise<Grant | undefined> {
    for (;;) {
      await this.#check();
      let pause: number | undefined = 0;
      try {
        const step = await this.send();
        if (typeof step !== "string") return step;
        if (step === "again") continue;
        pause = this.polling(this.#polls++);
      } catch (error) {
        if (error === LEFT) continue; // the check says why
        if (!passes(error)) throw error;
        this.last = moreTelling(this.last, error);
        pause = afterErrors(this.#failures++);
      }
      if (pause === undefined) throw await this.failed(this.last === undefined);
      await this.stop.sleep(Math.max(0, Math.min(pause, Math.min(this.limit, this.deadline) - monotonic())));
    }
  }

  /** Until when the server has to reply. */
  protected get limit(): number {
    const isWaiting = this.contact !== undefined && !this.isOnce;
    return isWaiting ? this.contact! + this.settings.retryWaitForMs : this.began + this.settings.retryForMs;
  }

  /** Notes a reply without an error. */
  protected replied(): void {
    this.last = undefined;
    this.#failures = 0;
  }

  /** Throws the error of an acquisition that has to end without a grant. */
  async #check(): Promise<void> {
    if (this.stop.problem) throw this.stop.problem.reason;
    const isOver = monotonic() >= this.deadline;
    if (isOver || (this.last !== undefined && monotonic() >= this.limit)) {
      throw await this.failed(isOver && this.last === undefined && this.contact !== undefined);
    }
  }
}

/** An acquisition at a server. */
export class ServerAcquisition extends Acquisition {
  /** A copy of it may be on its way to the server. */
  #isLoose = false;
  /** It waits on the server, or is held. */
  #isQueued = false;
  /** Others had the lock, so it waits by a message from now on. */
  #waits = false;
  #ticket: Ticket | undefined;
  /** Before the last copy was sent that was answered null, and how long the server lets that copy wait. */
  #sent = 0;
  #queueMs = 0;

  constructor(
    readonly server: Server, readonly owner: Owner, readonly request: Call, wanted: RequestSettings, stop: Stop, isTry = false,
  ) { super(stop, server.settings, wanted, isTry); }

  /** Whether something of it may be left on the server. */
  get isOpen(): boolean { return this.#isLoose || this.#isQueued; }

  override async run(): Promise<Grant | undefined> {
    try {
      return await super.run();
    } catch (error) {
      throw explain(error, this.owner.names);
    } finally {
      if (this.#ticket) this.server.listener.forget(this.#ticket);
    }
  }

  protected override async failed(isTimedOut: boolean): Promise<SlockError> {
    const {names} = this.owner;
    const waited = monotonic() - this.began;
    if (!isTimedOut) return noAnswer(names, waited, this.last);
    return new TimedOutError(`timed out after ${duration(waited)}`, names, await this.#holders());
  }

  protected override async send(): Promise<Step | undefined> {
    const {server, owner, stop} = this;
    const key = owner.keys[0]!;
    const channel = this.isOnce ? undefined : await this.#channel(key);
    const left = this.deadline - monotonic();
    const queueMs = Math.max(1, Math.min(SERVER_WAIT_MS, left));
    const call = channel ? waiting(this.request, queueMs, channel, this.#ticket!.tag) : this.request;
    const until = Math.min(this.limit, monotonic() + this.settings.retryForMs, this.deadline + LATE_REPLY_MS);
    const sent = now();
    // Until the reply is there, a copy may be on its way. The end of a token of the program's might end another hold of it,
    // so there a copy that the Redis client library may have sent does not count.
    const wasLoose = this.#isLoose;
    this.#isLoose = true;
    const {value, isRepeated} = await server.try(call, until, stop);
    this.#isLoose = wasLoose || (Boolean(isRepeated) && !owner.isGiven);
    this.contact = monotonic();
    if (value instanceof ReplyError) {
      if (channel && server.listener.failed(key, value)) return "again";
      throw value;
    }
    const fence = Number(value);
    if (fence > 0) return this.#confirm(fence, sent, false);
    this.replied();
    if (channel) {
      this.#isQueued = this.#waits = true;
      this.#sent = sent;
      this.#queueMs = queueMs;
      return this.#await();
    }
    if (this.isTry) return undefined;
    if (this.isOnce) throw await this.failed(true);
    const couldNotWait = this.#waits;
    this.#waits = true;
    return couldNotWait ? "poll" : "again";
  }

  /** The channel to wait by. A request that has not been refused waits only if there is one already. */
  async #channel(key: string): Promise<string | undefined> {
    const {name, isNew} = this.server.listener.channel(key, this.#waits);
    if (name) this.#ticket ??= this.server.listener.ticket(key);
    if (isNew) await this.#hear(SUBSCRIBE_MS);
    return name;
  }

  /** Waits for the message of a request that is in the queue. */
  async #await(): Promise<Step> {
    const again = Math.min(SEND_AGAIN_MS * (1 - Math.random() / 5), this.settings.retryWaitForMs / 4);
    const message = await this.#hear(Math.min(again, this.deadline - monotonic() + LATE_MESSAGE_MS));
    if (message === undefined || message === "again") return "again";
    if (message.error) throw message.error;
    if (message.fence > 0) return this.#confirm(message.fence, this.#sent, true);
    // The wait has run out on the server, which may be because no copy arrived in time. Before that, an operator has
    // withdrawn the request.
    this.#isQueued = false;
    if (now() - this.#sent < this.#queueMs) throw await this.failed(true);
    return "again";
  }

  async #hear(ms: number): ReturnType<Ticket["next"]> {
    try {
      return await this.stop.wait(this.#ticket!.next(ms));
    } finally {
      this.#ticket!.leave();
    }
  }

  /**
   * Makes sure of how long the hold is valid, and that enough replicas have it. The ttl began at a grant that may be long
   * ago, if a message told of it, and at a server that may not be the primary any more.
   */
  async #confirm(fence: number, from: number, byMessage: boolean): Promise<Step> {
    this.#isQueued = true;
    const {server, wanted} = this;
    const since = now() - from;
    const isSure = !byMessage || (since <= wanted.ttlMs / 3 && !server.transport.topology.hasFailover);
    if (wanted.minReplicas === 0 && isSure && since < counted(wanted.ttlMs)) return {fence, from};
    const until = monotonic() + this.settings.retryForMs;
    const {number, sent} = await server.extend(this.owner, {ttlMs: wanted.ttlMs, fence, wanted}, until, this.stop);
    return number > 0 ? {fence, from: sent} : "again"; // it is over by now
  }

  /** Holders of the first key that somebody holds, or none if the server does not tell in time. */
  async #holders(): Promise<readonly Holder[]> {
    const until = monotonic() + HOLDERS_MS;
    for (const key of this.owner.keys) {
      if (monotonic() >= until) break;
      try {
        const {value} = await this.server.try({key, command: ["SLOCK.INFO", key, "FULL", "COUNT", "10"]}, until);
        if (value instanceof ReplyError) break;
        const {holders} = lockInfo(value);
        if (holders.length > 0) return holders;
      } catch {
        break;
      }
    }
    return [];
  }
}
