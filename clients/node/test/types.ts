// What has to compile: the clients of the base libraries as they are, and the types of the results. It is never run.

import {Cluster, Redis} from "ioredis";
import {createClient, createCluster, createSentinel} from "redis";
import {Locks, Quorum, type Acquirer, type AnyHold, type Hold} from "slock-client";
import {Redlock} from "slock-client/redlock";

export async function compiles(acquirer: Acquirer<AnyHold>): Promise<number> {
  const client = createClient({RESP: 3});
  const all = [
    new Locks(client, {waiting: "block", ttlMs: 5_000}),
    new Locks(await createClient().connect()),
    new Locks(createCluster({rootNodes: [{socket: {port: 1}}]})),
    new Locks({sentinel: createSentinel({name: "main", sentinelRootNodes: [{host: "a", port: 1}]}), client}),
    new Locks(new Redis()),
    new Locks(new Redis({sentinels: [{host: "a"}], name: "main"})),
    new Locks(new Cluster(["a:1"])),
  ];
  await using locks: Locks = all[0]!;
  await using hold: Hold = await locks.read(["a", Buffer.from("b")], {limit: 3}).acquire({signal: AbortSignal.timeout(10)});
  const quorum = new Quorum([client, new Redis()], {failFast: true});
  const sum: number = await quorum.write("a").run(async (signal, held) => (signal.aborted ? 0 : Object.keys(held.fences).length));
  await acquirer.write("a").tryAcquire();
  await new Redlock([client]).using(["a"], 5_000, async (signal) => signal.error);
  return hold.fence + sum;
}
