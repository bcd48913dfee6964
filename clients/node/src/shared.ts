// What all acquisitions and holds of one `Locks` share: its servers, its limits of time, how it waits, what renews, and
// whether it is open.

import {NoAnswer, codeOf, errorOf, isTemporary, mayBeExecuted, problemsIn, type Answer} from "./answers.js";
import {baseOf, type Client} from "./base.js";
import {now, settlesWithin, sleep} from "./clock.js";
import {NO_FENCE, REFUSE_MS, cancel, newToken, release, releaseInAnyMode, theEnd, type Command, type Key} from "./commands.js";
import {positive} from "./durations.js";
import {ClosedError, TimedOutError, textOf} from "./errors.js";
import {Reporter} from "./hooks.js";
import {Listening} from "./listener.js";
import type {LocksOptions, Wanted} from "./options.js";
import {Strategy} from "./polling.js";
import {ask, serversOf, type Servers} from "./servers.js";
import {Stop} from "./stop.js";
import {Watchdog} from "./watchdog.js";

/** The answer to what was sent before a limit may come so long after it, in ms. */
export const ANSWER_OVERDUE_MS = 250;

/** How long a caller waits for what is being given up, in ms. Then it goes on in the background. */
export const CALLER_WAITS_MS = 300;

// One attempt to give up takes at most so long, in ms.
const GIVE_UP_ATTEMPT_MS = 1_000;

// So many are under way at most: as many as a server lets wait, by default. What is left of one that comes then is granted
// in its turn, and ends by its ttl.
const MOST_GIVING_UP = 100_000;

// How long `close` waits for what is being given up, in ms.
const CLOSE_WAITS_MS = 2_000;

/** The pauses between attempts that got no answer. */
export const RETRY = Strategy.exponential(10, 1_000);

/** The answers to commands that may have been sent several times. */
export interface Answered {
  readonly sent: number;
  readonly answers: Answer[];
  /** Whether a copy before had no answer. */
  readonly afterUnanswered: boolean;
}

export class Shared {
  /** How it polls; without one the server tells. */
  strategy: Strategy | undefined;
  /** Whether each wait has a connection of its own. Else all that `listening` has. */
  blocks = false;
  readonly listening: Listening;
  /** What is being given up, each until it is answered. */
  private readonly givingUp = new Set<Promise<void>>();
  private closed = false;
  private ended = false; // `close` has ended
  private readonly underWay = new Set<Stop>();
  private idle: (() => void) | undefined;
  private readonly permitted = new Set<string>();

  readonly servers: Servers;
  readonly reporter: Reporter;
  readonly retryForMs: number;
  readonly retryWaitForMs: number;

  /** The nodes of a quorum have one watchdog. */
  constructor(client: Client, options: Omit<LocksOptions, "waiting">, readonly watchdog = new Watchdog()) {
    this.reporter = new Reporter(options.hooks ?? {});
    this.servers = serversOf(baseOf(client), this.reporter);
    this.listening = new Listening(this.servers);
    this.retryForMs = positive("retryForMs", options.retryForMs ?? 3_000);
    this.retryWaitForMs = positive("retryWaitForMs", options.retryWaitForMs ?? 60_000);
  }

  // --- open or closed

  /** `ClosedError` after `close`. */
  checkOpen(): void { if (this.closed) throw new ClosedError(); }

  /** A call begins that its signal or `close` can stop. */
  begin(signal?: AbortSignal): Stop {
    this.checkOpen();
    const stop = new Stop(signal);
    this.underWay.add(stop);
    return stop;
  }

  end(stop: Stop): void {
    stop.end();
    this.underWay.delete(stop);
    if (this.underWay.size === 0) this.idle?.();
  }

  /** What waits ends with `ClosedError`, and nothing new begins. It returns when all that was under way has ended. */
  async close(): Promise<void> {
    this.closed = true;
    this.watchdog.close();
    for (const stop of [...this.underWay]) stop.stop(new ClosedError());
    this.listening.close();
    if (this.underWay.size > 0) {
      await settlesWithin(new Promise<void>((resolve) => (this.idle = resolve)), this.retryForMs);
    }
    await settlesWithin(Promise.all(this.givingUp), CLOSE_WAITS_MS);
    this.ended = true;
    for (const node of this.servers.nodes()) node.close();
  }

  // --- commands

  /** As `repeat`, but an error that lasts is thrown. */
  async insist(names: string, key: Key, commands: readonly Command[], end: number): Promise<Answered> {
    const answered = await this.repeat(names, key, commands, end);
    const [problem] = problemsIn(answered.answers);
    if (problem !== undefined) throw errorOf(problem, names);
    return answered;
  }

