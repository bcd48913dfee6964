// Which client of a base library was given.

import type {Base} from "./connection.js";
import {ioredisBase, ioredisClusterBase, type IoredisClient, type IoredisCluster} from "./ioredis.js";
import {
  nodeRedisBase, nodeRedisClusterBase, nodeRedisSentinelBase, type NodeRedisClient, type NodeRedisCluster,
  type NodeRedisSentinel,
} from "./node_redis.js";

/**
 * What `Locks` is made from: a client of node-redis 5 (`createClient`, `createCluster`) or of ioredis 5 (`Redis`, also
 * by Sentinels, `Cluster`). For `createSentinel` of node-redis also a client with the options of the servers, which need
 * not be connected: `{sentinel, client}`.
 */
export type Client =
  | NodeRedisClient
  | NodeRedisCluster
  | IoredisClient
  | IoredisCluster
  | {readonly sentinel: NodeRedisSentinel; readonly client: NodeRedisClient};

export function baseOf(client: Client): Base {
  const given = client as unknown as Record<string, unknown>;
  const has = (name: string): boolean => typeof given?.[name] === "function";
  if (has("call") && has("nodes")) return ioredisClusterBase(client as IoredisCluster);
  if (has("call") && has("duplicate")) return ioredisBase(client as IoredisClient);
  if (has("nodeClient")) return nodeRedisClusterBase(client as NodeRedisCluster);
  if (has("sSubscribe") && has("duplicate")) return nodeRedisBase(client as NodeRedisClient);
  if (given?.["sentinel"] && given["client"]) {
    return nodeRedisSentinelBase(client as {sentinel: NodeRedisSentinel; client: NodeRedisClient});
  }
  if (has("getMasterNode")) throw new TypeError("for Sentinels give {sentinel, client}: the client has the servers' options");
  throw new TypeError("Locks needs a client of node-redis 5 or ioredis 5");
}
