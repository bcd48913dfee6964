// Which client of which Redis client library was given.

import {ClientTransport, type Base} from "./connections.js";
import {invalid} from "./errors.js";
import {ioredisBase, ioredisClusterBase, type IoredisClient, type IoredisCluster} from "./ioredis.js";
import {
  clientBase, clusterBase, poolBase, sentinelBase, type NodeRedisClient, type NodeRedisCluster, type NodeRedisPool, type NodeRedisSentinel,
} from "./node_redis.js";
import type {Transport} from "./transport.js";

/**
 * What `Locks` is made from: a client of node-redis (`createClient`, `createClientPool`, `createCluster`, `createSentinel`), of
 * ioredis or iovalkey (`Redis`, also by Sentinels, and `Cluster`), or a `Transport`.
 */
export type Client =
  | NodeRedisClient | NodeRedisPool | NodeRedisCluster | NodeRedisSentinel | IoredisClient | IoredisCluster | Transport;

export function transportOf(client: Client): Transport {
  return isTransport(client) ? client : new ClientTransport(baseOf(client));
}

const isTransport = (client: Client): client is Transport => typeof (client as Partial<Transport>)?.listen === "function";

function baseOf(client: Client): Base {
  const has = (name: string): boolean => typeof (client as unknown as Record<string, unknown> | undefined)?.[name] === "function";
  if (has("call") && has("nodes")) return ioredisClusterBase(client as IoredisCluster);
  if (has("call") && has("duplicate")) return ioredisBase(client as IoredisClient);
  if (has("nodeClient")) return clusterBase(client as NodeRedisCluster);
  if (has("getMasterNode")) return sentinelBase(client as NodeRedisSentinel);
  if (has("execute")) return poolBase(client as NodeRedisPool);
  if (has("sSubscribe")) return clientBase(client as NodeRedisClient);
  const what = (client as object | undefined)?.constructor?.name ?? String(client);
  throw invalid(`the client must be one of node-redis 5 or 6, ioredis 5 or 6, or iovalkey, not ${what}`);
}
