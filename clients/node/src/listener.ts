// The channels by which requests wait: one for a server, one for each slot in a cluster. Each acquisition has a ticket with
// a secret tag, so that its messages reach it and nobody else can send one.

import {monotonic} from "./clock.js";
import {codeOf, draw, hashTag, readMessage, slotOf} from "./protocol.js";
import type {Reporter} from "./hooks.js";
import type {ReplyError, Transport} from "./transport.js";

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
  #message: Message | undefined;
  #wake = (): void => {};

  put(message: Message): void {
    // What is there must not be lost to `again`; the request is sent anyway after that.
    if (message !== "again" || this.#message === undefined) this.#message = message;
    this.#wake();
  }

  /** Settles when there is a message. */
  async heard(): Promise<void> {
    if (this.#message === undefined) await new Promise<void>((resolve) => (this.#wake = resolve));
  }

  take(): Message | undefined {
    const message = this.#message;
    this.#message = undefined;
    return message;
  }
}

export interface Channel {
  readonly slot: number;
  readonly name: string;
  /** By the tag. */
  readonly tickets: Map<string, Ticket>;
  stop(): void;
  /** Since when it has no subscription; undefined: it had one. */
  since: number | undefined;
  usedAt: number;
}

/** What the waits at one server share. */
export class Listener {
  readonly #channels = new Map<number, Channel>();
  /** Until when requests poll, because the user may not use channels. */
  #pollUntil = -Infinity;

  /**
   * `changed` is called when messages may have been missed. While `isKept`, channels stay open where nobody waits: their end
   * tells of another primary.
   */
  constructor(readonly transport: Transport, readonly reporter: Reporter, readonly changed: () => void, readonly isKept: () => boolean) {}

  /** The channel for a key, if there is one. With `open` it subscribes to one. */
  channel(key: string, open: boolean): Channel | undefined {
    const at = monotonic();
    if (at < this.#pollUntil) return undefined;
    const slot = this.transport.topology.isCluster ? slotOf(key) : 0;
    let channel = this.#channels.get(slot);
    if (!channel && open) {
      const made: Channel = {slot, name: this.#name(slot, key), tickets: new Map(), since: at, usedAt: at, stop() {}};
      this.#channels.set(slot, channel = made);
      // Others may send to the channel: a tag that is not known is ignored.
      const stop = this.transport.listen(made.name, (payload) => {
        const {tag, ...message} = readMessage(payload);
        made.tickets.get(tag)?.put(message);
      }, () => this.#again(made));
      const isIdle = (): boolean => made.tickets.size === 0 && monotonic() - made.usedAt >= IDLE_MS && !this.isKept();
      const timer = setInterval(() => { if (isIdle()) this.#close(made); }, IDLE_MS).unref();
      made.stop = () => {
        clearInterval(timer);
        stop();
      };
    }
    if (channel) channel.usedAt = at;
    return channel;
  }

  /** Notes that a request was refused because of its channel, and tells whether the user may not use it. */
  failed(channel: Channel, error: ReplyError): boolean {
    const isDenied = codeOf(error) === "NOPERM" && error.message.includes("channel");
    if (!isDenied && codeOf(error) !== "NOSUBSCRIBER") return false;
    const isInVain = isDenied || (channel.since !== undefined && monotonic() - channel.since > TRIAL_MS);
    if (isInVain) {
      this.#pollUntil = monotonic() + POLL_FOR_MS;
      this.reporter.warn(`waits poll, and are not served in order, because the user may not use channels: ${error.message}`);
    }
    if (isInVain || channel.since === undefined) this.#close(channel); // in the last case another server has the key
    return isDenied;
  }

  /** Ends all subscriptions. */
  close(): void { this.#channels.forEach((channel) => this.#close(channel)); }

  #close(channel: Channel): void {
    if (this.#channels.get(channel.slot) === channel) this.#channels.delete(channel.slot);
    channel.stop();
  }

  /** Has all requests of a channel sent again. */
  #again(channel: Channel): void {
    const wasUp = channel.since === undefined;
    channel.since = undefined;
    channel.tickets.forEach((ticket) => ticket.put("again"));
    if (wasUp) this.changed();
  }

  /** A new channel in the slot of the key. */
  #name(slot: number, key: string): string {
    if (!this.transport.topology.isCluster) return `waits:${draw()}`;
    let tag = hashTag(key);
    for (let n = 0; tag.includes("}"); n++) if (slotOf(String(n)) === slot) tag = String(n); // no name has this as its hash tag
    return `{${tag}}.waits:${draw()}`;
  }
}
