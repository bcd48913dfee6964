// SPDX-License-Identifier: MIT OR Apache-2.0

// The program's client and the duplicates that its library makes of it. Commands go over the program's client. Renewals, and
// commands while the program's own occupy it or keep it silent, go over a duplicate, and so do subscriptions.

import {MOST_TIMER_MS, monotonic} from "./clock.js";
import {invalid, isError} from "./errors.js";
import {ReplyError, SilentError, type Call, type Reply, type Topology, type Transport} from "./transport.js";

/** How long a reply over the program's client is waited for before the command is sent over a duplicate too, in ms. */
const PROGRAM_MS = 600;
/** How long the program's client is left alone after that. Then one command tries it. */
const SUSPECT_MS = 1_000;
/** How long a duplicate may owe a reply, or the confirmation of a subscription, before another one takes its place. */
const SILENT_MS = 1_000;
/** The shortest time between two duplicates for commands, in ms. */
const PACE_MS = 10;
/** The shortest time between two connections of a subscription, in ms. */
const LISTEN_PACE_MS = 250;
/** How long a duplicate stays open while nothing goes over it. */
const IDLE_MS = 5_000;

/** A client object of a Redis client library: the program's, or a duplicate, which connects once. */
export interface Line {
  /** Whether it may still reply. */
  readonly isOpen: boolean;
  /** Whether a command goes out at once. */
  readonly isReady: boolean;
  /** Rejects with the error of the library, also for an error reply. Of a cluster without a key: an array of all replies. */
  send(words: readonly string[], key: string): Promise<unknown>;
  /** Of a cluster: sends over the connection over which a command for the key has just gone. */
  follow?(words: readonly string[], key: string): Promise<unknown>;
  close(): void;
}

/** A duplicate that listens. */
export interface Subscriber {
  subscribe(channel: string): Promise<unknown>;
  unsubscribe(channel: string): void;
  close(): void;
}

/** What a `Subscriber` tells. */
export interface Listening {
  message(channel: string, payload: string): void;
  /** Messages may have been missed. */
  missed(): void;
  /** It will tell nothing more. */
  ended(): void;
}

/** What is asked of a Redis client library, for each kind of client. */
export interface Base {
  readonly topology: Topology;
  readonly program: Line;
  /** The shortest time after which the library may have repeated a command by itself, in ms. */
  readonly repeatsAfterMs: number;
  /** Whether the server has replied. Until then a login that it refuses is an error reply; after that it may succeed a little later. */
  hasReplied?: boolean;
  duplicate(): Line;
  /** Names the server that has a channel. Channels of one server share a connection. */
  place?(channel: string): string;
  subscriber(listening: Listening, place: string): Promise<Subscriber>;
}

/** The transport over the client of a Redis client library. */
export class ClientTransport implements Transport {
  readonly #program: Talk;
  readonly #reserved: Spare;
  /** For commands that wait for replicas. */
  readonly #waiting: Spare;
  /** By the place. */
  readonly #subscriptions = new Map<string, Subscription>();
  /** Until when the program's client is left alone; 0: it replies. */
  #suspectUntil = 0;

  constructor(readonly base: Base) {
    this.#program = new Talk(base.program, base);
    this.#reserved = new Spare(base);
    this.#waiting = new Spare(base);
  }

  get topology(): Topology { return this.base.topology; }

