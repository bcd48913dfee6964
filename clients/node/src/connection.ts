// One connection of a base library, as the rest of the library uses it: commands that go together, and a limit of time
// for each. It knows nothing of locks.

import {NoAnswer, isReply, type Answer} from "./answers.js";
import {later, now, within} from "./clock.js";
import type {Command} from "./commands.js";
import type {Stop} from "./stop.js";

export interface Address {
  readonly host: string;
  readonly port: number;
}

/** What a connection tells by itself. */
export interface Told {
  message?(channel: string, text: string): void;
  /** The server has ended a subscription. */
  unsubscribed?(channel: string): void;
  ended(error: unknown): void;
}

/** A connection of a base library that sends each command once, and does not connect again. */
export interface RawConnection {
  /** Settles when it is ready. Nothing is sent before. */
  connect(): Promise<unknown>;
  send(command: Command): Promise<unknown>;
  subscribe(channel: string): Promise<unknown>;
  unsubscribe(channel: string): Promise<unknown>;
  /** Ends it at once, also while it connects. */
  destroy(): void;
}

/** What a client of a base library is used for. */
export interface Base {
  /** Where the servers are, for people to read. */
  readonly name: string;
  /** A connection, to be opened, to `address`, or to where the client itself would connect now. */
  open(address: Address | undefined, told: Told): Promise<RawConnection>;
  /** Whether the primary may be another one with each new connection. */
  readonly findsPrimary?: boolean;
  /** Only of a cluster: some nodes, and where a node that tells this address is reached. */
  seeds?(): readonly Address[];
  reached?(told: Address): Address;
}

/** Makes a connection. `told.ended` can be called more than once. */
export type Open = (told: Told) => Promise<RawConnection>;

// An answer that takes longer ends the connection, in ms; so does a connection that is not ready by then.
export const ANSWER_MS = 2_000;

// So often it is looked whether answers are overdue, in ms.
const TICK_MS = 25;

/** Commands that wait for their answers. */
interface Question {
  isOver: boolean;
  readonly until: number;
  /** How many ticks there had been when it was sent. */
  tick: number;
  readonly reject: (error: unknown) => void;
}

/** A connection that many calls may share. What it is asked before it is ready is sent as soon as it is. */
export class Connection {
  alive = true;
  isReady = false;
  private asked: Question[] = []; // in the order of their answers, as a rule
  private ticking = false;
  private ticks = 0;

  private raw: RawConnection | undefined;
  private readonly opened: Promise<void>; // or failed

  /** `answerMs`: an answer that takes longer ends the connection. `told.ended` is called once, when it has failed. */
  constructor(open: Open, private readonly name: string, private readonly answerMs: number, private readonly told: Partial<Told> = {}) {
    const connected = async (): Promise<void> => {
      this.raw = await open({...told, ended: (error) => this.fail(error)});
      if (this.alive) await this.raw.connect();
      this.isReady = this.alive;
    };
    const late = (): never => { throw new Error(`no connection to ${name} within ${ANSWER_MS} ms`); };
    this.opened = within(connected(), ANSWER_MS, late).catch((error: unknown) => this.fail(error));
  }

  /** Whether nothing waits for an answer. */
  get idle(): boolean { return this.asked.length === 0; }

  /**
   * The answers to commands that go together, errors of the server among them. Rejects with `NoAnswer` when the connection
   * fails, and at `until`; with the server's error when it refuses the connection; with its reason when the call is
   * stopped. Nothing is sent after that.
   */
  ask(commands: readonly Command[], until: number, stop?: Stop): Promise<Answer[]> {
    return this.limited((raw) => commands.map((command) => raw.send(command)), until, stop);
  }

  /** Rejects with an error of the server, or with `NoAnswer`. */
  async subscribe(channel: string, until: number): Promise<void> {
    const [answer] = await this.limited((raw) => [raw.subscribe(channel)], until);
    if (answer instanceof Error) throw answer;
  }

  unsubscribe(channel: string): void { if (this.alive) this.raw?.unsubscribe(channel).catch(() => {}); }

  /** Ends the connection. What has no answer is rejected: with `NoAnswer`, or with what the server said instead of a welcome. */
  fail(error: unknown): void {
    if (!this.alive) return;
    this.alive = false;
    const problem = isReply(error) && !this.isReady ? error : NoAnswer.of(error, !this.isReady);
    for (const question of this.asked.splice(0)) question.reject(problem);
    this.raw?.destroy();
    this.told.ended?.(error);
  }

  /** The answers to what `send` sends. */
  private limited(send: (raw: RawConnection) => readonly Promise<unknown>[], until: number, stop?: Stop): Promise<Answer[]> {
    return new Promise((resolve, reject) => {
      if (!this.alive) {
        reject(new NoAnswer(`the connection to ${this.name} has ended`, true));
        return;
      }
      const question: Question = {isOver: false, until, tick: Infinity, reject};
      this.asked.push(question);
      stop?.rejects(reject);
      const begin = (): void => {
        question.isOver ||= Boolean(stop?.stopped);
        if (question.isOver || !this.alive) return;
        question.tick = this.ticks;
        const sent = send(this.raw!);
        const answers: Answer[] = [];
        let left = sent.length;
        sent.forEach((one, at) => {
          const answered = (answer: Answer): void => {
            answers[at] = answer; // a base library that is traced settles errors later than other answers
            if (--left > 0) return;
            resolve(answers);
            question.isOver = true;
            while (this.asked[0]?.isOver) this.asked.shift();
          };
          one.then(answered, (error: unknown) => (isReply(error) ? answered(error) : this.fail(error)));
        });
      };
      if (this.isReady) begin();
      else void this.opened.then(begin);
      if (!this.ticking) this.tick();
    });
  }

  /** Costs a timer only while there is something to wait for. */
  private tick(): void {
    this.ticking = true;
    later(TICK_MS, () => {
      this.ticking = false;
      this.ticks += 1;
      const moment = now();
      const late = (): Error => new Error(this.isReady ? `no answer from ${this.name} within the time` : "there was no connection within the time");
      for (const question of this.asked) {
        if ((this.ticks - question.tick) * TICK_MS > this.answerMs) {
          this.fail(late());
          return;
        }
        if (question.until <= moment) {
          question.isOver = true;
          question.reject(NoAnswer.of(late(), !this.isReady));
        }
      }
      this.asked = this.asked.filter((question) => !question.isOver);
      if (!this.idle) this.tick();
    });
  }
}
