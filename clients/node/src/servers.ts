// How a command reaches the right server: one server, the primary that Sentinels name, or a node of a cluster. It knows
// nothing of locks.

import {NoAnswer, isWrongServer, problemsIn, redirectionIn, type Answer} from "./answers.js";
import {now, within} from "./clock.js";
import type {Command, Key} from "./commands.js";
import type {Address, Base, Told} from "./connection.js";
import type {Reporter} from "./hooks.js";
import {Node, type Look} from "./node.js";
import {hashTag, nameIn, slotOf} from "./slots.js";
import type {Stop} from "./stop.js";

// A command may be sent on this often before its redirection is an error.
const MOST_REDIRECTIONS = 8;

// How long the servers may take to tell who serves, in ms, whatever time is left to a call.
const LOOK_UP_FOR_MS = 2_000;

/** Where a command goes. */
export interface Place {
  readonly node: Node;
  /** Whether ASKING must come before each command there: the slot is being moved. */
  readonly asks: boolean;
}

/** How to send: `look` for commands that may block the connection, `stop` to give up. */
export interface Ways {
  readonly look?: Look | undefined;
  readonly stop?: Stop | undefined;
}

/**
 * The answers of the server that serves `key`, errors of the server among them. Rejects with `NoAnswer`, at `until` at
 * the latest. A command that is redirected is sent again; nothing else is.
 */
export async function ask(servers: Servers, key: Key, commands: readonly Command[], until: number, {look, stop}: Ways = {}): Promise<Answer[]> {
  try {
    let place = servers.place(key);
    if (place === undefined) {
      const found = servers.placeOf(key, until);
      place = await (stop ? stop.wait(found) : found);
    }
    for (let redirections = 0; ; redirections++) {
      if (redirections > MOST_REDIRECTIONS) throw new NoAnswer("too many redirections", true);
      const {node, asks} = place;
      const sent = asks ? commands.flatMap((command) => [["ASKING"], command]) : commands;
      let answers = await (look ? node.block(sent, until, look, stop) : node.ask(sent, until, stop));
      servers.reporter.answered();
      if (asks) answers = answers.filter((_, at) => at % 2 === 1);
      const problems = problemsIn(answers);
      if (problems.length === 0) return answers;
      const moved = problems.map((problem) => servers.redirected(key, problem)).find((one) => one !== undefined);
      if (moved === undefined) {
        if (problems.some(isWrongServer)) servers.doubt();
        return answers;
      }
      stop?.check();
      place = moved;
    }
  } catch (error) {
    if (error instanceof NoAnswer) {
      servers.doubt();
      servers.reporter.unanswered(servers.name, error);
    }
    throw error;
  }
}

/** The answer to one command, or an error, whatever it is. */
export function answerTo(servers: Servers, key: Key, command: Command, until: number): Promise<Answer> {
  return ask(servers, key, [command], until).then(([answer]) => answer, (error: unknown) => error);
}

/** The servers behind one client: here one that keeps its address, or a primary that each new connection finds. */
export class Servers {
  /** Where they are, for people to read. */
  readonly name: string;
  /** Whether channels and keys have slots. */
  readonly isCluster: boolean = false;
  private readonly only: Place;

  constructor(protected readonly base: Base, readonly reporter: Reporter) {
    this.name = base.name;
    this.only = {node: new Node(base.name, (told) => base.open(undefined, told)), asks: false};
  }

  /** The server that serves `key`, as far as it is known. */
  place(_key: Key): Place | undefined { return this.only; }

  /** The same, when it is known. Rejects with an error before which nothing was sent. */
  async placeOf(_key: Key, _until: number): Promise<Place> { return this.only; }

  /** A key of each other primary than that of `key`, as far as they are known. */
  keysElsewhere(_key: Key): Key[] { return []; }

  /** All that are open. */
  nodes(): Iterable<Node> { return [this.only.node]; }

  /** A connection was lost, or a server serves no more: perhaps others serve by now. */
  doubt(): void {
    this.only.node.dropSpare();
    if (this.base.findsPrimary) this.only.node.drop();
  }