  async call(call: Call, limitMs: number): Promise<Reply> {
    const {program} = this.base;
    if (!program.isOpen) throw invalid("the client is closed, or was never connected");
    if (call.then) return this.#waiting.call(call, limitMs);
    if (call.reserved || !program.isReady || this.#isSuspect()) return this.#reserved.call(call, limitMs);
    const until = monotonic() + limitMs;
    const {reply, heard} = this.#program.send(call);
    reply.then(() => (this.#suspectUntil = 0), () => {}); // also if it comes late
    try {
      return await within(reply, limitMs, Math.min(limitMs / 2, PROGRAM_MS), heard);
    } catch {
      this.#suspectUntil = monotonic() + SUSPECT_MS;
      const again = this.#reserved.call(call, until - monotonic());
      return {...await Promise.any([within(reply, until - monotonic()), again]).catch(() => again), isRepeated: true};
    }
  }

  listen(channel: string, heard: (payload: string) => void, changed: () => void): () => void {
    const place = this.base.place?.(channel) ?? "";
    const ended = (): void => { if (this.topology.hasFailover) this.close(); }; // the duplicates may be at the former primary
    const subscription = this.#subscriptions.get(place) ?? new Subscription((on) => this.base.subscriber(on, place), ended);
    this.#subscriptions.set(place, subscription);
    subscription.add(channel, {heard, changed});
    return () => subscription.remove(channel);
  }

  close(): void {
    this.#reserved.close();
    this.#waiting.close();
  }

  #isSuspect(): boolean {
    if (this.#suspectUntil === 0 || monotonic() < this.#suspectUntil) return this.#suspectUntil > 0;
    this.#suspectUntil = monotonic() + SUSPECT_MS; // this command tries it
    return false;
  }
}

/** Sends over a line, and notes when each server of it last replied. */
class Talk {
  /** By the place. */
  readonly #heard = new Map<string, number>();

  constructor(readonly line: Line, readonly base: Base) {}

  send({key, command, then}: Call): {reply: Promise<Reply>; heard: () => number} {
    const {line, base} = this;
    const began = monotonic();
    let place = "";
    const send = async (): Promise<Reply> => {
      place = base.place?.(key) ?? "";
      const value = await line.send(command, key).catch((error: unknown) => asReply(error, !base.hasReplied));
      const at = monotonic();
      base.hasReplied ||= !(value instanceof ReplyError && isLogin(value.message));
      this.#heard.set(place, at);
      const isRepeated = at - began >= base.repeatsAfterMs;
      return then ? {value, then: await (line.follow?.(then, key) ?? line.send(then, key)).catch((error: unknown) => asReply(error)), isRepeated} : {value, isRepeated};
    };
    return {reply: send(), heard: () => this.#heard.get(place) ?? 0};
  }
}

/** A duplicate that is made when it is needed. */
class Spare {
  #talk: Talk | undefined;
  #madeAt = -Infinity;
  /** Until when it may be in use. */
  #usedUntil = 0;
  #timer: NodeJS.Timeout | undefined;

  constructor(readonly base: Base) {}

  async call(call: Call, limitMs: number): Promise<Reply> {
    const until = monotonic() + limitMs;
    // A call waits until another duplicate may be made: the error of the last one says nothing of the server now.
    const paceMs = (): number => (this.#talk?.line.isOpen ? 0 : this.#madeAt + PACE_MS - monotonic());
    while (paceMs() > 0) await new Promise((resolve) => setTimeout(resolve, paceMs()));
    const talk = this.#talk?.line.isOpen ? this.#talk : this.#make();
    const silentMs = SILENT_MS + Number(call.then?.at(-1) ?? 0); // WAIT takes its own time
    this.#usedUntil = Math.max(this.#usedUntil, monotonic() + silentMs);
    const sent = talk.send(call);
    const reply = within(sent.reply, Infinity, silentMs, sent.heard);
    reply.catch((error: unknown) => {
      if (talk === this.#talk && (!talk.line.isOpen || error instanceof SilentError)) this.close();
    });
    return within(reply, until - monotonic());
  }

  close(): void {
    this.#talk?.line.close();
    this.#talk = undefined;
    clearInterval(this.#timer);
  }

  #make(): Talk {
    this.close();
    this.#madeAt = monotonic();
    this.#timer = setInterval(() => { if (monotonic() - this.#usedUntil >= IDLE_MS) this.close(); }, IDLE_MS).unref();
    return (this.#talk = new Talk(this.base.duplicate(), this.base));
  }
}

/** The channels of one server, over one connection. If that ends, another one takes its place. */
class Subscription {
  readonly channels = new Map<string, {heard(payload: string): void; changed(): void}>();
  #subscriber: Promise<Subscriber> | undefined;
  #madeAt = 0;
  /** When the last subscription was confirmed. */
  #heardAt = 0;

  /** `ended` is called when a connection has ended. */
  constructor(readonly open: (on: Listening) => Promise<Subscriber>, readonly ended: () => void) {}

  add(name: string, channel: {heard(payload: string): void; changed(): void}): void {
    this.channels.set(name, channel);
    if (this.#subscriber) void this.#subscribe(this.#subscriber, name);
    else this.#connect();
  }

  remove(name: string): void {
    this.channels.delete(name);
    if (this.channels.size === 0) this.#end(this.#subscriber);
    else this.#subscriber?.then((subscriber) => subscriber.unsubscribe(name), () => {});
  }

  #connect(): void {
    if (this.#subscriber || this.channels.size === 0) return;
    this.#madeAt = monotonic();
    const subscriber = this.#subscriber = this.open({
      message: (name, payload) => this.channels.get(name)?.heard(payload),
      missed: () => this.channels.forEach(({changed}) => changed()),
      ended: () => this.#end(subscriber),
    });
    subscriber.catch(() => this.#end(subscriber));
    for (const name of this.channels.keys()) void this.#subscribe(subscriber, name);
  }

  async #subscribe(subscriber: Promise<Subscriber>, name: string): Promise<void> {
    const subscribed = within(subscriber.then((one) => one.subscribe(name)), Infinity, SILENT_MS, () => this.#heardAt);
    const problem = await subscribed.then(() => "", (error: Error) => error.message);
    if (problem === "") this.#heardAt = monotonic();
    if (problem !== "" && !isReply(problem)) this.#end(subscriber);
    // After MOVED the request finds the server that has the key.
    if (problem === "" || problem.startsWith("MOVED")) this.channels.get(name)?.changed();
  }

  #end(subscriber: Promise<Subscriber> | undefined): void {
    if (!subscriber || subscriber !== this.#subscriber) return;
    this.#subscriber = undefined;
    subscriber.then((one) => one.close(), () => {});
    this.ended();
    setTimeout(() => this.#connect(), Math.max(0, this.#madeAt + LISTEN_PACE_MS - monotonic())).unref();
  }
}

/** Whether the server refused a login. */
const isLogin = (text: string): boolean => /^(WRONGPASS|NOAUTH)( |$)/.test(text);

/** Whether an error is a reply of the server to a command: its text begins with a code. */
export const isReply = (text: string): boolean => /^[A-Z][A-Z0-9_]+( |$)/.test(text) && !isLogin(text);

/** The error reply of an error, or the error if it is none. */
function asReply(error: unknown, withLogin = false): ReplyError {
  if (isError(error) && (isReply(error.message) || (withLogin && isLogin(error.message)))) return new ReplyError(error.message, {cause: error});
  throw error;
}

/**
 * The promise, or a rejection after so many ms, or when so many have passed since the last reply to anybody. What has arrived
 * by then counts, also if the event loop was busy.
 */
const within = <T>(promise: Promise<T>, ms: number, silentMs = Infinity, heard = () => 0): Promise<T> => new Promise((resolve, reject) => {
  const began = monotonic();
  let timer: NodeJS.Timeout | null | undefined; // null: it has settled
  const look = (): void => {
    const left = Math.min(began + ms, Math.max(began, heard()) + silentMs) - monotonic();
    if (left <= 0) reject(new SilentError());
    else if (timer !== null) timer = setTimeout(() => setImmediate(look), Math.min(left, MOST_TIMER_MS));
  };
  look();
  promise.then((value) => end(resolve, value), (error: unknown) => end(reject, error));
  function end<V>(settle: (value: V) => void, value: V): void {
    clearTimeout(timer ?? undefined);
    timer = null;
    settle(value);
  }
});
