// The connections on which waits end, one for each server, and the channels to which they listen.

import {NoAnswer} from "./answers.js";
import {now, within} from "./clock.js";
import {newToken, type Key} from "./commands.js";
import {ANSWER_MS, Connection} from "./connection.js";
import {ClosedError} from "./errors.js";
import type {Node} from "./node.js";
import type {Servers} from "./servers.js";
import type {Stop} from "./stop.js";

// The connection is tested so often, in ms, while somebody waits.
const PING_AFTER_MS = 5_000;

/** The channel has no subscriber any more: subscribe again, and ask again with the same token. */
export const SUBSCRIPTION_LOST = Symbol("subscription lost");

/** What came for a copy of a request: the first word of a message. */
export type Message = string | typeof SUBSCRIPTION_LOST;

/**
 * What comes on one subscription for one request that waits. All its copies have one tag: to the server they are one
 * request, whichever comes last. Made before the first is sent: the message can come before the reply.
 */
export class Inbox {
  /** Not later than any copy. */
  readonly began = now();
  private readonly messages: Message[] = [];
  private wake: (() => void) | undefined;

  constructor(readonly subscription: Subscription, readonly tag: string) {
    subscription.note(tag, (message) => {
      this.messages.push(message);
      this.wake?.();
    });
  }

  /** The next message; nothing when there is none until `end`. */
  async get(end: number, stop: Stop): Promise<Message | undefined> {
    if (this.messages.length === 0) {
      const arrives = new Promise<void>((resolve) => (this.wake = resolve));
      await within(stop.wait(arrives), end - now(), () => {});
    }
    return this.messages.shift();
  }

  /** Messages that come later are ignored: whoever gave the request up releases it. */
  forget(): void { this.subscription.forget(this.tag); }
}

/** A channel to which this process listens, and the waits that end there. */
export class Subscription {
  alive = true;
  readonly waits = new Map<string, (message: Message) => void>();

  /** `unused` is called when nobody waits there any more. */
  constructor(readonly name: string, readonly listener: Listener, private readonly unused: (subscription: Subscription) => void) {}

  /** From now on messages with the tag go there. */
  note(tag: string, take: (message: Message) => void): void {
    this.waits.set(tag, take);
    if (!this.alive) take(SUBSCRIPTION_LOST);
  }

  forget(tag: string): void {
    this.waits.delete(tag);
    this.look();
  }

  /** It is left when nobody waits there. */
  look(): void { if (this.waits.size === 0) this.unused(this); }

  lose(): void {
    this.alive = false;
    for (const take of this.waits.values()) take(SUBSCRIPTION_LOST);
  }

  /** The server does not know this subscription: nor may it know others. */
  fail(): void { if (this.alive) this.listener.fail(); }
}

/** One connection that listens at one server. When it fails, all who wait are told, and ask again. */
class Listener {
  private readonly connection: Connection;
  private readonly subscriptions = new Map<string, Subscription>();
  private readonly test = setInterval(() => this.ping(), PING_AFTER_MS).unref();

  constructor(node: Node) {
    this.connection = new Connection(node.open, node.name, ANSWER_MS, {
      message: (channel, text) => {
        const space = text.indexOf(" ");
        if (space > 0) this.subscriptions.get(channel)?.waits.get(text.slice(space + 1))?.(text.slice(0, space));
      },
      unsubscribed: (channel) => {
        // Not by this library: the slot has moved, or the node is a replica.
        const subscription = this.subscriptions.get(channel);
        this.subscriptions.delete(channel);
        subscription?.lose();
      },
      ended: () => {
        clearInterval(this.test);
        for (const subscription of this.subscriptions.values()) subscription.lose();
        this.subscriptions.clear();
      },
    });
  }

  get alive(): boolean { return this.connection.alive; }

  /** Returns when the server has confirmed it. An error of the server is thrown. */
  async subscribe(subscription: Subscription, until: number): Promise<void> {
    this.subscriptions.set(subscription.name, subscription);
    try {
      await this.connection.subscribe(subscription.name, until);
    } catch (error) {
      this.subscriptions.delete(subscription.name);
      if (error instanceof NoAnswer) this.fail();
      throw error;
    }
  }

  unsubscribe(subscription: Subscription): void {
    subscription.alive = false;
    if (this.subscriptions.delete(subscription.name)) this.connection.unsubscribe(subscription.name);
  }

  fail(): void { this.connection.fail(new Error("the listening connection was lost")); }

  /** A connection whose other end has vanished says nothing by itself. */
  private ping(): void {
    const isWaitedFor = [...this.subscriptions.values()].some(({waits}) => waits.size > 0);
    if (isWaitedFor) this.connection.ask([["PING"]], Infinity).catch(() => this.fail());
  }
}

/** The subscriptions of one `Locks`: one, or in a cluster one for each hash tag. */
export class Listening {
  private readonly listeners = new Map<Node, Listener>();
  private readonly subscriptions = new Map<string | undefined, Subscription>();
  private readonly subscribing = new Map<string | undefined, Promise<Subscription>>();
  private tags = 0;
  private closed = false;

  constructor(private readonly servers: Servers) {}

  /** A tag that names one request. */
  newTag(): string { return `${++this.tags}`; }

  /** The subscription for a key, when there is one. */
  present(key: Key): Subscription | undefined {
    const subscription = this.subscriptions.get(this.servers.channelTag(key));
    return subscription?.alive ? subscription : undefined;
  }

  /** The subscription for a key; it is made when there is none. Errors of the server are thrown. */
  async subscribe(key: Key, until: number): Promise<Subscription> {
    const hashTag = this.servers.channelTag(key);
    const present = this.present(key);
    if (present !== undefined) return present;
    let subscribing = this.subscribing.get(hashTag);
    if (subscribing === undefined) {
      subscribing = this.made(key, hashTag, now() + 2 * ANSWER_MS).finally(() => this.subscribing.delete(hashTag));
      this.subscribing.set(hashTag, subscribing);
    }
    // It is also for others, whose limits are later.
    return within(subscribing, until - now(), () => { throw new NoAnswer("there was no subscription within the time", true); });
  }

  /** Ends the connections for good. All that wait there are told. */
  close(): void {
    this.closed = true;
    for (const listener of this.listeners.values()) listener.fail();
  }

  /** In a cluster there may be as many channels as locks: those where nobody waits are left. */
  private unused(subscription: Subscription, hashTag: string | undefined): void {
    if (hashTag === undefined || this.subscriptions.get(hashTag) !== subscription) return;
    this.subscriptions.delete(hashTag);
    subscription.listener.unsubscribe(subscription);
  }

  private async made(key: Key, hashTag: string | undefined, until: number): Promise<Subscription> {
    const random = `waits:${newToken()}`;
    const name = hashTag === undefined ? random : `{${hashTag}}.${random}`;
    const {node} = await this.servers.placeOf(key, until);
    if (this.closed) throw new ClosedError();
    let listener = this.listeners.get(node);
    if (!listener?.alive) {
      listener = new Listener(node);
      this.listeners.set(node, listener);
    }
    try {
      const subscription = new Subscription(name, listener, (unused) => this.unused(unused, hashTag));
      await listener.subscribe(subscription, until);
      this.subscriptions.set(hashTag, subscription);
      setImmediate(() => subscription.look()); // those who asked for it may have given up meanwhile
      return subscription;
    } catch (error) {
      if (this.servers.redirected(key, error) !== undefined) {
        throw new NoAnswer("the slot is served by another node", true, error);
      }
      if (error instanceof NoAnswer) this.servers.doubt();
      throw error;
    }
  }
}
