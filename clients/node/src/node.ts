// The connections to one server: one that all calls share, and one for each that may block it.

import {NoAnswer, type Answer} from "./answers.js";
import {now, settlesWithin, within} from "./clock.js";
import type {Command} from "./commands.js";
import {ANSWER_MS, Connection, type Open} from "./connection.js";
import type {Stop} from "./stop.js";

/** Called while there is no answer. It says after how many ms to look again; its error ends the wait. */
export type Look = () => Promise<number>;

// So many connections that are idle are kept.
const MOST_SPARE = 8;

// The first look at a wait, after so many ms.
const FIRST_LOOK_MS = 1_000;

export class Node {
  private current: Connection | undefined;
  private opening: Promise<Connection> | undefined;
  private spare: Connection[] = [];
  private readonly waiting = new Set<Connection>();
  private closed = false;

  constructor(readonly name: string, readonly open: Open) {}

  /**
   * The answers to commands that go together, errors of the server among them. Rejects with `NoAnswer` when the
   * connection fails, and at `until`. Nothing is sent twice, and nothing once the call is stopped.
   */
  ask(commands: readonly Command[], until: number, stop?: Stop): Promise<Answer[]> {
    const {current} = this;
    return current?.alive && !this.closed ? current.ask(commands, until, stop) : this.askAnew(commands, until, stop);
  }

  /** The same for commands that may block the connection. */
  async block(commands: readonly Command[], until: number, look: Look, stop?: Stop): Promise<Answer[]> {
    const connection = this.taken() ?? (await within(Connection.open(this.open, this.name, Infinity), until - now(), notInTime));
    const end = (): void => connection.fail(new NoAnswer("the wait has ended", false));
    this.waiting.add(connection);
    try {
      if (this.closed) throw new NoAnswer("waiting has ended", true);
      stop?.check();
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
    for (const connection of this.spare.splice(0)) connection.fail(new NoAnswer("it is not needed", true));
  }

  /**
   * Closes the connections for good. What waits, or begins to wait later, ends with an error of a lost connection. A
   * release that comes later opens a connection for itself.
   */
  close(): void {
    this.closed = true;
    for (const connection of this.waiting) connection.fail(new NoAnswer("waiting has ended", false));
    this.drop();
    this.dropSpare();
  }

  /** Ends the shared connection. The next command opens another one. */
  drop(): void {
    this.current?.fail(new NoAnswer(`the connection to ${this.name} has been closed`, false));
    this.current = undefined;
  }

  private async askAnew(commands: readonly Command[], until: number, stop?: Stop): Promise<Answer[]> {
    const connected = within(this.connected(), until - now(), notInTime);
    const connection = await (stop ? stop.wait(connected) : connected);
    stop?.check();
    try {
      return await connection.ask(commands, until, stop);
    } finally {
      if (this.closed && connection.idle) this.drop(); // a release that came after `close`
    }
  }

  private taken(): Connection | undefined {
    this.spare = this.spare.filter((connection) => connection.alive);
    return this.spare.pop();
  }

  private async connected(): Promise<Connection> {
    if (this.current?.alive) return this.current;
    return (this.opening ??= Connection.open(this.open, this.name, ANSWER_MS)
      .then((connection) => (this.current = connection))
      .finally(() => (this.opening = undefined)));
  }
}

function notInTime(): never { throw new NoAnswer("there was no connection within the time", true); }
