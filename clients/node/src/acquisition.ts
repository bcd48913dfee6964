// One use of a request: token, limit of time, pauses, and what each answer leads to.

import {
  NoAnswer, errorOf, errorOfMessage, isChannelRefused, isSubscriberMissing, isTemporary, mayBeExecuted, type Answer,
} from "./answers.js";
import {now} from "./clock.js";
import {waiting, type Command} from "./commands.js";
import {SlockError, TimedOutError, textOf} from "./errors.js";
import {Inbox, SUBSCRIPTION_LOST, type Listening, type Subscription} from "./listener.js";
import {FIRST_LOOK_MS, type Look} from "./node.js";
import type {Wanted} from "./options.js";
import {ask} from "./servers.js";
import {ANSWER_OVERDUE_MS, RETRY, type Shared} from "./shared.js";
import type {Stop} from "./stop.js";

// While a copy of a request lacks its answer, a request that waits by NOTIFY asks again so often, in ms: the copy may come
// late and take the message to its own tag.
const ASK_AGAIN_MS = 5_000;

// In a cluster each request that waits asks again so often, in ms. The base libraries can miss that the server has ended a
// subscription, when it comes while the listening connection has a command of its own under way.
const ASK_AGAIN_IN_CLUSTER_MS = 60_000;

/** A call ends at most about so long after its limit, in ms. What is left to do goes on without it. */
export const CALL_OVERDUE_MS = 500;

// The server of a wait on a connection of its own is asked at least so often whether it is there, and has so long for an
// answer, in ms.
const MOST_BETWEEN_LOOKS_MS = 20_000;
const LEAST_PING_MS = 300;
const MOST_PING_MS = 5_000;

// After an error it pauses for at least so long, in ms.
const LEAST_PAUSE_MS = 10;

/** A fence, and when its request was sent and answered. */
export interface Granted {
  readonly fence: number;
  readonly sent: number;
  readonly received: number;
}

/** Asks for a hold, or for another mode of one, until there is an answer that counts. */
export class Acquisition {
  /** Whether a copy of the command had no answer: the server may carry it out at any later time. */
  unanswered = false;
  private waits = false; // whether the server may know a request that waits, or has not answered yet
  private problem: unknown;
  private readonly end: number;
  private contact: number | undefined;
  private inbox: Inbox | undefined; // only of a request that waits by NOTIFY: most do not

  /** `command`: without a wait. `waitMs`: it waits at most so long. `once`: a refusal ends it. */
  constructor(
    protected readonly shared: Shared,
    protected readonly wanted: Wanted,
    private readonly command: Command,
    waitMs: number,
    protected readonly once: boolean,
    readonly stop: Stop,
    private readonly began: number,
  ) {
    this.end = this.began + waitMs;
  }

  /** When the call is over, as things are now. */
  get limit(): number { return this.once ? this.began + this.shared.retryForMs : Math.min(this.end, this.outageEnd()); }

  /** Whether something may be left of it on the server that nobody knows of. */
  get inDoubt(): boolean { return this.unanswered || this.waits; }

  /** How long the call may still take when it is over, in ms. */
  get leftToGiveUpMs(): number { return Math.max(50, Math.min(CALL_OVERDUE_MS, this.limit + CALL_OVERDUE_MS - now())); }

  /** No message counts any more: those that come later are ignored. */
  forget(): void { this.inbox?.forget(); }

  /** The error of a call that is over. Its cause is the error of the last attempt. */
  timedOut(text: string): TimedOutError {
    return new TimedOutError(`${this.wanted.names}: ${text}`, this.problem, this.contact !== undefined);
  }

  /** The server has said something. */
  protected heard(): void { this.contact = now(); }

  /**
   * The grant; nothing when it was refused and asks once. `TimedOutError` when the limit is over. Who has asked calls
   * `forget` in the end.
   */
  async granted(): Promise<Granted | undefined> {
    let pauses: Iterator<number> | undefined;
    let polls: Iterator<number> | undefined;
    for (;;) {
      this.stop.check();
      let granted: Granted | undefined;
      try {
        granted = await this.attempt();
      } catch (error) {
        if (this.stop.stopped) throw this.stop.reason;
        if (error === SUBSCRIPTION_LOST) {
          this.unanswered = true; // the server may not have noticed yet, and grant what waits there
          this.heard();
          continue;
        }
        if (error instanceof SlockError) throw error;
        if (!isTemporary(error) && !isSubscriberMissing(error)) throw errorOf(error, this.wanted.names);
        this.problem = error;
        // Shorter pauses near the limit: there is time for another attempt then.
        const left = Math.max(0, this.limit - now());
        await this.stop.sleep(Math.min((pauses ??= RETRY.pauses()).next().value, Math.max(LEAST_PAUSE_MS, left / 2)));
        if (now() >= this.limit) throw this.timedOut("the server did not answer within the time");
        continue;
      }
      this.problem = undefined;
      if (granted !== undefined || this.once) return granted;
      pauses = undefined;
      polls ??= this.shared.strategy!.pauses();
      const pause = polls.next();
      if (pause.done) throw this.timedOut("the lock is not free, and no attempt is left");
      await this.stop.sleep(Math.min(pause.value, Math.max(0, this.end - now())));
      if (now() >= this.end) throw this.timedOut("the wait is over");
    }
  }

