// SPDX-License-Identifier: MIT OR Apache-2.0

// The life of an acquisition, from its first command to a grant or an error. All commands of it have one owner token, so each
// may be sent again: it is the same hold, or the same request in its place in the queue.

import {monotonic, now} from "./clock.js";
import {TimedOutError, duration, type SlockError} from "./errors.js";
import {lockInfo, type Holder} from "./info.js";
import {Ticket, type Channel, type Message} from "./listener.js";
import {exponential, type Settings} from "./options.js";
import {explain, passes, waiting, type Owner} from "./protocol.js";
import {LATE_REPLY_MS, afterErrors, extended, moreTelling, noAnswer, type Answer, type Server} from "./server.js";
import {LEFT, type Stop} from "./stop.js";
import {ReplyError, type Call} from "./transport.js";

/** How long a request waits for its message before it is sent again, in ms. So a lost message costs no more. */
const SEND_AGAIN_MS = 5_000;
/** How long a request waits on the server at most unless it is sent again. One whose program has died leaves after that. */
const SERVER_WAIT_MS = 15_000;
/** How long after the end of a wait the message that says so is still waited for. */
const LATE_MESSAGE_MS = 50;
/** How long the confirmation of a new channel is waited for before the request is sent without it, in ms. */
const SUBSCRIBE_MS = 100;
const MOST_SUBSCRIBE_MS = 1_000;
/** How long a call that has timed out waits to learn who has the lock. */
const HOLDERS_MS = 250;

/** What comes of an attempt: a grant, or it is sent again at once. */
type Step = Answer | "again";

/** How an acquisition ended: without an answer and an error others have the lock, and the request was sent only once. */
export interface Outcome {
  readonly answer?: Answer | undefined;
  readonly error?: unknown;
  /** Whether something of it may be left on the server. */
  readonly isOpen: boolean;
}

/** The part of a ttl that counts for the validity: a clock that is slewed runs up to 500 ppm fast, on both sides. */
export const counted = (ttlMs: number): number => ttlMs - ttlMs / 1_000 - 1;

/** One use of a request, or a change of mode that may have to wait, at a server. */
export class Acquisition {
  /** Whether a refusal ends it. */
  readonly #isOnce: boolean;
  readonly #began = monotonic();
  /** Of the wait. */
  #deadline: number;
  /** Until when it goes on at least, because this process was late. */
  #least = 0;
  /** When the server last replied. */
  #contact: number | undefined;
  /** The last error that passes; undefined after a reply without one. */
  #last: unknown;
  #failures = 0;
  #polls = 0;
  /** The server has said that it may hold the lock for its minimum hold time. */
  #isPermitted = false;
  /** A copy of it may be on its way to the server. */
  #isLoose = false;
  /** It waits on the server, or is held. */
  #isQueued = false;
  /** Others had the lock, so it waits by a message from now on. */
  #waits = false;
  /** Of the last copy. A message for one before it tells of a hold that may be over. */
  #ticket = new Ticket();
  #channel: Channel | undefined;
  /** Before the last copy was sent that was answered null, and how long the server lets that copy wait. */
  #sent = 0;
  #queueMs = 0;

  constructor(
    readonly server: Server, readonly owner: Owner, readonly request: Call, readonly wanted: Settings, readonly stop: Stop,
    readonly isTry = false,
  ) {
    this.#isOnce = isTry || wanted.waitMs < 1;
    this.#deadline = this.#isOnce ? Infinity : this.#began + wanted.waitMs;
  }

