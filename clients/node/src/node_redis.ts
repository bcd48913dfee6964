// Connections made from a client of node-redis 5. The only file that knows it, by its public parts.

import type {Address, Base, RawConnection, Told} from "./connection.js";

/** What is used of a client of node-redis, as `createClient` makes it. */
export interface NodeRedisClient {
  duplicate(overrides?: any): any;
  readonly options?: {readonly socket?: object | undefined; readonly url?: string | undefined} | undefined;
  sSubscribe(channels: string, listener: (message: string, channel: string) => unknown): Promise<unknown>;
}

/** What is used of a client that `createCluster` of node-redis makes. It has to be connected. */
export interface NodeRedisCluster {
  readonly masters: readonly Address[];
  readonly nodeByAddress: ReadonlyMap<string, Address>;
  nodeClient(node: any): any;
}

/** What is used of a client that `createSentinel` of node-redis makes. It has to be connected. */
export interface NodeRedisSentinel {
  getMasterNode(): Address | undefined;
}

/** A client of node-redis that connects once and sends each command once. It has a socket to destroy only from `connect` on. */
function made(client: NodeRedisClient, address: Address | undefined, told: Told): RawConnection {
  const socket = {...client.options?.socket, ...address, reconnectStrategy: false, socketTimeout: undefined};
  const opened = client.duplicate({
    socket,
    url: undefined, // it is in the other options
    RESP: 2,
    clientSideCache: undefined,
    emitInvalidate: false,
    maintNotifications: "disabled",
    commandOptions: undefined,
    commandsQueueMaxLength: undefined,
    disableClientInfo: true,
    disableOfflineQueue: true,
    pingInterval: undefined,
    readonly: false,
  });
  opened.on("error", told.ended).on("end", () => told.ended(new Error("the connection has ended")));
  opened.on("sharded-channel-moved", (channel: string) => told.unsubscribed?.(channel));
  const connected = new Promise((resolve) => opened.once("connect", resolve));
  const message = (text: string, channel: string): void => told.message?.(channel, text);
  return {
    connect: () => opened.connect(),
    send: (command) => opened.sendCommand(command),
    subscribe: (channel) => opened.sSubscribe(channel, message),
    unsubscribe: (channel) => opened.sUnsubscribe(channel),
    destroy: () => void connected.then(() => { if (opened.isOpen) opened.destroy(); }),
  };
}

export function nodeRedisBase(client: NodeRedisClient): Base {
  const {host = "localhost", port = 6379, path} = (client.options?.socket ?? {}) as Partial<Address> & {path?: string};
  return {name: path ?? `${host}:${port}`, open: async (address, told) => made(client, address, told)};
}

export function nodeRedisSentinelBase({sentinel, client}: {sentinel: NodeRedisSentinel; client: NodeRedisClient}): Base {
  return {
    name: "the primary of the Sentinels",
    findsPrimary: true,
    async open(_, told) {
      const primary = sentinel.getMasterNode();
      if (primary === undefined) throw new Error("no Sentinel names the primary");
      return made(client, {host: primary.host, port: primary.port}, told);
    },
  };
}

export function nodeRedisClusterBase(cluster: NodeRedisCluster): Base {
  return {
    name: "the cluster",
    /** The client knows where a node that it knows is reached. Of another one it has the other options. */
    async open(address, told) {
      const known = address && cluster.nodeByAddress.get(`${address.host}:${address.port}`);
      const node = known ?? cluster.masters[0];
      if (node === undefined) throw new Error("the client of the cluster is not connected");
      return made(await cluster.nodeClient(node), known ? undefined : address, told);
    },
    seeds: () => cluster.masters,
  };
}
