// What has to compile, without a cast: clients of all kinds, results, and fakes of a program's tests. It is never run.

import {Cluster, Redis} from "ioredis";
import {createClient, createClientPool, createCluster, createSentinel} from "redis";
import {
  LostError, Locks, NoAnswerError, Quorum, ReplyError, TimedOutError,
  type Call, type Client, type Hold, type Hooks, type Reply, type Request, type Transport,
} from "slock-client";
import {Redlock, type ClientExecutionResult, type ExecutionResult, type ExecutionStats, type Lock} from "slock-client/redlock";
import Redlock4 = require("slock-client/redlock4");
import {MemoryServer} from "slock-client/testing";

export async function compiles(): Promise<number> {
  const client = createClient({RESP: 3});
  const hooks: Hooks = {waited: (label, ms, outcome) => console.log(label, ms, outcome === "timed out"), lost: (_, {keys, reason}) => console.log(keys[0], reason)};
  const all: Locks[] = [
    new Locks(client, {ttlMs: 5_000, prefix: "shop:", hooks}),
    new Locks(await createClient().connect()),
    new Locks(createClientPool()),
    new Locks(createCluster({rootNodes: [{socket: {port: 1}}]})),
    new Locks(createSentinel({name: "main", sentinelRootNodes: [{host: "a", port: 1}]})),
    new Locks(new Redis()),
    new Locks(new Redis({sentinels: [{host: "a"}], name: "main"})),
    new Locks(new Cluster(["a:1"])),
    new Locks(new MemoryServer()),
  ];
  const clients: Client[] = [client, new Redis()];
  const quorum: Locks = new Quorum(clients, {failFast: true, poll: (n) => (n < 3 ? 100 : undefined)});
  const sum: number = await quorum.write("a").run(async (signal, held) => (signal.aborted ? 0 : held.fences.length));
  const request: Request = all[0]!.read(["a", "b"], {limit: 3});
  const hold: Hold | undefined = await request.tryAcquire({signal: AbortSignal.timeout(10)});
  try {
    await hold?.upgrade({waitMs: 10});
  } catch (error) {
    if (error instanceof LostError) console.log(error.reason, error.keys);
    else if (error instanceof TimedOutError) console.log(error.holders[0]?.metadata);
    else if (error instanceof NoAnswerError) console.log(error.cause);
  }
  const lock: Lock = await new Redlock([client], {retryCount: -1}).acquire(["a"], 5_000);
  const result: string = await new Redlock(clients).using(["a"], 5_000, {retryCount: 1}, async (signal) => String(signal.error));
  const released: ExecutionResult = await lock.release();
  for (const attempt of released.attempts) {
    const stats: ExecutionStats = await attempt;
    for (const [of, error] of stats.votesAgainst) console.log(stats.votesFor.has(of), error.message, stats.quorumSize);
  }
  const voted: ClientExecutionResult = {client, vote: "for", value: 1};
  const compatible: Redlock4.CompatibleRedisClient[] = [voted.client, new Redis()];
  const lock4: Redlock4.Lock = await new Redlock4(compatible, {retryCount: 3}).lock("a", 5_000);
  await lock4.extend(100).catch((error: Redlock4.LockError) => error.attempts);
  return (hold?.fence ?? 0) + sum + lock.expiration + result.length;
}

/** A program's own fakes. */
export const fakeHold: Hold = {
  token: "t", keys: ["a"], mode: "write", metadata: "", fence: 1, fences: [1], remainingMs: 10, lost: false, reason: undefined,
  signal: new AbortController().signal,
  check() {}, async extend() {}, async release() {}, detach() {}, async upgrade() {}, async downgrade() {},
  async [Symbol.asyncDispose]() {},
};
const fakeRequest: Request = {
  acquire: async () => fakeHold,
  tryAcquire: async () => undefined,
  run: async (work) => work(fakeHold.signal, fakeHold),
  adopt: async () => fakeHold,
};
export const fakeLocks: Locks = {
  write: () => fakeRequest,
  read: () => fakeRequest,
  info: async () => ({mode: "free", readers: 0, waiters: 0, fence: 0, remainingMs: 0, holders: [], queue: []}),
  queues: async () => [],
  release: async () => 1,
  async close() {},
  async [Symbol.asyncDispose]() {},
};
export const fakeTransport: Transport = {
  topology: {name: "fake"},
  call: async ({command}: Call): Promise<Reply> => ({value: command[0] === "PING" ? "PONG" : new ReplyError("ERR unknown command")}),
  listen: () => () => {},
  close() {},
};
