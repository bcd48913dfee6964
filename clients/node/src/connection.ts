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

/** A connection of a base library that is ready, sends each command once, and does not connect again. */
export interface RawConnection {
  send(command: Command): Promise<unknown>;
  subscribe(channel: string): Promise<unknown>;
  unsubscribe(channel: string): Promise<unknown>;
  /** Ends it at once. What has no answer is rejected. */
  destroy(): void;
}

/** What a client of a base library is used for. */
export interface Base {
  /** Where the servers are, for people to read. */
  readonly name: string;
  /** A new connection to `address`, or to where the client itself would connect now. */
  open(address: Address | undefined, told: Told): Promise<RawConnection>;
  /** Whether the primary may be another one with each new connection. */
  readonly findsPrimary?: boolean;
  /** Only of a cluster: some nodes, and where a node that tells this address is reached. */
  seeds?(): readonly Address[];
  reached?(told: Address): Address;
}

/** Opens a connection. `told.ended` can be called before it settles, and more than once. */
export type Open = (told: Told) => Promise<RawConnection>;

// An answer that takes longer ends the connection, in ms; so does a connection that is not ready by then.
export const ANSWER_MS = 2_000;

// So often it is looked whether answers are overdue, in ms.
const TICK_MS = 25;

/** Commands that wait for their answers. */
interface Question {
  isOver: boolean;
  readonly until: number;
  /** How many ticks there had been when it was asked. */
  readonly tick: number;
  readonly reject: (error: unknown) => void;
}

/** A connection that many calls may share. */
export class Connection {
  alive = true;
  private asked: Question[] = []; // in the order of their answers, as a rule
  private readonly send = (command: Command): Promise<unknown> => this.raw!.send(command);
  private ticking = false;
  private ticks = 0;

  private raw: RawConnection | undefined;
  private problem: unknown;

  private constructor(private readonly name: string, private readonly answerMs: number) {}

  /** `answerMs`: an answer that takes longer ends the connection. Rejects with `NoAnswer`, or an error of the server. */
  static async open(open: Open, name: string, answerMs: number, told: Partial<Told> = {}): Promise<Connection> {
    const connection = new Connection(name, answerMs);
    const ended = (error: unknown): void => {
      connection.fail(error);
      told.ended?.(error);
    };
    const opening = open({...told, ended}).then((raw) => {
      connection.raw = raw;
      if (!connection.alive) raw.destroy(); // nobody waits for it any more
    });
    try {
      await within(opening, ANSWER_MS, () => { throw new Error(`no connection to ${name} within ${ANSWER_MS} ms`); });
      if (connection.alive) return connection;
    } catch (error) {
      if (isReply(error)) throw error;
      connection.fail(error);
    }
    throw isReply(connection.problem) ? connection.problem : NoAnswer.of(connection.problem, true);
  }

  /** Whether nothing waits for an answer. */
  get idle(): boolean { return this.asked.length === 0; }

  /**
   * The answers to commands that go together, errors of the server among them. Rejects with `NoAnswer` at `until`, and with
   * its reason when the call is stopped.
   */
  ask(commands: readonly Command[], until: number, stop?: Stop): Promise<Answer[]> {
    return this.limited(this.alive ? commands.map(this.send) : [], until, stop);
  }

  /** Rejects with an error of the server, or with `NoAnswer`. */
  async subscribe(channel: string, until: number): Promise<void> {
    const [answer] = await this.limited(this.alive ? [this.raw!.subscribe(channel)] : [], until);
    if (answer instanceof Error) throw answer;
  }

  unsubscribe(channel: string): void { if (this.alive) this.raw!.unsubscribe(channel).catch(() => {}); }

  /** Ends the connection. What has no answer is rejected with `error`. */
  fail(error: unknown): void {
    if (!this.alive) return;
    this.alive = false;
    this.problem = error;
    const problem = error instanceof NoAnswer ? error : NoAnswer.of(error, false);
    for (const question of this.asked.splice(0)) question.reject(problem);
    this.raw?.destroy();
  }

  /** The answers to what has been sent. */
  private limited(sent: readonly Promise<unknown>[], until: number, stop?: Stop): Promise<Answer[]> {
    return new Promise((resolve, reject) => {
      if (!this.alive) {
        reject(new NoAnswer(`the connection to ${this.name} has ended`, true));
        return;
      }
      const question: Question = {isOver: false, until, tick: this.ticks, reject};
      const answers: Answer[] = [];
      let left = sent.length;
      this.asked.push(question);
      stop?.rejects(reject);
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
      for (const question of this.asked) {
        if ((this.ticks - question.tick) * TICK_MS > this.answerMs) {
          this.fail(new NoAnswer(`no answer from ${this.name} within the time`, false));
          return;
        }
        if (question.until <= moment) {
          question.isOver = true;
          question.reject(new NoAnswer(`no answer from ${this.name} within the time`, false));
        }
      }
      this.asked = this.asked.filter((question) => !question.isOver);
      if (!this.idle) this.tick();
    });
  }
}
