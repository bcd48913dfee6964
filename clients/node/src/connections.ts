// The program's client and the duplicates that its library makes of it. Commands go over the program's client. Renewals, and
// commands while the program's own occupy it or keep it silent, go over a duplicate, and so do subscriptions.

import {monotonic} from "./clock.js";
import {ReplyError, SilentError, UnusableError, type Call, type Reply, type Topology, type Transport} from "./transport.js";

/** How long a reply over the program's client is waited for before the command is sent over a duplicate too, in ms. */
const PROGRAM_MS = 400;
/** How long the program's client is left alone after that. Then one command tries it. */
const SUSPECT_MS = 1_000;
/** How long a duplicate may owe replies, or the confirmation of a subscription, before another one takes its place. */
const SILENT_MS = 1_000;
/** The shortest time between two duplicates. */
const PACE_MS = 250;
/** How long a duplicate stays open while nothing goes over it. */
const IDLE_MS = 5_000;
/** How many connections wait for replicas at most. */
const MOST_WAITING = 4;

/** A client object of a Redis client library: the program's, or a duplicate. */
export interface Line {
  /** Whether it may still reply. */
  readonly isOpen: boolean;
  /** Whether a command goes out at once. */
  readonly isReady: boolean;
  /** Rejects with the error of the library, also for an error reply. Without a key it gives an array of all replies. */
  send(words: readonly string[], key: string): Promise<unknown>;
  /** Of a cluster: sends two commands over one connection, to the node that had the key lately. */
  sendTwo?(words: readonly string[], then: readonly string[], key: string): [Promise<unknown>, Promise<unknown>];
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
  /** It is connected. */
  ready(): void;
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
  /** A duplicate for commands. It connects once. */
  duplicate(): Line;
  /** Names the server that has a channel. Channels of one server share a connection. */
  place(channel: string): string;
  subscriber(place: string, listening: Listening): Subscriber;
}

/** The transport over the client of a Redis client library. */
export class ClientTransport implements Transport {
  readonly topology: Topology;
  readonly #base: Base;
  readonly #reserved: Spare;
  readonly #waiting: readonly Spare[];
  readonly #subscriptions = new Map<string, Subscription>();
  /** Until when the program's client is left alone; 0: it replies. */
  #suspectUntil = 0;

  constructor(base: Base) {
    this.#base = base;
    this.topology = base.topology;
    this.#reserved = new Spare(base);
    this.#waiting = Array.from({length: MOST_WAITING}, () => new Spare(base));
  }

