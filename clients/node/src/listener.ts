// The channels by which requests wait: one for a server, one for each slot in a cluster. Each acquisition has a ticket with
// a secret tag, so that its messages reach it and nobody else can send one.

import {monotonic} from "./clock.js";
import {codeOf, draw, hashTag, readMessage, slotOf} from "./protocol.js";
import type {Server} from "./server.js";
import type {ReplyError} from "./transport.js";

/** How long a channel may have no subscription on a server that replies, in ms. Then requests poll for a while. */
const TRIAL_MS = 3_000;
const POLL_FOR_MS = 30_000;
/** How long a channel stays open while nobody uses it, in ms. */
const IDLE_MS = 2_000;

/** What came to a ticket. `again`: a message may have been missed. */
export type Message = "again" | {readonly fence: number; readonly error?: ReplyError};

/** Receives the messages of one acquisition. */
export class Ticket {
  readonly tag = draw();
  #missed: Message | undefined;
  #wake: (() => void) | undefined;

  constructor(readonly slot: number) {}

  /** What came, or comes within so many ms. */
  async next(ms: number): Promise<Message | undefined> {
    if (this.#missed === undefined && ms > 0) {
      await new Promise<void>((resolve) => {
        const timer = setTimeout(resolve, ms);
        this.#wake = () => {
          clearTimeout(timer);
          resolve();
        };
      });
    }
    const message = this.#missed;
    this.#missed = this.#wake = undefined;
    return message;
  }

  put(message: Message): void {
    // A message that is there already must not be lost; after `again` the request is sent anyway.
    if (message !== "again" || this.#missed === undefined) this.#missed = message;
    this.#wake?.();
  }

  /** Ends the wait of `next`. */
  leave(): void { this.#wake?.(); }
}

interface Channel {
  readonly slot: number;
  readonly name: string;
  stop(): void;
  /** Since when it has no subscription; undefined: it had one. */
  since: number | undefined;
  /** When a request last used it. */
  used: number;
}

/** What the waits of one server share. */
export class Listener {
  readonly #server: Server;
  readonly #changed: () => void;
  readonly #channels = new Map<number, Channel>();
  readonly #tickets = new Map<string, Ticket>();
  #polling = -Infinity; // until when requests poll, because the user may not use channels
  #followed: Ticket | undefined;
  #timer: NodeJS.Timeout | undefined;

  /** `changed` is called when messages may have been missed. */
  constructor(server: Server, changed: () => void) {
    this.#server = server;
    this.#changed = changed;
  }

  /** The name of the channel for a key, if there is one. With `open` it subscribes to one, which then is new. */
  channel(key: string, open: boolean): {name: string | undefined; isNew: boolean} {
    const slot = this.#slot(key);
    let channel = this.#channels.get(slot);
    if (monotonic() < this.#polling || (!channel && !open)) return {name: undefined, isNew: false};
    if (channel) {
      channel.used = monotonic();
      return {name: channel.name, isNew: false};
    }
    channel = {slot, name: this.#name(slot, key), since: monotonic(), used: monotonic(), stop() {}};
    this.#channels.set(slot, channel);
    const made = channel;
    made.stop = this.#server.transport.listen(made.name, (payload) => this.#deliver(payload), () => this.#again(made));
    this.#timer ??= setTimeout(() => this.#rest(), IDLE_MS).unref();
    return {name: made.name, isNew: true};
  }

  /** Keeps a channel open, where its end tells of another primary. */
  follow(key: string): void {
    this.#followed ??= this.ticket(key);
    this.channel(key, true);
  }

  unfollow(): void {
    if (this.#followed) this.forget(this.#followed);
    this.#followed = undefined;
  }

  ticket(key: string): Ticket {
    const ticket = new Ticket(this.#slot(key));
    this.#tickets.set(ticket.tag, ticket);
    return ticket;
  }

  forget({tag}: Ticket): void { this.#tickets.delete(tag); }

  /** Notes that a request was refused because of its channel, and tells whether the user may not use it. */
  failed(key: string, error: unknown): boolean {
    const isDenied = codeOf(error) === "NOPERM" && (error as Error).message.includes("channel");
    if (!isDenied && codeOf(error) !== "NOSUBSCRIBER") return false;
    const channel = this.#channels.get(this.#slot(key));
    if (!channel) return isDenied;
    const isInVain = isDenied || (channel.since !== undefined && monotonic() - channel.since > TRIAL_MS);
    if (isInVain) {
      this.#polling = monotonic() + POLL_FOR_MS;
      this.#server.reporter.polls(error);
    }
    if (isInVain || channel.since === undefined) { // in the last case the server that has the key is another one
      this.#channels.delete(channel.slot);
      channel.stop();
    }
    return isDenied;
  }

  /** Ends all subscriptions. */
  close(): void {
    for (const channel of this.#channels.values()) channel.stop();
    this.#channels.clear();
  }

  /** Closes the channels that nobody uses. */
  #rest(): void {
    const slots = new Set([...this.#tickets.values()].map(({slot}) => slot));
    for (const channel of this.#channels.values()) {
      if (slots.has(channel.slot) || monotonic() - channel.used < IDLE_MS) continue;
      this.#channels.delete(channel.slot);
      channel.stop();
    }
    this.#timer = this.#channels.size > 0 ? setTimeout(() => this.#rest(), IDLE_MS).unref() : undefined;
  }

  /** Has all requests of a channel sent again. */
  #again(channel: Channel): void {
    const wasUp = channel.since === undefined;
    channel.since = undefined;
    for (const ticket of this.#tickets.values()) {
      if (ticket.slot === channel.slot) ticket.put("again");
    }
    if (wasUp) this.#changed();
  }

  /** Others may send to the channel: a tag that is not known is ignored. */
  #deliver(payload: string): void {
    const {tag, ...message} = readMessage(payload);
    this.#tickets.get(tag)?.put(message);
  }

  /** The slot of a key, and 0 without a cluster. */
  #slot(key: string): number { return this.#server.transport.topology.isCluster ? slotOf(key) : 0; }

  /** A new channel in the slot of the key. */
  #name(slot: number, key: string): string {
    if (!this.#server.transport.topology.isCluster) return `waits:${draw()}`;
    let tag = hashTag(key);
    for (let n = 0; tag.includes("}"); n++) { // no name has this as its hash tag
      if (slotOf(String(n)) === slot) tag = String(n);
    }
    return `{${tag}}.waits:${draw()}`;
  }
}
