// SPDX-License-Identifier: MIT OR Apache-2.0

// Locks of the SLOCK module of Redis and Valkey. The README says how to use them.

import {ClientTransport} from "./connections.js";
import {invalid} from "./errors.js";
import {ioredisBase, type Ioredis} from "./ioredis.js";
import {LockService, ServerBackend, type Locks as LocksApi} from "./locks.js";
import {nodeRedisBase, type NodeRedis} from "./node_redis.js";
import {settingsOf, type LocksOptions, type QuorumOptions} from "./options.js";
import {QuorumBackend} from "./quorum.js";
import type {Transport} from "./transport.js";

/**
 * What `Locks` is made from: a client of node-redis (`createClient`, `createClientPool`, `createCluster`, `createSentinel`), of
 * ioredis or iovalkey (`Redis`, also by Sentinels, and `Cluster`), or a `Transport`. If a client is to use another database than
 * its options name, it has to select that before the first call.
 */
export type Client = NodeRedis | Ioredis | Transport;

function transportOf(client: Client): Transport {
  const has = (method: string): boolean => typeof (client as unknown as Record<string, unknown> | undefined)?.[method] === "function";
  if (has("listen")) return client as Transport;
  // Older majors lack these methods.
  if (has("call") && has("ssubscribe")) return new ClientTransport(ioredisBase(client as Ioredis));
  if (has("sendCommand") && has("destroy")) return new ClientTransport(nodeRedisBase(client as NodeRedis));
  const what = (client as object | undefined)?.constructor?.name ?? String(client);
  throw invalid(`the client must be one of node-redis 5 or 6, ioredis 5 or 6, or iovalkey, not ${what}`);
}

/** What a program asks for locks. */
export type Locks = LocksApi;

/** Made once for a program, from its client. Options are the defaults of all requests, and those of the `Locks` itself. */
export const Locks: new (client: Client, options?: LocksOptions) => Locks = class extends LockService {
  constructor(client: Client, options: LocksOptions = {}) {
    super([transportOf(client)], settingsOf(options, false), ([server]) => new ServerBackend(server!));
  }
};

/**
 * The same for clients of independent servers: not of replicas or nodes of one another. Their number should be odd. A hold
 * counts while a majority of the servers has it, so that it outlives the loss of a minority. A quorum polls.
 */
export const Quorum: new (clients: readonly Client[], options?: QuorumOptions) => Locks = class extends LockService {
  constructor(clients: readonly Client[], options: QuorumOptions = {}) {
    super(clients.map(transportOf), settingsOf(options, true), (servers, settings) => new QuorumBackend(servers, settings));
  }
};

export {
  ClosedError, DeadlockError, LostError, ModuleNotLoadedError, NoAnswerError, NotHeldError, QueueFullError, QuorumMissedError,
  RefusedError, SlockError, TimedOutError, TooFewReplicasError, WrongModeError, type NodeReply, type Reason,
} from "./errors.js";
export type {Hold} from "./hold.js";
export type {Hooks, Outcome} from "./hooks.js";
export type {Holder, LockInfo, QueueInfo, Waiter} from "./info.js";
export type {LocksOptions, Mode, QuorumOptions, RequestOptions, Strategy} from "./options.js";
export type {Cancellation, Request} from "./request.js";
export {ReplyError, type Call, type Reply, type Topology, type Transport} from "./transport.js";