  /** Until when it goes on without any answer. */
  private outageEnd(): number {
    if (this.contact === undefined) return this.began + this.shared.retryForMs;
    return this.contact + this.shared.retryWaitForMs;
  }

  protected async attempt(): Promise<Granted | undefined> {
    const {listening, blocks, strategy} = this.shared;
    const onlyAsks = this.once || strategy !== undefined;
    try {
      let subscription = onlyAsks || blocks ? undefined : listening.present(this.wanted.key);
      if (subscription === undefined) {
        // Most locks are free: only a request that has to wait needs a subscription, or a connection of its own.
        const sent = now();
        const fence = Number(await this.send(this.command));
        if (fence) return {fence, sent, received: this.contact!};
        if (onlyAsks) return undefined;
        if (blocks) return this.block();
        subscription = await this.stop.wait(listening.subscribe(this.wanted.key, this.limit + ANSWER_OVERDUE_MS));
      }
      return await this.notified(listening, subscription);
    } catch (error) {
      if (!isChannelRefused(error)) throw error;
      this.shared.refuseChannels(error);
      return this.block();
    }
  }

  /** The answer. An error of the server is thrown. `look`: for a command that blocks. */
  private async send(command: Command, look?: Look): Promise<Answer> {
    const {servers} = this.shared;
    const stands = this.waits; // an earlier copy does, whatever becomes of this one
    this.waits = true;
    let answer: Answer;
    try {
      const until = (look ? this.end : this.limit) + ANSWER_OVERDUE_MS;
      [answer] = await ask(servers, this.wanted.key, [command], until, {stop: this.stop, look});
    } catch (error) {
      if (this.stop.stopped) throw error; // it may be on its way
      this.waits = stands;
      if (mayBeExecuted(error)) {
        this.unanswered = true;
        if (look && now() < this.outageEnd()) this.heard(); // until now it waited
      }
      throw error;
    }
    this.heard();
    this.waits = answer === null || (stands && answer instanceof Error);
    if (answer instanceof Error) throw answer;
    return answer;
  }

  /**
   * A wait is silent by nature. So now and then the server is asked, over another connection, whether it is there. Gives after
   * how many ms to look again.
   */
  private async look(sent: number): Promise<number> {
    const pingEnd = Math.min(this.end + ANSWER_OVERDUE_MS, Math.max(this.outageEnd(), now() + LEAST_PING_MS), now() + MOST_PING_MS);
    try {
      await ask(this.shared.servers, this.wanted.key, [["PING"]], pingEnd);
    } catch (error) {
      // Of the command that waits it is not known whether it was executed.
      if (now() >= this.outageEnd()) throw new NoAnswer(`the server is silent: ${textOf(error)}`, false, error);
      return Math.max(0, Math.min(FIRST_LOOK_MS, this.outageEnd() - now()));
    }
    this.heard();
    return Math.min(Math.max(FIRST_LOOK_MS, now() - sent), MOST_BETWEEN_LOOKS_MS); // after twice the time each time
  }

  /** Waits on a connection of its own: the server answers when it grants, or when the wait is over. */
  private async block(): Promise<Granted> {
    const sent = now();
    return this.told(Number(await this.send(this.waiting(sent), () => this.look(sent))), sent);
  }

  private async notified(listening: Listening, subscription: Subscription): Promise<Granted> {
    if (this.inbox?.subscription !== subscription) {
      this.forget();
      this.inbox = new Inbox(subscription, listening.newTag());
    }
    for (;;) {
      const sent = now();
      let answer: Answer;
      try {
        answer = await this.send(this.waiting(sent, [subscription.name, this.inbox.tag]));
      } catch (error) {
        if (isSubscriberMissing(error)) subscription.fail();
        throw error;
      }
      if (answer !== null) return this.told(Number(answer), sent);
      const granted = await this.message(this.inbox);
      if (granted !== undefined) return granted;
    }
  }

  /** What the message says; nothing when it is time to ask again. */
  private async message(inbox: Inbox): Promise<Granted | undefined> {
    const overdue = this.end + ANSWER_OVERDUE_MS;
    const again = this.unanswered ? ASK_AGAIN_MS : this.shared.servers.isCluster ? ASK_AGAIN_IN_CLUSTER_MS : Infinity;
    const end = Math.min(overdue, now() + again);
    for (;;) {
      const message = await inbox.get(end, this.stop);
      if (message === SUBSCRIPTION_LOST) throw SUBSCRIPTION_LOST;
      if (message !== undefined) {
        this.waits = false;
        if (message.startsWith("-")) throw errorOfMessage(message.slice(1));
        return this.told(Number(message), inbox.began);
      }
      if (now() >= overdue) throw this.timedOut("the wait is over, and the server did not say so");
      if (now() >= end) return undefined;
    }
  }

  private told(fence: number, sent: number): Granted {
    if (fence > 0) return {fence, sent, received: now()};
    this.problem = undefined;
    throw this.timedOut("the wait is over");
  }

  /** The command with what is left of the wait, at least 1 ms; to the server 0 is without limit. */
  private waiting(moment: number, message?: readonly [channel: string, tag: string]): Command {
    return waiting(this.command, this.end === Infinity ? 0 : Math.max(1, Math.round(this.end - moment)), message);
  }
}
