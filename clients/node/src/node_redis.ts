// Clients of node-redis 5 and 6: of one server, pools, clusters, and by Sentinels. Only what its documents name is used.

import type {Base, Line, Listening, Subscriber} from "./connections.js";
import {invalid} from "./errors.js";
import {slotOf} from "./protocol.js";

/** What is used of a client that `createClient` makes. */
export interface NodeRedisClient {
  readonly isOpen: boolean;
  readonly isReady: boolean;
  sendCommand(words: string[], options?: object): Promise<unknown>;
  duplicate(): unknown;
  sSubscribe(channel: string, listener: (message: string, channel: string) => unknown): Promise<unknown>;
}

/** What is used of a pool that `createClientPool` makes. */
export interface NodeRedisPool {
  readonly isOpen: boolean;
  execute(work: (client: never) => unknown): Promise<unknown>;
  readonly clientsInUse?: number;
}

/** What is used of a client that `createCluster` makes. */
export interface NodeRedisCluster {
  readonly isOpen: boolean;
  sendCommand(key: string | undefined, isReadonly: boolean | undefined, words: string[], options?: object): Promise<unknown>;
  duplicate(overrides?: object): unknown;
  readonly masters: readonly unknown[];
  readonly slots: readonly {readonly master: unknown}[];
  nodeClient(node: never): unknown;
}

/** What is used of a client that `createSentinel` makes. That of node-redis 5 needs a `duplicate`: see the README. */
export interface NodeRedisSentinel {
  readonly isOpen: boolean;
  readonly isReady: boolean;
  sendCommand(isReadonly: boolean, words: string[], options?: object): Promise<unknown>;
  duplicate(overrides?: object): unknown;
  getMasterNode(): {readonly host: string; readonly port: number} | undefined;
}

// Duplicates are clients of node-redis as well, whose types differ between its versions.
type Any = any;

/** Plain replies whatever the program's client maps, and no time limit of its own. */
const PLAIN = Object.freeze({typeMapping: {}, timeout: undefined});

const nothing = (): void => {};

/** A duplicate of a client, which connects once and does not keep the process alive. */
function duplicateOf(client: Any): Any {
  const socket = {...client.options?.socket, reconnectStrategy: false, socketTimeout: undefined};
  const made = client.duplicate({
    socket, url: undefined, commandOptions: {}, commandsQueueMaxLength: undefined, disableOfflineQueue: false,
    clientSideCache: undefined, emitInvalidate: false, pingInterval: undefined, readonly: false,
  });
  made.on("error", nothing).unref();
  return made;
}

/** Closes a duplicate. One that is connecting has no socket to close before it is connected. */
function close(client: Any): void {
  if (client.isReady) client.destroy();
  else client.once("ready", () => client.destroy());
}

function lineOf(client: Any): Line {
  return {
    get isOpen() { return client.isOpen; },
    get isReady() { return client.isReady; },
    send: (words, key) => {
      const reply = client.sendCommand(words, PLAIN);
      return key === "" ? reply.then((value: unknown) => [value]) : reply;
    },
    close: () => close(client),
  };
}

function opened(client: Any): Line {
  client.connect().catch(nothing);
  return lineOf(client);
}

function subscriberOf(client: Any, {ready, message, ended, missed}: Listening): Subscriber {
  client.on("ready", ready).on("error", ended).on("end", ended).on("sharded-channel-moved", missed);
  client.connect().catch(nothing);
  return {
    subscribe: (channel) => client.sSubscribe(channel, (payload: string) => message(channel, payload)),
    unsubscribe: (channel) => void client.sUnsubscribe(channel).catch(nothing),
    close: () => close(client),
  };
}

const addressOf = (socket: Any): string => socket?.path ?? `${socket?.host ?? "localhost"}:${socket?.port ?? 6379}`;

/** The key prefix of node-redis 6. */
const prefixOf = (client: Any): string | undefined => {
  const prefix = client.options?.keyPrefix ?? client._keyPrefix;
  return prefix && String(prefix);
};

export function clientBase(client: NodeRedisClient): Base {
  return {
    topology: {name: addressOf((client as Any).options?.socket), prefix: prefixOf(client)},
    program: lineOf(client),
    repeatsAfterMs: Infinity,
    duplicate: () => opened(duplicateOf(client)),
    place: () => "",
    subscriber: (_, listening) => subscriberOf(duplicateOf(client), listening),
  };
}

