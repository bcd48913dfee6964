// SPDX-License-Identifier: MIT OR Apache-2.0

// Clients of node-redis 5 and 6: of one server, pools, clusters, and by Sentinels. Only what its documents name is used.

import {isReply, type Base, type Line, type Listening, type Subscriber} from "./connections.js";
import {invalid} from "./errors.js";
import {slotOf} from "./protocol.js";

/** A client of node-redis, as `createClient`, `createClientPool`, `createCluster` and `createSentinel` make it. */
export interface NodeRedis {
  readonly isOpen: boolean;
  sendCommand(...words: never[]): Promise<unknown>;
}

// The types differ between the kinds of clients and the versions.
type Any = any;

/** Plain replies whatever the program's client maps, and no time limit of its own. */
const PLAIN = Object.freeze({typeMapping: {}, timeout: undefined});
const nothing = (): void => {};

/** @internal */
export function nodeRedisBase(client: NodeRedis & Any): Base {
  const prefix = client.options?.keyPrefix ?? client._keyPrefix; // of node-redis 6
  const topology = {name: addressOf(client), prefix: prefix && String(prefix)};
  if (client.nodeClient) return {topology: {...topology, name: "the cluster", isCluster: true}, repeatsAfterMs: Infinity, ...clusterBase(client)};
  if (client.getMasterNode) return {topology: {...topology, name: "the primary", hasFailover: true}, ...sentinelBase(client)};
  if (client.execute) return poolBase(client, topology);
  return {topology, repeatsAfterMs: Infinity, ...singleBase(client)};
}

const addressOf = ({options: {socket} = {} as Any}: Any): string => socket?.path ?? `${socket?.host ?? "localhost"}:${socket?.port ?? 6379}`;

const lineOf = (client: Any, send?: Line["send"], follow?: Line["follow"]): Line => ({
  get isOpen() { return client.isOpen; },
  get isReady() { return client.isReady ?? client.isOpen; },
  send: send ?? ((words) => client.sendCommand(words, PLAIN)),
  ...(follow && {follow}),
  close: () => close(client),
});

/** Closes a duplicate. One that is connecting has no socket to close before it is connected. */
function close(client: Any): void {
  if (client.isReady ?? client.isOpen) Promise.resolve(client.destroy()).catch(nothing);
  else client.once("ready", () => close(client));
}

/** Connects a duplicate, and makes a line of it. */
function opened(made: Any, line: (made: Any, connected: Promise<unknown>) => Line): Line {
  const connected = made.on("error", nothing).connect();
  connected.catch(nothing);
  return line(made, connected);
}

/** Connects a duplicate, and makes a subscriber of it. */
async function listening(made: Any, {message}: Listening): Promise<Subscriber> {
  await made.connect();
  return {
    subscribe: (channel) => made.sSubscribe(channel, (payload: string) => message(channel, payload)),
    unsubscribe: (channel) => void made.sUnsubscribe(channel).catch(nothing),
    close: () => close(made),
  };
}

/** Duplicates of one client. They connect once and do not keep the process alive. `selected` gives its database, if that is known. */
function duplicatesOf(client: () => Any, selected = async (): Promise<number | undefined> => undefined): Pick<Base, "duplicate" | "subscriber"> {
  const made = (): Any => {
    const one = client().duplicate({
      socket: {...client().options?.socket, reconnectStrategy: false, socketTimeout: undefined},
      url: undefined, commandOptions: {}, commandsQueueMaxLength: undefined, disableOfflineQueue: false, clientSideCache: undefined,
      emitInvalidate: false, pingInterval: undefined, readonly: false,
    });
    one.unref();
    return one;
  };
  return {
    duplicate: () => opened(made(), (one, connected) => {
      const {database = 0} = client().options ?? {};
      const ready = Promise.all([selected(), connected]).then(([wanted = database]) => wanted === database || one.select(wanted));
      ready.catch(() => close(one));
      return lineOf(one, async (words) => (await ready, one.sendCommand(words, PLAIN)));
    }),
    subscriber: async (on) => listening(made().on("error", on.ended).on("end", on.ended).on("sharded-channel-moved", on.missed), on),
  };
}

