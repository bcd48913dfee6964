// Connections made from a client of ioredis 5. The only file that knows it, by its public parts.

import type {Address, Base, RawConnection, Told} from "./connection.js";

/** What is used of a `Redis` of ioredis. */
export interface IoredisClient {
  duplicate(override?: any): any;
  call(command: string, ...args: any[]): Promise<unknown>;
  readonly options: object;
}

/** What is used of a `Cluster` of ioredis. */
export interface IoredisCluster {
  nodes(role?: "all" | "master" | "slave"): IoredisClient[];
  call(command: string, ...args: any[]): Promise<unknown>;
  readonly options: object;
  readonly status?: string;
  connect?(): Promise<void>;
}

interface Options {
  readonly host?: string;
  readonly port?: number;
  readonly path?: string;
  readonly name?: string;
  readonly sentinels?: unknown;
  readonly natMap?: Record<string, Address> | ((told: string) => Address | null);
}

/** A client of ioredis that connects once and sends each command once. */
function made(client: IoredisClient, address: Address | undefined, told: Told): RawConnection {
  const opened = client.duplicate({
    ...address,
    lazyConnect: true,
    retryStrategy: null, // so it never connects again, and nothing is sent twice
    sentinelRetryStrategy: () => null,
    reconnectOnError: null,
    enableAutoPipelining: false,
    enableOfflineQueue: false,
    enableReadyCheck: false, // it would need the permission for INFO
    disableClientInfo: true,
    commandTimeout: undefined,
    socketTimeout: undefined,
    keyPrefix: "",
    stringNumbers: false,
    readOnly: false,
    monitor: false,
  });
  let problem: unknown;
  const ended = (error: unknown): void => {
    problem ??= error;
    told.ended(problem);
  };
  opened.on("error", ended).on("end", () => ended(new Error("the connection has ended")));
  opened.on("moved", () => ended(new Error("the slot of a channel has moved"))); // the promise of ssubscribe stays open
  opened.on("smessage", (channel: string, text: string) => told.message?.(channel, text));
  return {
    connect: () => opened.connect(),
    send: (command) => opened.call(...command),
    subscribe: (channel) => opened.ssubscribe(channel),
    unsubscribe: (channel) => opened.sunsubscribe(channel),
    // Of one that has ended it would start a timer.
    destroy: () => { if (opened.status !== "end" && opened.status !== "close") opened.disconnect(); },
  };
}

/** One server, or the primary: the connector asks the Sentinels for each connection. */
export function ioredisBase(client: IoredisClient): Base {
  const {host = "localhost", port = 6379, path, name, sentinels} = client.options as Options;
  const findsPrimary = Boolean(sentinels);
  return {
    name: findsPrimary ? String(name) : (path ?? `${host}:${port}`),
    findsPrimary,
    open: async (address, told) => made(client, address, told),
  };
}

export function ioredisClusterBase(cluster: IoredisCluster): Base {
  if (cluster.status === "wait") cluster.connect?.().catch(() => {}); // its own calls tell
  const {natMap} = cluster.options as Options;
  return {
    name: "the cluster",
    async open(address, told) {
      const [node] = cluster.nodes();
      if (node === undefined) throw new Error("the client of the cluster is not connected");
      return made(node, address, told);
    },
    seeds: () => cluster.nodes().map(({options}) => {
      const {host = "localhost", port = 6379} = options as Options;
      return {host, port};
    }),
    reached(told) {
      const name = `${told.host}:${told.port}`;
      return (typeof natMap === "function" ? natMap(name) : natMap?.[name]) ?? told;
    },
  };
}
