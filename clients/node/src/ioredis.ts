// Clients of ioredis 5 and 6 and of iovalkey: of one server, by Sentinels, and of a cluster. Only public parts are used.

import type {Base, Line, Listening, Subscriber} from "./connections.js";
import {slotOf} from "./protocol.js";

/** What is used of a `Redis`. */
export interface IoredisClient {
  readonly status: string;
  readonly options: object;
  call(command: string, ...words: string[]): Promise<unknown>;
  duplicate(override?: object): unknown;
}

/** What is used of a `Cluster`. */
export interface IoredisCluster {
  readonly status: string;
  readonly options: object;
  /** The names of the nodes of each slot. */
  readonly slots: readonly (readonly string[])[];
  call(command: string, ...words: string[]): Promise<unknown>;
  nodes(role?: "all" | "master" | "slave"): readonly IoredisClient[];
  duplicate(nodes?: never[], options?: object): unknown;
}

// Duplicates are clients of ioredis as well, whose types differ between its versions.
type Any = any;

const nothing = (): void => {};

/** Of a duplicate: it connects once, and has no time limit of its own. */
const PLAIN = {
  lazyConnect: false, retryStrategy: null, reconnectOnError: null, maxRetriesPerRequest: null, enableOfflineQueue: true,
  enableAutoPipelining: false, commandTimeout: undefined, socketTimeout: undefined, keyPrefix: "", readOnly: false, monitor: false,
};

/** With Sentinels: it asks each once, and notices a failover. */
const FAILOVER = {sentinelRetryStrategy: () => null, sentinelReconnectStrategy: () => 1_000, failoverDetector: true};

/** A duplicate, which does not keep the process alive. `problem` tells its last error. */
function duplicateOf(client: IoredisClient, isSentinel: boolean): {made: Any; problem: () => unknown} {
  const made = client.duplicate({...PLAIN, ...(isSentinel && FAILOVER)}) as Any;
  let last: unknown;
  made.on("error", (error: unknown) => (last = error)).on("connect", () => made.stream?.unref?.());
  return {made, problem: () => last};
}

/** Closes a duplicate. One that has ended would start a timer. */
const close = (client: Any): void => { if (client.status !== "end" && client.status !== "close") client.disconnect(); };

/** Whether it is connected. A lazy one connects when it is used. */
function isReady(client: Any): boolean {
  if (client.status === "wait") client.connect().catch(nothing);
  return client.status === "ready";
}

const call = (client: Any, [name, ...words]: readonly string[]): Promise<unknown> => client.call(name, ...words);

function lineOf(client: Any, problem?: () => unknown): Line {
  return {
    get isOpen() { return client.status !== "end"; },
    get isReady() { return isReady(client); },
    async send(words, key) {
      try {
        const reply = await call(client, words);
        return key === "" ? [reply] : reply;
      } catch (error) {
        // Of a connection that could not be made it only says that it is closed.
        throw client.status === "end" || client.status === "close" ? (problem?.() ?? error) : error;
      }
    },
    close: () => close(client),
  };
}

function subscriberOf({made}: {made: Any}, {ready, message, missed, ended}: Listening): Subscriber {
  made.on("ready", ready).on("end", ended).on("error", missed).on("moved", missed).on("smessage", message);
  return {
    subscribe: (channel) => made.ssubscribe(channel),
    unsubscribe: (channel) => void made.sunsubscribe(channel).catch(nothing),
    close: () => close(made),
  };
}

export function ioredisBase(client: IoredisClient): Base {
  const {host = "localhost", port = 6379, path, name, sentinels, failoverDetector, keyPrefix} = client.options as Any;
  const isSentinel = Boolean(sentinels);
  const program = lineOf(client);
  return {
    topology: {
      name: isSentinel ? `the primary of ${name}` : (path ?? `${host}:${port}`), hasFailover: isSentinel, prefix: keyPrefix,
    },
    // A client that does not notice a failover stays with the former primary: then all goes over a duplicate.
    program: isSentinel && !failoverDetector ? {...program, isReady: false, get isOpen() { return program.isOpen; }} : program,
    repeatsAfterMs: 5, // when a connection was lost
    duplicate() {
      const {made, problem} = duplicateOf(client, isSentinel);
      return lineOf(made, problem);
    },
    place: () => "",
    subscriber: (_, listening) => subscriberOf(duplicateOf(client, isSentinel), listening),
  };
}

const nameOf = (node: IoredisClient): string => {
  const {host, port} = node.options as Any;
  return `${host}:${port}`;
};

/** The node that has a slot, as far as the client knows. ioredis itself does not know the keys of the commands of modules. */
const nodeOf = (cluster: IoredisCluster, key: string): Any => {
  const [name] = cluster.slots[slotOf(key)] ?? [];
  return name && cluster.nodes("all").find((node) => nameOf(node) === name);
};

export function ioredisClusterBase(cluster: IoredisCluster): Base {
  const lineOfCluster = (one: Any): Line => ({
    get isOpen() { return one.status !== "end"; },
    get isReady() { return isReady(one); },
    async send(words, key) {
      if (key === "") return Promise.all(one.nodes("master").map((node: Any) => call(node, words)));
      const node = nodeOf(one, key);
      if (!node) return call(one, words); // any node redirects
      try {
        return await call(node, words);
      } catch (error) {
        if (!/^(MOVED|ASK) /.test((error as Error).message)) throw error;
        return call(one, words); // the client follows, and learns
      }
    },
    sendTwo(words, then, key) {
      const node = nodeOf(one, key) ?? one;
      return [call(node, words), call(node, then)];
    },
    close: () => close(one),
  });
  const {keyPrefix, redisOptions} = cluster.options as Any;
  return {
    topology: {name: "the cluster", isCluster: true, prefix: keyPrefix ?? redisOptions?.keyPrefix},
    program: lineOfCluster(cluster),
    repeatsAfterMs: 5,
    duplicate() {
      const {retryStrategy, lazyConnect, ...plain} = PLAIN;
      const made = cluster.duplicate([], {
        lazyConnect, keyPrefix: "", enableAutoPipelining: false, clusterRetryStrategy: () => null, redisOptions: plain,
      }) as Any;
      made.on("error", nothing);
      return lineOfCluster(made);
    },
    place: (channel) => cluster.slots[slotOf(channel)]?.[0] ?? "",
    subscriber: (place, listening) => {
      const node = cluster.nodes("all").find((one) => nameOf(one) === place) ?? cluster.nodes("master")[0]!;
      return subscriberOf(duplicateOf(node, false), listening);
    },
  };
}