/** One client. It may have selected another database than its options name, which only the server knows: the first call asks. */
function singleBase(client: Any): Pick<Base, "program" | "duplicate" | "subscriber"> {
  let asked: Promise<number | undefined> | undefined;
  const selected = (): Promise<number | undefined> => asked ??= client.sendCommand(["CLIENT", "INFO"], PLAIN).then(
    (info: unknown) => Number(/ db=(\d+)/.exec(String(info))![1]),
    (error: Error) => {
      if (isReply(error.message)) return; // for example, the user may not ask
      asked = undefined;
      throw error;
    });
  const program = lineOf(client, (words) => (selected().catch(nothing), client.sendCommand(words, PLAIN)));
  return {program, ...duplicatesOf(() => client, selected)};
}

function poolBase(pool: Any, topology: Base["topology"]): Base {
  let pattern: Any; // a client of the pool, to make duplicates of
  const learn = (client: Any): Any => (pattern ??= client.duplicate());
  if (pool.isOpen) pool.execute(learn).catch(nothing);
  const program = lineOf(pool, (words) => pool.execute((client: Any) => learn(client) && client.sendCommand(words, PLAIN)));
  const known = (): Any => {
    if (!pattern) throw new Error("no client of the pool was free yet");
    return pattern;
  };
  const named = {...topology, get name() { return pattern ? addressOf(pattern) : "the pool"; }};
  return {topology: named, program, repeatsAfterMs: Infinity, ...duplicatesOf(known)};
}

function clusterBase(cluster: Any): Pick<Base, "program" | "duplicate" | "place" | "subscriber"> {
  const ownerOf = (one: Any, key: string): Any => {
    const owner = one.slots[slotOf(key)]?.master;
    if (!owner) throw new Error(`no node of the cluster is known for slot ${slotOf(key)}`);
    return owner;
  };
  const sendTo = async (one: Any, node: Any, words: readonly string[]): Promise<unknown> => (await one.nodeClient(node)).sendCommand(words, PLAIN);
  const line = (one: Any, connected?: Promise<unknown>): Line => lineOf(one, async (words, key) => {
    await connected;
    if (key === "") return Promise.all(one.masters.map((master: Any) => sendTo(one, master, words)));
    return ownerOf(one, key) && one.sendCommand(key, false, words, PLAIN);
  }, (words, key) => sendTo(one, ownerOf(one, key), words));
  return {
    program: line(cluster),
    duplicate: () => opened(cluster.duplicate({minimizeConnections: true}), line),
    place: (channel) => ownerOf(cluster, channel).address,
    async subscriber(on, place) {
      const client = await cluster.nodeClient(cluster.masters.find(({address}: Any) => address === place));
      return duplicatesOf(() => client).subscriber(on, place);
    },
  };
}

function sentinelBase(sentinel: Any): Omit<Base, "topology"> {
  if (!sentinel.duplicate) {
    throw invalid("createSentinel of node-redis 5 has no duplicate(): give Object.assign(sentinel, {duplicate: () => createSentinel(options)})");
  }
  const duplicate = (): Any => sentinel.duplicate({masterPoolSize: 1, replicaPoolSize: 0, reserveClient: false});
  const line = (one: Any, connected?: Promise<unknown>): Line => lineOf(one, async (words) => {
    await connected;
    return one.sendCommand(false, words, PLAIN).catch((error: unknown) => { // of a type while it changes the primary
      throw error instanceof TypeError ? new Error("the primary is not known yet", {cause: error}) : error;
    });
  });
  return {
    program: line(sentinel),
    repeatsAfterMs: 5, // when a connection was lost
    duplicate: () => opened(duplicate(), line),
    async subscriber(on) {
      const made = duplicate().on("error", nothing);
      const isChange = ({type}: {type: string}): boolean => type === "MASTER_CHANGE" && made.isReady;
      return listening(made.on("topology-change", (event: {type: string}) => { if (isChange(event)) on.ended(); }), on);
    },
  };
}
