// Read-write locks of the SLOCK module for Redis and Valkey, over node-redis or ioredis.

export type {Client} from "./base.js";
export {now} from "./clock.js";
export type {Key, Mode} from "./commands.js";
export * from "./errors.js";
export {Hold, AnyHold} from "./hold.js";
export type {Hooks, Outcome} from "./hooks.js";
export type {CallOptions, HoldOptions, LocksOptions, ReadOptions, RequestOptions} from "./options.js";
export {Locks} from "./locks.js";
export {Strategy} from "./polling.js";
export {Quorum, QuorumHold, type QuorumOptions} from "./quorum.js";
export {Acquirer, Request} from "./request.js";
export type {Holder, LockInfo, QueueInfo, Waiter} from "./status.js";