  /** The place that a redirection names; nothing for any other answer. */
  redirected(_key: Key, _answer: Answer): Place | undefined { return undefined; }

  /** The hash tag that a channel needs for `key`; nothing outside a cluster. */
  channelTag(_key: Key): string | undefined { return undefined; }
}

/** The nodes of a cluster. */
class ClusterServers extends Servers {
  override readonly isCluster = true;
  private readonly byAddress = new Map<string, Node>();
  private owners: (Address | undefined)[] = [];
  private known = false;
  private looking: Promise<void> | undefined;

  override place(key: Key): Place | undefined {
    const owner = this.known ? this.owners[slotOf(key)] : undefined;
    return owner && {node: this.node(owner), asks: false};
  }

  override async placeOf(key: Key, until: number): Promise<Place> {
    const known = this.place(key);
    if (known !== undefined) return known;
    this.looking ??= this.lookUp().finally(() => (this.looking = undefined));
    await within(this.looking, until - now(), () => { throw new NoAnswer("it is not known yet which server serves", true); });
    const found = this.place(key);
    if (found !== undefined) return found;
    this.doubt();
    throw new NoAnswer(`no node serves slot ${slotOf(key)}`, true);
  }

  override keysElsewhere(key: Key): Key[] {
    const slots = new Map(this.owners.map((owner, slot) => [owner && nameOf(owner), slot]));
    const here = this.owners[slotOf(key)];
    return [...slots].filter(([name]) => name !== undefined && name !== (here && nameOf(here))).map(([, slot]) => nameIn(slot));
  }

  override nodes(): Iterable<Node> { return this.byAddress.values(); }

  override doubt(): void { this.known = false; }

  override redirected(key: Key, answer: Answer): Place | undefined {
    const told = redirectionIn(answer);
    if (told === undefined) return undefined;
    const {asks, slot, port} = told;
    const host = told.host || (this.owners[slotOf(key)]?.host ?? "localhost"); // that of the node which was asked
    const address = this.reached({host, port});
    if (!asks) this.owners[slot] = address;
    return {node: this.node(address), asks};
  }

  override channelTag(key: Key): string { return hashTag(key); }

  /** Asks all nodes at once and takes the first answer: a silent node must not delay the others. */
  private async lookUp(): Promise<void> {
    const asked = new Map([...this.base.seeds!(), ...this.owners].filter((one) => one !== undefined).map((one) => [nameOf(one), one]));
    if (asked.size === 0) throw new NoAnswer("no node of the cluster is known", true);
    const until = now() + LOOK_UP_FOR_MS;
    const told = [...asked.values()].map(async (address): Promise<void> => {
      const [answer] = await this.node(address).ask([["CLUSTER", "SLOTS"]], until);
      if (!Array.isArray(answer)) throw answer;
      this.take(answer as Slots, address);
    });
    try {
      await Promise.any(told);
    } catch (error) {
      throw NoAnswer.of((error as AggregateError).errors[0], true);
    }
  }

  private take(slots: Slots, asked: Address): void {
    if (this.known || slots.length === 0) return;
    const owners: (Address | undefined)[] = [];
    for (const [first, last, [host, port]] of slots) {
      const named = host && host !== "?" ? host : asked.host;
      const address = this.reached({host: named, port});
      for (let slot = first; slot <= last; slot++) owners[slot] = address;
    }
    this.owners = owners;
    this.known = true;
  }

  private reached(told: Address): Address { return this.base.reached?.(told) ?? told; }

  private node(address: Address): Node {
    const name = nameOf(address);
    let node = this.byAddress.get(name);
    if (node === undefined) {
      node = new Node(name, (told: Told) => this.base.open(address, told));
      this.byAddress.set(name, node);
    }
    return node;
  }
}

type Slots = [first: number, last: number, primary: [host: string, port: number]][];

function nameOf(address: Address): string { return `${address.host}:${address.port}`; }

export function serversOf(base: Base, reporter: Reporter): Servers {
  return base.seeds ? new ClusterServers(base, reporter) : new Servers(base, reporter);
}
