// The connections to one server: one that all calls share, and one for each that may block it.

import {NoAnswer, type Answer} from "./answers.js";
import {settlesWithin} from "./clock.js";
import type {Command} from "./commands.js";
import {ANSWER_MS, Connection, type Open} from "./connection.js";
import type {Stop} from "./stop.js";

/** Called while there is no answer. It says after how many ms to look again; its error ends the wait. */
export type Look = () => Promise<number>;

// So many connections that are idle are kept.
const MOST_SPARE = 8;

/** The first look at a wait, after so many ms. */
export const FIRST_LOOK_MS = 1_000;

export class Node {
  private current: Connection | undefined;
  private spare: Connection[] = [];
  private readonly waiting = new Set<Connection>();
  private closed = false;

  constructor(readonly name: string, readonly open: Open) {}

  /**
   * The answers to commands that go together, errors of the server among them. Rejects with `NoAnswer` when the
   * connection fails, and at `until`. Nothing is sent twice, and nothing once the call is stopped.
   */
  ask(commands: readonly Command[], until: number, stop?: Stop): Promise<Answer[]> {
    if (!this.current?.alive) this.current = new Connection(this.open, this.name, ANSWER_MS);
    const {current} = this;
    const answers = current.ask(commands, until, stop);
    return this.closed ? answers.finally(() => { if (current.idle) current.fail(new Error("it is not needed")); }) : answers;
  }

  /** The same for commands that may block the connection. */
  async block(commands: readonly Command[], until: number, look: Look, stop?: Stop): Promise<Answer[]> {
    if (this.closed) throw new NoAnswer("waiting has ended", true);
    stop?.check();
    this.spare = this.spare.filter((connection) => connection.alive);
    const connection = this.spare.pop() ?? new Connection(this.open, this.name, Infinity);
    const end = (): void => connection.fail(new Error("the wait has ended"));
    this.waiting.add(connection);
    try {
      const asked = connection.ask(commands, until);
      let pause = FIRST_LOOK_MS;
      asked.catch(() => {});
      const wait = async (): Promise<Answer[]> => {
        while (!(await settlesWithin(asked, pause)) && connection.alive) pause = await look();
        return asked;
      };
      const answers = await (stop ? stop.wait(wait()) : wait());
      if (this.spare.length < MOST_SPARE && !this.closed) this.spare.push(connection);
      else end();
      return answers;
    } catch (error) {
      end();
      throw error;
    } finally {
      this.waiting.delete(connection);
    }
  }

  /** Closes the connections that are idle: perhaps they lead to the wrong server. */
  dropSpare(): void {
    for (const connection of this.spare.splice(0)) connection.fail(new Error("it is not needed"));
  }

  /**
   * Closes the connections for good. What waits, or begins to wait later, ends with an error of a lost connection. A
   * release that comes later opens a connection for itself.
   */
  close(): void {
    this.closed = true;
    for (const connection of this.waiting) connection.fail(new Error("waiting has ended"));
    this.current?.fail(new Error("it has been closed"));
    this.dropSpare();
  }

  /** Ends the shared connection, unless it is being opened. The next command opens another one. */
  drop(): void { if (this.current?.isReady) this.current.fail(new Error(`the connection to ${this.name} has been closed`)); }
}