  /**
   * The answers, errors that last among them. After an error that may pass all commands are sent again, until `end`:
   * then it is `TimedOutError`. What is given up has less time for an attempt, and is not sent again after `close`.
   */
  async repeat(names: string, key: Key, commands: readonly Command[], end: number, isGivenUp = false): Promise<Answered> {
    let afterUnanswered = false;
    const pauses = RETRY.pauses();
    for (;;) {
      const sent = now();
      const until = Math.min(end + ANSWER_OVERDUE_MS, sent + (isGivenUp ? GIVE_UP_ATTEMPT_MS : Infinity));
      let problem: unknown;
      try {
        const answers = await ask(this.servers, key, commands, until);
        problem = answers.find((answer) => answer instanceof Error && isTemporary(answer));
        if (problem === undefined) return {sent, answers, afterUnanswered};
      } catch (error) {
        if (!isTemporary(error)) throw errorOf(error, names);
        problem = error;
      }
      afterUnanswered ||= mayBeExecuted(problem);
      const pause = pauses.next().value!;
      if (now() + pause >= end || (isGivenUp && this.ended)) {
        throw new TimedOutError(`${names}: the server did not answer within the time`, problem, !(problem instanceof NoAnswer));
      }
      await sleep(pause);
    }
  }

  /**
   * Leaves nothing of an acquisition in doubt, or that is given up. Until the last round a token that the program gave may
   * have got another fence.
   */
  giveUpInDoubt(wanted: Wanted, token: string, fence: number | undefined, callerWaitsMs: number): Promise<Answered | undefined> {
    const {keys, given} = wanted;
    return this.giveUp(wanted, theEnd(keys, token, given, fence), callerWaitsMs, (answers) => {
      const found = given ? Math.max(...answers.slice(-3, -1).map(Number)) : 0;
      return found > 0 && answers.at(-1) === 0 ? theEnd(keys, token, given, found) : undefined;
    });
  }

  /**
   * Sends commands that leave nothing behind until all are answered, in the background. Nothing when that takes longer than
   * the caller waits. `then` is called with the answers, or with none when it has ended without: what it gives is sent next.
   */
  async giveUp(
    {names, key, given, options: {ttlMs}}: Wanted,
    commands: readonly Command[],
    callerWaitsMs: number,
    then: (answers: Answer[]) => readonly Command[] | undefined | void = () => {},
  ): Promise<Answered | undefined> {
    let answered: Answered | undefined;
    const work = async (): Promise<void> => {
      // Of a token that the program gave nothing is left after the ttl but what it took since then.
      const until = now() + (given ? Math.min(REFUSE_MS, ttlMs) : REFUSE_MS);
      try {
        if (this.givingUp.size >= MOST_GIVING_UP) throw new Error(`${names}: too much is being given up`);
        for (let next: readonly Command[] | undefined | void = commands; next; ) {
          const last = await this.repeat(names, key, next, until, true);
          next = then(last.answers);
          if (!next) answered = last;
        }
      } catch (error) {
        this.reporter.warn(`${textOf(error)}: what is left ends by its ttl`);
        then([]);
      }
    };
    const done = work().finally(() => this.givingUp.delete(done));
    this.givingUp.add(done);
    if (callerWaitsMs > 0) await settlesWithin(done, callerWaitsMs);
    return answered;
  }

  /** The user may not use the channels: from now on each wait has a connection of its own. */
  refuseChannels(error: unknown): void {
    if (!this.blocks) this.reporter.warn(`waits have a connection each from now on, for want of a permission: ${textOf(error)}`);
    this.blocks = true;
  }

  /** Whether it was asked before. */
  isPermitted(wanted: Wanted): boolean { return this.permitted.has(wanted.kind); }

  /**
   * What cannot be released must not be taken: asked once for each kind of request, on its keys, by a token made for this
   * and a fence that no hold has. `NOPERM` is thrown.
   */
  async checkPermission(wanted: Wanted, until: number, stop?: Stop): Promise<void> {
    const token = newToken();
    const commands = [
      ...cancel(wanted.keys, token, false), release(wanted.keys, wanted.mode, token, NO_FENCE),
      releaseInAnyMode(wanted.keys, token, NO_FENCE),
    ];
    const answers = await ask(this.servers, wanted.key, commands, until, {stop});
    for (const problem of problemsIn(answers)) {
      if (codeOf(problem) === "NOPERM" || isTemporary(problem)) throw problem;
    }
    this.permitted.add(wanted.kind);
  }
}