  async call(call: Call, limitMs: number): Promise<Reply> {
    const {program} = this.#base;
    if (!program.isOpen) throw new UnusableError("the client is closed, or was never connected");
    if (call.then) return this.#waiting.reduce((one, other) => (other.busy < one.busy ? other : one)).call(call, limitMs);
    let isRepeated = false;
    const until = monotonic() + limitMs;
    if (!call.reserved && program.isReady && !this.#isSuspect()) {
      const sent = replyTo(program, call, this.#base.repeatsAfterMs);
      sent.then(() => (this.#suspectUntil = 0), () => {}); // also if it comes late
      try {
        return await within(sent, Math.min(limitMs / 2, PROGRAM_MS));
      } catch {
        this.#suspectUntil = monotonic() + SUSPECT_MS;
        isRepeated = true;
      }
    }
    const reply = await this.#reserved.call(call, until - monotonic());
    return isRepeated ? {...reply, isRepeated} : reply;
  }

  listen(channel: string, heard: (payload: string) => void, changed: () => void): () => void {
    const place = this.#base.place(channel);
    let subscription = this.#subscriptions.get(place);
    if (!subscription) {
      const made = new Subscription((listening) => this.#base.subscriber(place, listening), () => {
        if (this.#subscriptions.get(place) === made) this.#subscriptions.delete(place);
        if (this.topology.hasFailover) this.#drop(); // it may be at the former primary
      });
      this.#subscriptions.set(place, subscription = made);
    }
    subscription.add(channel, {heard, changed});
    return () => subscription.remove(channel);
  }

  close(): void {
    this.#drop();
    for (const subscription of this.#subscriptions.values()) subscription.close();
    this.#subscriptions.clear();
  }

  #drop(): void { for (const spare of [this.#reserved, ...this.#waiting]) spare.close(); }

  #isSuspect(): boolean {
    if (this.#suspectUntil === 0) return false;
    if (monotonic() < this.#suspectUntil) return true;
    this.#suspectUntil = monotonic() + SUSPECT_MS; // this command tries it
    return false;
  }
}

/** A duplicate that is made when it is needed. */
class Spare {
  busy = 0;
  readonly #base: Base;
  #line: Line | undefined;
  #madeAt = -Infinity;
  #usedAt = 0;
  /** Since when it owes a reply and has not given any. */
  #silentSince: number | undefined;
  #problem: unknown;
  #timer: NodeJS.Timeout | undefined;

  constructor(base: Base) { this.#base = base; }

  async call(call: Call, limitMs: number): Promise<Reply> {
    const line = this.#take();
    const began = this.#usedAt = monotonic();
    this.busy += 1;
    try {
      const reply = await within(replyTo(line, call, this.#base.repeatsAfterMs), Math.min(limitMs, this.#limitOf(call)));
      if (this.#line === line) this.#silentSince = undefined;
      return reply;
    } catch (error) {
      this.#problem = error;
      if (this.#line === line) {
        this.#silentSince ??= began;
        if (!line.isOpen || monotonic() - this.#silentSince >= this.#limitOf(call)) this.close();
      }
      throw error;
    } finally {
      this.busy -= 1;
    }
  }

  close(): void {
    this.#line?.close();
    this.#line = this.#silentSince = undefined;
    clearTimeout(this.#timer);
    this.#timer = undefined;
  }

  #take(): Line {
    if (this.#line?.isOpen) return this.#line;
    if (monotonic() - this.#madeAt < PACE_MS && this.#problem !== undefined) throw this.#problem;
    this.close();
    this.#madeAt = monotonic();
    this.#timer = setTimeout(() => this.#rest(), IDLE_MS).unref();
    return (this.#line = this.#base.duplicate());
  }

  #rest(): void {
    if (this.busy === 0 && monotonic() - this.#usedAt >= IDLE_MS) this.close();
    else this.#timer = setTimeout(() => this.#rest(), IDLE_MS).unref();
  }

  /** WAIT takes its own time. */
  #limitOf({then}: Call): number { return SILENT_MS + (then ? Number(then.at(-1)) : 0); }
}

interface Channel {
  readonly heard: (payload: string) => void;
  readonly changed: () => void;
}

/** The channels of one server, over one connection. If that ends, another one takes its place. */
class Subscription {
  readonly #channels = new Map<string, Channel>();
  readonly #open: (listening: Listening) => Subscriber;
  readonly #ended: () => void;
  #subscriber: Subscriber | undefined;
  #isReady = false;
  #madeAt = -Infinity;

  /** `ended` is called when a connection has ended. */
  constructor(open: (listening: Listening) => Subscriber, ended: () => void) {
    this.#open = open;
    this.#ended = ended;
    this.#connect();
  }

  add(name: string, channel: Channel): void {
    this.#channels.set(name, channel);
    if (this.#isReady) this.#subscribe(name);
  }

  remove(name: string): void {
    this.#channels.delete(name);
    if (this.#channels.size === 0) this.close();
    else if (this.#isReady) this.#subscriber?.unsubscribe(name);
  }

  close(): void {
    this.#channels.clear();
    this.#end();
  }

  #connect(): void {
    this.#madeAt = monotonic();
    const isCurrent = (): boolean => this.#subscriber === subscriber;
    const subscriber: Subscriber = this.#open({
      ready: () => {
        if (!isCurrent()) return;
        this.#isReady = true;
        for (const name of this.#channels.keys()) this.#subscribe(name);
      },
      message: (name, payload) => this.#channels.get(name)?.heard(payload),
      missed: () => this.#missed(),
      ended: () => { if (isCurrent()) this.#end(); },
    });
    this.#subscriber = subscriber;
    this.#limit(subscriber, () => this.#isReady);
  }

  #subscribe(name: string): void {
    const subscriber = this.#subscriber!;
    const channel = this.#channels.get(name);
    let isConfirmed = false;
    this.#limit(subscriber, () => isConfirmed);
    subscriber.subscribe(name).then(() => {
      isConfirmed = true;
      if (this.#channels.get(name) === channel) channel?.changed();
    }, (error: unknown) => {
      isConfirmed = error instanceof Error && isReply(error);
      if (isConfirmed && (error as Error).message.startsWith("MOVED")) channel?.changed(); // it finds the server again
    });
  }

  /** Ends a connection on which something has not happened in time. */
  #limit(subscriber: Subscriber, hasHappened: () => boolean): void {
    setTimeout(() => { if (!hasHappened() && this.#subscriber === subscriber) this.#end(); }, SILENT_MS).unref();
  }

  #missed(): void { for (const {changed} of this.#channels.values()) changed(); }

  #end(): void {
    this.#subscriber?.close();
    this.#subscriber = undefined;
    this.#isReady = false;
    this.#ended();
    if (this.#channels.size === 0) return;
    setTimeout(() => {
      if (!this.#subscriber && this.#channels.size > 0) this.#connect();
    }, Math.max(0, this.#madeAt + PACE_MS - monotonic())).unref();
  }
}

/** Whether an error is a reply of the server to a command: its text begins with a code. A login may succeed a little later. */
const isReply = (error: Error): boolean => /^(?!WRONGPASS|NOAUTH)[A-Z][A-Z0-9_]+( |$)/.test(error.message);

async function replyTo(line: Line, {command, then, key}: Call, repeatsAfterMs: number): Promise<Reply> {
  const began = monotonic();
  if (!then) {
    const value = await valueOf(line.send(command, key));
    return {value, isRepeated: monotonic() - began >= repeatsAfterMs};
  }
  // What follows must not go to a node that has not got the key any more. This finds the node.
  if (line.sendTwo) await line.send(command, key);
  const [first, second] = line.sendTwo?.(command, then, key) ?? [line.send(command, key), line.send(then, key)];
  const [value, next] = await Promise.all([valueOf(first), valueOf(second)]);
  return {value, then: next, isRepeated: true};
}

const valueOf = (reply: Promise<unknown>): Promise<unknown> => reply.catch((error: unknown) => {
  if (error instanceof Error && isReply(error)) return new ReplyError(error.message, {cause: error});
  throw error;
});

/** The promise, or a rejection after so many ms. What has arrived by then counts, also if the event loop was busy. */
function within<T>(promise: Promise<T>, ms: number): Promise<T> {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => setImmediate(() => reject(new SilentError())), ms);
    promise.then((value) => {
      clearTimeout(timer);
      resolve(value);
    }, (error: unknown) => {
      clearTimeout(timer);
      reject(error);
    });
  });
}
