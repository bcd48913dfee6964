// SPDX-License-Identifier: MIT OR Apache-2.0

// Clients of ioredis 5 and 6 and of iovalkey: of one server, by Sentinels, and of a cluster. Only public parts are used.

import type {Base, Line, Listening, Subscriber} from "./connections.js";
import {slotOf} from "./protocol.js";

/** A `Redis` or a `Cluster`. */
export interface Ioredis {
  readonly status: string;
  call(...words: never[]): Promise<unknown>;
}

// The types differ between the kinds of clients and the versions.
type Any = any;

const nothing = (): void => {};

/** Of a duplicate: it connects once, and has no time limit of its own. */
const PLAIN = {
  reconnectOnError: null, maxRetriesPerRequest: null, enableOfflineQueue: true, enableAutoPipelining: false, commandTimeout: undefined,
  socketTimeout: undefined, keyPrefix: "", readOnly: false, monitor: false, stringNumbers: false,
};
/** With Sentinels: it asks each once, not for long, and notices a failover. */
const FAILOVER = {
  sentinelRetryStrategy: () => null, sentinelReconnectStrategy: () => 1_000, failoverDetector: true, sentinelCommandTimeout: 800,
};

/** The database that each program's client was in last: it may have selected another one than its options name. */
const databases = new WeakMap<Any, number>();

/** @internal */
export function ioredisBase(client: Ioredis & Any): Base {
  if (client.nodes) return clusterBase(client);
  if (!databases.has(client)) {
    databases.set(client, client.condition?.select ?? client.options.db);
    client.on("select", (db: number) => databases.set(client, db));
  }
  const {host = "localhost", port = 6379, path, name, sentinels, failoverDetector, keyPrefix, retryStrategy} = client.options;
  const hasFailover = Boolean(sentinels);
  const program = lineOf(client);
  return {
    topology: {name: hasFailover ? `the primary of ${name}` : (path ?? `${host}:${port}`), hasFailover, prefix: keyPrefix},
    // A client that does not notice a failover stays with the former primary: then all goes over a duplicate.
    program: hasFailover && !failoverDetector ? {...program, get isOpen() { return program.isOpen; }, isReady: false} : program,
    repeatsAfterMs: repeatsAfterMs(retryStrategy),
    ...duplicatesOf(() => client, hasFailover),
  };
}

/** It repeats what had no reply on the next connection. */
const repeatsAfterMs = (retryStrategy?: (times: number) => unknown): number => Math.min(50, Number(retryStrategy?.(1) ?? Infinity));

function duplicatesOf(client: (place?: string) => Any, hasFailover = false): Pick<Base, "duplicate" | "subscriber"> {
  const made = (place?: string): Any => {
    const options = {...PLAIN, lazyConnect: false, retryStrategy: null, ...(hasFailover && FAILOVER)};
    const one = client(place).duplicate({...options, db: databases.get(client()) ?? 0});
    return one.on("connect", () => one.stream?.unref?.()); // it does not keep the process alive
  };
  return {
    duplicate() {
      const one = made();
      const database = databases.get(client());
      const line = lineOf(one, () => problem, () => databases.get(client()) === database);
      let problem: unknown;
      one.on("error", (error: unknown) => (problem = error));
      return line;
    },
    async subscriber({message, missed, ended}: Listening, place: string): Promise<Subscriber> {
      const one = made(place).on("end", ended).on("error", missed).on("moved", missed).on("smessage", message);
      return {
        subscribe: (channel) => one.ssubscribe(channel),
        unsubscribe: (channel) => void one.sunsubscribe(channel).catch(nothing),
        close: () => close(one),
      };
    },
  };
}

/** Closes a duplicate. One that has ended would start a timer. */
const close = (client: Any): void => { if (client.status !== "end" && client.status !== "close") client.disconnect(); };

/** `problem` is the last error of the connection. `isCurrent`: it is in the database of the program's client. */
const lineOf = (client: Any, problem?: () => unknown, isCurrent = () => true): Line => ({
  get isOpen() { return client.status !== "end" && isCurrent(); },
  get isReady() {
    if (client.status === "wait") client.connect().catch(nothing); // a lazy one
    return client.status === "ready";
  },
  send: (words) => client.call(...words).catch((error: unknown) => {
    // Of a connection that could not be made it only says that it is closed.
    throw client.status === "end" || client.status === "close" ? (problem?.() ?? error) : error;
  }),
  close: () => close(client),
});

function clusterBase(cluster: Any): Base {
  const nameOf = ({options: {host, port}}: Any): string => `${host}:${port}`;
  const nodeNamed = (one: Any, name: string | undefined): Any => one.nodes("all").find((node: Any) => nameOf(node) === name);
  // ioredis does not know the keys of the commands of modules, and would send them to any node.
  const ownerOf = (one: Any, key: string): Any => nodeNamed(one, one.slots[slotOf(key)]?.[0]);
  const line = (one: Any): Line => ({
    get isOpen() { return lineOf(one).isOpen; },
    get isReady() { return lineOf(one).isReady; },
    async send(words, key) {
      if (key === "") return Promise.all(one.nodes("master").map((node: Any) => node.call(...words)));
      try {
        const owner = ownerOf(one, key);
        if (owner) return await owner.call(...words);
      } catch (error) {
        if (!/^(MOVED|ASK) /.test((error as Error).message)) throw error;
      }
      return one.call(...words); // it follows the redirection of any node, and learns
    },
    follow: (words, key) => (ownerOf(one, key) ?? one).call(...words),
    close: () => close(one),
  });
  const {keyPrefix, redisOptions} = cluster.options;
  return {
    topology: {name: "the cluster", isCluster: true, prefix: keyPrefix ?? redisOptions?.keyPrefix},
    program: line(cluster),
    repeatsAfterMs: 50, // when it follows a redirection
    ...duplicatesOf((place) => nodeNamed(cluster, place) ?? cluster.nodes("master")[0]),
    duplicate() {
      const one = cluster.duplicate([], {
        lazyConnect: false, keyPrefix: "", enableAutoPipelining: false, clusterRetryStrategy: () => null, redisOptions: PLAIN,
      });
      return line(one.on("error", nothing));
    },
    place: (channel) => cluster.slots[slotOf(channel)]?.[0] ?? "",
  };
}
