// SPDX-License-Identifier: MIT OR Apache-2.0

// The channels by which requests wait: one for a server, one for each slot in a cluster. Each acquisition has a ticket with
// a secret tag, so that its messages reach it and nobody else can send one.

import {monotonic} from "./clock.js";
import {codeOf, draw, hashTag, readMessage, slotOf} from "./protocol.js";
import type {Reporter} from "./hooks.js";
import type {ReplyError, Transport} from "./transport.js";

/** How long the server may leave a subscription unconfirmed before that is a warning, and before another one is tried, in ms. */
const TRIAL_MS = 3_000;
const RETRY_MS = 30_000;
/** How long a channel stays open while nobody uses it, in ms. */
const IDLE_MS = 2_000;

/** What came to a ticket. `again`: a message may have been missed. */
export type Message = "again" | {readonly fence: number; readonly error?: ReplyError};

/** Receives the messages of one acquisition. */
export class Ticket {
  #tag: string | undefined;
  #message: Message | undefined;
  #wake = (): void => {};

  /** The secret of who waits. */
  get tag(): string { return this.#tag ??= draw(); }

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
  /** Since when the server has not confirmed the subscription; undefined: it has. */
  since: number | undefined;
  usedAt: number;
}

/** What the waits at one server share. */
export class Listener {
  readonly #channels = new Map<number, Channel>();
  /** Whether it was a warning that requests poll. */
  #isWarned = false;

  /**
   * `changed` is called when messages may have been missed. While `isKept`, channels stay open where nobody waits: their end
   * tells of another primary.
   */
  constructor(readonly transport: Transport, readonly reporter: Reporter, readonly changed: () => void, readonly isKept: () => boolean) {}

  /** The channel for a key, if there is one. With `open` it subscribes to one. Until the server confirms that, requests poll. */
  channel(key: string, open: boolean): Channel | undefined {
    const at = monotonic();
    const slot = this.transport.topology.isCluster ? slotOf(key) : 0;
    let channel = this.#channels.get(slot);
    const trialMs = at - (channel?.since ?? at);
    if (trialMs > TRIAL_MS && !this.#isWarned) {
      this.#isWarned = true;
      this.reporter.warn("waits poll, and are not served in order, because the server confirms no subscription: may the user use the channels?");
    }
    if (channel && trialMs > RETRY_MS) channel = this.#close(channel);
    if (!channel && open) this.#channels.set(slot, channel = this.#open(slot, key, at));
    if (channel) channel.usedAt = at;
    return channel;
  }

  /** Notes that a request was refused because of its channel. True: it polls from now on. */
  failed(channel: Channel, error: ReplyError): boolean {
    const isDenied = codeOf(error) === "NOPERM" && error.message.includes("channel");
    if (isDenied) channel.since ??= monotonic();
    else if (codeOf(error) === "NOSUBSCRIBER") this.#close(channel); // another server has the key
    return isDenied;
  }

  #open(slot: number, key: string, at: number): Channel {
    const made: Channel = {slot, name: this.#name(slot, key), tickets: new Map(), since: at, usedAt: at, stop() {}};
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
    return made;
  }

  /** Ends all subscriptions. */
  close(): void { this.#channels.forEach((channel) => this.#close(channel)); }

  #close(channel: Channel): undefined {
    if (this.#channels.get(channel.slot) !== channel) return;
    this.#channels.delete(channel.slot);
    channel.stop();
    channel.tickets.forEach((ticket) => ticket.put("again")); // those who wait there find another one
  }

  /** Has all requests of a channel sent again. */
  #again(channel: Channel): void {
    channel.since = undefined;
    this.#isWarned = false;
    channel.tickets.forEach((ticket) => ticket.put("again"));
    this.changed();
  }

  /** A new channel in the slot of the key. */
  #name(slot: number, key: string): string {
    if (!this.transport.topology.isCluster) return `waits:${draw()}`;
    let tag = hashTag(key);
    for (let n = 0; tag.includes("}"); n++) if (slotOf(String(n)) === slot) tag = String(n); // no name has this as its hash tag
    return `{${tag}}.waits:${draw()}`;
  }
}