  /** Sends the request until it is granted or over. */
  async run(): Promise<Outcome> {
    const ended = await this.#repeat().then((answer) => ({answer}), (error: unknown) => ({error: explain(error, this.owner.names)}));
    this.#channel?.tickets.delete(this.#ticket.tag);
    return {...ended, isOpen: this.#isLoose || this.#isQueued};
  }

  async #repeat(): Promise<Answer | undefined> {
    for (;;) {
      if (this.stop.problem) throw this.stop.problem.reason;
      const isOver = monotonic() >= this.#deadline;
      if (isOver || (this.#last !== undefined && monotonic() >= this.#limit)) {
        throw await this.#failed(isOver && this.#last === undefined && this.#contact !== undefined);
      }
      try {
        const step = await this.#attempt();
        if (step !== "again") return step;
      } catch (error) {
        if (error === LEFT) continue; // what stopped it says why
        if (!passes(error)) throw error;
        this.#last = moreTelling(this.#last, error);
        const more = extended(this.#end);
        if (!(error instanceof ReplyError) && this.#least === 0 && more !== this.#end) {
          this.#least = more;
          this.#deadline = Math.max(this.#deadline, more);
        }
        await this.stop.sleep(Math.min(afterErrors(this.#failures++), this.#limit - monotonic(), this.#deadline - monotonic()));
      }
    }
  }

  /** Until when the server has to reply. */
  get #limit(): number {
    const {retryForMs, retryWaitForMs} = this.server.settings;
    return Math.max(this.#least, this.#contact === undefined || this.#isOnce ? this.#began + retryForMs : this.#contact + retryWaitForMs);
  }

  /** Until when a reply is waited for. */
  get #end(): number { return Math.min(this.#limit, this.#deadline + LATE_REPLY_MS); }

  /** The error of a call that is over, because others have the lock or without a reply. */
  async #failed(isTimedOut: boolean): Promise<SlockError> {
    const {names} = this.owner;
    const waited = monotonic() - this.#began;
    if (!isTimedOut) return noAnswer(names, waited, this.#last);
    return new TimedOutError(`timed out after ${duration(waited)}`, names, {holders: await this.#holders()});
  }

  /** Holders of the first key that somebody holds, or none if the server does not tell in time. */
  async #holders(): Promise<readonly Holder[]> {
    const until = monotonic() + HOLDERS_MS;
    for (const key of this.owner.keys) {
      const call = {key, command: ["SLOCK.INFO", key, "FULL", "COUNT", "10"]};
      const reply = await this.server.try(call, until).catch(() => undefined);
      if (!reply || reply.value instanceof ReplyError) break;
      const {holders} = lockInfo(reply.value);
      if (holders.length > 0) return holders;
    }
    return [];
  }

  /** Sends the request once, and waits for what comes of it. */
  async #attempt(): Promise<Step | undefined> {
    const {server, owner} = this;
    const key = owner.keys[0]!;
    const limit = (): number => Math.min(this.#end, monotonic() + server.settings.retryForMs);
    if (!this.#isPermitted) {
      await server.permit(owner.names, this.wanted, limit(), this.stop).catch((error: unknown) => {
        if (error instanceof ReplyError) this.#contact = monotonic();
        throw error;
      });
      this.#isPermitted = true;
    }
    // A request that has not been refused waits only if there is a channel already.
    let channel = this.#isOnce ? undefined : server.listener.channel(key, this.#waits);
    this.#channel?.tickets.delete(this.#ticket.tag);
    this.#channel = channel;
    this.#ticket = new Ticket();
    channel?.tickets.set(this.#ticket.tag, this.#ticket);
    if (channel?.since !== undefined) {
      if (this.#waits) await this.#hear(Math.min(exponential(SUBSCRIBE_MS, MOST_SUBSCRIBE_MS, this.#polls++), this.#deadline - monotonic()));
      if (channel.since !== undefined) channel = undefined;
    }
    const queueMs = Math.max(1, Math.min(SERVER_WAIT_MS, this.#deadline - monotonic()));
    const call = channel ? waiting(this.request, queueMs, channel.name, this.#ticket.tag) : this.request;
    const sent = now();
    // Until the reply is there, a copy may be on its way. The end of a token of the program's might end another hold of it,
    // so there a copy that the Redis client library may have sent does not count.
    const wasLoose = this.#isLoose;
    this.#isLoose = true;
    const {value, isRepeated} = await server.try(call, limit(), this.stop);
    this.#isLoose = wasLoose || (Boolean(isRepeated) && !owner.isGiven);
    this.#contact = monotonic();
    if (value instanceof ReplyError) {
      if (channel && server.listener.failed(channel, value)) return "again";
      throw value;
    }
    if (Number(value) > 0) return this.#confirm(Number(value), sent, false);
    this.#last = undefined;
    this.#failures = 0;
    if (channel) {
      this.#isQueued = this.#waits = true;
      this.#sent = sent;
      this.#queueMs = queueMs;
      return this.#await();
    }
    if (this.isTry) return undefined;
    if (this.#isOnce) throw await this.#failed(true);
    this.#waits = true;
    return "again";
  }

  async #hear(ms: number): Promise<Message | undefined> {
    await this.stop.wait(this.#ticket.heard(), ms);
    return this.#ticket.take();
  }

  /** Waits for the message of a request that is in the queue. */
  async #await(): Promise<Step> {
    const again = Math.min(SEND_AGAIN_MS * (1 - Math.random() / 5), this.server.settings.retryWaitForMs / 4);
    const message = await this.#hear(Math.min(again, this.#deadline - monotonic() + LATE_MESSAGE_MS));
    if (message === undefined || message === "again") return "again";
    if (message.error) throw message.error;
    if (message.fence > 0) return this.#confirm(message.fence, this.#sent, true);
    // The wait has run out on the server, which may be because no copy arrived in time. Before that, an operator has
    // withdrawn the request.
    this.#isQueued = false;
    if (now() - this.#sent < this.#queueMs) throw await this.#failed(true);
    return "again";
  }

  /**
   * Makes sure of how long the hold is valid, and that enough replicas have it. The ttl began at a grant that may be long
   * ago, if a message told of it, and at a server that may not be the primary any more.
   */
  async #confirm(fence: number, from: number, byMessage: boolean): Promise<Step> {
    this.#isQueued = true;
    const {server, wanted, wanted: {ttlMs}} = this;
    const since = now() - from;
    const isSure = !byMessage || (since <= ttlMs / 3 && !server.transport.topology.hasFailover);
    if (wanted.minReplicas === 0 && isSure && since < counted(ttlMs)) return {number: fence, sent: from};
    const until = monotonic() + server.settings.retryForMs;
    const {number, sent} = await server.extend(this.owner, ttlMs, fence, wanted, until, this.stop);
    return number > 0 ? {number: fence, sent} : "again"; // it is over by now
  }
}