export function poolBase(pool: NodeRedisPool): Base {
  let pattern: Any; // a client of the pool, to make duplicates of
  const first = (): Any => {
    if (!pattern) throw new Error("no client of the pool was free yet");
    return duplicateOf(pattern);
  };
  const learn = (client: Any): Any => (pattern ??= client.duplicate());
  if (pool.isOpen) pool.execute(learn as Any).catch(nothing);
  return {
    topology: {name: "the pool", prefix: prefixOf(pool)},
    program: {
      get isOpen() { return pool.isOpen; },
      get isReady() { return pool.isOpen; },
      send: (words, key) => pool.execute(((client: Any) => {
        learn(client);
        return lineOf(client).send(words, key);
      }) as Any),
      close: nothing,
    },
    repeatsAfterMs: Infinity,
    duplicate: () => opened(first()),
    place: () => "",
    subscriber: (_, listening) => subscriberOf(first(), listening),
  };
}

export function clusterBase(cluster: NodeRedisCluster): Base {
  const lineOfCluster = (one: Any, connected?: Promise<unknown>): Line => {
    const node = async (key: string): Promise<Any> => {
      await connected;
      const owner = one.slots[slotOf(key)]?.master;
      if (!owner) throw new Error(`no node of the cluster is known for slot ${slotOf(key)}`);
      return one.nodeClient(owner);
    };
    return {
      get isOpen() { return one.isOpen; },
      get isReady() { return one.isReady ?? one.isOpen; },
      async send(words, key) {
        await connected;
        if (key === "") return Promise.all(one.masters.map(async (master: Any) => (await one.nodeClient(master)).sendCommand(words, PLAIN)));
        if (!one.slots[slotOf(key)]) throw new Error(`no node of the cluster is known for slot ${slotOf(key)}`);
        return one.sendCommand(key, false, words, PLAIN);
      },
      sendTwo(words, then, key) {
        const owner = node(key);
        const send = (command: readonly string[]): Promise<unknown> => owner.then((client) => client.sendCommand(command, PLAIN));
        return [send(words), send(then)];
      },
      close: () => one.isOpen && one.destroy(),
    };
  };
  return {
    topology: {name: "the cluster", isCluster: true, prefix: prefixOf(cluster)},
    program: lineOfCluster(cluster),
    repeatsAfterMs: Infinity,
    duplicate() {
      const made = (cluster as Any).duplicate({minimizeConnections: true}).on("error", nothing);
      const connected = made.connect();
      connected.catch(nothing);
      return lineOfCluster(made, connected);
    },
    place: (channel) => String((cluster.slots[slotOf(channel)]?.master as Any)?.address),
    subscriber(place, listening) {
      let inner: Subscriber | undefined;
      let isClosed = false;
      const owner = cluster.masters.find((master) => (master as Any).address === place);
      (async () => {
        const client = await (cluster as Any).nodeClient(owner);
        if (!isClosed) inner = subscriberOf(duplicateOf(client), listening);
      })().catch(() => listening.ended());
      return {
        subscribe: (channel) => inner!.subscribe(channel),
        unsubscribe: (channel) => inner?.unsubscribe(channel),
        close() {
          isClosed = true;
          inner?.close();
        },
      };
    },
  };
}

export function sentinelBase(sentinel: NodeRedisSentinel): Base {
  if (typeof sentinel.duplicate !== "function") {
    throw invalid("createSentinel of node-redis 5 has no duplicate(): give Object.assign(sentinel, {duplicate: () => createSentinel(options)})");
  }
  const lineOfSentinel = (one: Any, connected?: Promise<unknown>): Line => ({
    get isOpen() { return one.isOpen; },
    get isReady() { return one.isReady && one.getMasterNode() !== undefined; },
    async send(words, key) {
      await connected;
      try {
        const reply = await one.sendCommand(false, words, PLAIN);
        return key === "" ? [reply] : reply;
      } catch (error) { // of a type while it changes the primary
        throw error instanceof TypeError ? new Error("the primary is not known yet", {cause: error}) : error;
      }
    },
    close: () => void one.destroy().catch(nothing),
  });
  const made = (): Any => (sentinel as Any).duplicate({masterPoolSize: 1, replicaPoolSize: 0, reserveClient: false}).on("error", nothing);
  return {
    topology: {name: "the primary of the Sentinels", hasFailover: true, prefix: prefixOf(sentinel)},
    program: lineOfSentinel(sentinel),
    repeatsAfterMs: 5, // after READONLY, and when a connection was lost
    duplicate() {
      const one = made();
      const connected = one.connect();
      connected.catch(nothing);
      return lineOfSentinel(one, connected);
    },
    place: () => "",
    subscriber(_, {ready, message, ended}) {
      const one = made();
      one.connect().then(() => {
        one.on("topology-change", ({type}: {type: string}) => { if (type === "MASTER_CHANGE") ended(); });
        ready();
      }, ended);
      return {
        subscribe: (channel) => one.sSubscribe(channel, (payload: string) => message(channel, payload)),
        unsubscribe: (channel) => void one.sUnsubscribe(channel).catch(nothing),
        close: () => void one.destroy().catch(nothing),
      };
    },
  };
}
