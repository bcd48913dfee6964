// Which client of which Redis client library was given.

import {ClientTransport, type Base} from "./connections.js";
import {invalid} from "./errors.js";
import {ioredisBase, type Ioredis} from "./ioredis.js";
import {nodeRedisBase, type NodeRedis} from "./node_redis.js";
import type {Transport} from "./transport.js";

/**
 * What `Locks` is made from: a client of node-redis (`createClient`, `createClientPool`, `createCluster`, `createSentinel`), of
 * ioredis or iovalkey (`Redis`, also by Sentinels, and `Cluster`), or a `Transport`.
 */
export type Client = NodeRedis | Ioredis | Transport;

export function transportOf(client: Client): Transport {
  return has(client, "listen") ? client as Transport : new ClientTransport(baseOf(client));
}

const has = (client: Client, method: string): boolean => typeof (client as unknown as Record<string, unknown> | undefined)?.[method] === "function";

function baseOf(client: Client): Base {
  if (has(client, "call")) return ioredisBase(client as Ioredis);
  if (has(client, "sendCommand")) return nodeRedisBase(client as NodeRedis);
  const what = (client as object | undefined)?.constructor?.name ?? String(client);
  throw invalid(`the client must be one of node-redis 5 or 6, ioredis 5 or 6, or iovalkey, not ${what}`);
}
