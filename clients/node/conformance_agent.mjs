// The agent of the conformance scenarios: it calls the library and does nothing else. Its argument is the base library:
// node-redis or ioredis. The protocol is in clients/conformance/README.md.

import {createInterface} from "node:readline";
import {setTimeout as sleep} from "node:timers/promises";
import {Redis, Cluster} from "ioredis";
import {createClient, createCluster, createSentinel} from "redis";
import {Locks, Quorum, SlockError, Strategy} from "slock-client";

const isIoredis = process.argv[2] === "ioredis";
/** As long as a token of the library. */
const rawToken = (number) => `raw:${String(number).padStart(18, "0")}`;

/** A client of the base library as a program would make it, and how plain commands go through it. */
class Base {
  constructor(fields) {
    const {kind = "single", nodes, service, user, password} = fields;
    const addresses = nodes.map((node) => {
      const [host, port] = node.split(":");
      return {host, port: Number(port)};
    });
    const login = user === undefined ? {} : {username: user, password};
    if (isIoredis) {
      const options = {...login, lazyConnect: true};
      if (kind === "cluster") this.client = new Cluster(addresses, {redisOptions: login, lazyConnect: true});
      else if (kind === "sentinel") this.client = new Redis({...options, sentinels: addresses, name: service});
      else this.client = new Redis({...options, ...addresses[0]});
      this.given = this.client;
      this.make = () => new Redis({...options, ...addresses[0]});
    } else {
      const rootNodes = addresses.map((socket) => ({socket}));
      this.make = () => createClient({...login, socket: addresses[0]});
      if (kind === "cluster") {
        this.given = this.client = createCluster({rootNodes, defaults: login});
      } else if (kind === "sentinel") {
        this.client = createSentinel({name: service, sentinelRootNodes: addresses, nodeClientOptions: login});
        this.given = {sentinel: this.client, client: createClient(login)};
      } else this.given = this.client = this.make();
      this.mustConnect = kind !== "single";
    }
    this.client.on("error", () => {});
  }

  async open() {
    if (this.mustConnect) await this.client.connect();
  }

  async plain(client = this.client) {
    if (isIoredis) return (...words) => client.call(...words.map(String));
    if (!client.isOpen) await client.connect();
    return (...words) => client.sendCommand(words.map(String));
  }

  close(client = this.client) {
    if (isIoredis) client.disconnect();
    else if (client.isOpen) client.destroy();
  }
}

const opened = new Map();
const holds = new Map();
const running = new Map();

function given(options) {
  return Object.fromEntries(Object.entries(options).filter(([, value]) => value !== undefined && value !== null));
}

function strategy({kind, pause_ms, most_ms, limit} = {kind: "exponential"}) {
  const made =
    kind === "none" ? Strategy.none() : kind === "constant" ? Strategy.constant(pause_ms ?? 50) : Strategy.exponential(pause_ms ?? 10, most_ms ?? 1000);
  return limit === undefined || limit === null ? made : made.limit(limit);
}

function hooksInto(events) {
  return {
    waited: (label, ms, outcome) => events.push({event: "waited", label, ms, outcome: outcome.replace(/Error$/, "")}),
    held: (label, ms) => events.push({event: "held", label, ms}),
    lost: (label, reason) => events.push({event: "lost", label, reason}),
    renewalFailed: (label, error) => events.push({event: "renewal failed", label, error: String(error.message)}),
    releaseFailed: (label, error) => events.push({event: "release failed", label, error: String(error.message)}),
    warning: (text) => process.stderr.write(`${text}\n`),
  };
}

function request({locks}, fields) {
  const options = given({
    ttlMs: fields.ttl_ms,
    waitMs: fields.wait_ms,
    limit: fields.limit,
    metadata: fields.metadata,
    renew: fields.renew,
    longestLeaseMs: fields.longest_lease_ms,
    token: fields.token,
    minReplicas: fields.min_replicas,
    replicaTimeoutMs: fields.replica_timeout_ms,
    label: fields.label,
  });
  return locks[fields.mode ?? "write"](fields.keys, options);
}

function granted(name, hold) {
  holds.set(name, hold);
  return valid(hold);
}

function valid(hold) {
  const fences = hold.fences === undefined ? {fence: hold.fence} : {fences: hold.fences};
  return {token: hold.token, ...fences, valid_ms: Math.floor(hold.timeLeftMs)};
}

function told(info) {
  return {...info, holders: info.holders.length, queue: info.queue.length};
}

/** `Locks` of the same client without the hooks: what is measured is the library, not what they note. */
function plainLocks(one) {
  one.plain ??= new Locks(one.bases[0].given);
  return one.plain;
}

function median(times) {
  return times.sort((one, other) => one - other)[times.length >> 1];
}

/** The times in which so many tasks do each, after a first round of both, in microseconds. */
async function sideBySide(tasks, library, raw) {
  const times = {};
  for (let turn = 0; turn < 2; turn++) {
    for (const [name, work] of [["library_us", library], ["raw_us", raw]]) {
      const began = performance.now();
      await Promise.all(Array.from({length: tasks}, (_, number) => work(number)));
      times[name] = (performance.now() - began) * 1000;
    }
  }
  return times;
}

const ofLocks = {
  async acquire(one, fields, signal) {
    return granted(fields.hold, await request(one, fields).acquire({signal}));
  },
  async try_acquire(one, fields, signal) {
    const hold = await request(one, fields).tryAcquire({signal});
    return hold === undefined ? {refused: true} : granted(fields.hold, hold);
  },
  async adopt({locks}, {keys, token, mode = "write", hold, ttl_ms, renew}) {
    return granted(hold, await locks.adopt(keys, token, mode, given({ttlMs: ttl_ms, renew})));
  },
  async release_token({locks}, {keys, token}) {
    return {released: await locks.release(keys, token)};
  },
  async info({locks}, {key}) {
    return told(await locks.info(key));
  },
  async queues({locks}) {
    return {names: (await locks.queues()).map(({key}) => key)};
  },
  async block(one, fields, signal) {
    await request(one, fields).run((ends) => sleep(fields.work_ms, undefined, {signal: ends}), {signal});
    return {};
  },
  async work(one, fields) {
    const {key, counter, tasks, additions, limit} = fields;
    const plain = await one.bases[0].plain();
    const asked = request(one, {...fields, keys: [key]});
    let most = 0;
    const task = async () => {
      for (let done = 0; done < additions; done++) {
        await asked.run(async () => {
          if (limit === undefined || limit === null) {
            const count = Number((await plain("GET", counter)) ?? 0);
            await plain("SET", counter, count + 1);
            return;
          }
          most = Math.max(most, Number(await plain("INCR", counter)));
          await plain("DECR", counter);
        });
      }
    };
    await Promise.all(Array.from({length: tasks}, task));
    return {done: tasks * additions, most};
  },
  async wait_many({locks}, {key, tasks, ttl_ms}) {
    const asked = locks.write(key, given({ttlMs: ttl_ms}));
    const task = async () => (await asked.acquire()).release();
    await Promise.all(Array.from({length: tasks}, task));
    return {done: tasks};
  },
  async cost(one, {rounds}) {
    const plain = await one.bases[0].plain();
    const asked = plainLocks(one).write("cost", {renew: false});
    const library = async () => (await asked.acquire()).release();
    const raw = async () => {
      const fence = await plain("SLOCK.LOCK", "cost", rawToken(0), 10000);
      await plain("SLOCK.UNLOCK", "cost", rawToken(0), "FENCE", fence);
    };
    const times = new Map([[library, []], [raw, []]]);
    for (let done = 0; done < rounds; done += 100) {
      for (const [work, took] of times) {
        for (let pair = 0; pair < Math.min(100, rounds - done); pair++) {
          const began = performance.now();
          await work();
          took.push((performance.now() - began) * 1000);
        }
      }
    }
    return {client_us: median(times.get(library)), raw_us: median(times.get(raw))};
  },
  async pairs(one, {tasks, rounds}) {
    const plain = await one.bases[0].plain();
    const locks = plainLocks(one);
    const library = async (number) => {
      const asked = locks.write(`pairs:${number}`, {renew: false});
      for (let done = 0; done < rounds; done++) await (await asked.acquire()).release();
    };
    const raw = async (number) => {
      for (let done = 0; done < rounds; done++) {
        const fence = await plain("SLOCK.LOCK", `pairs:${number}`, rawToken(number), 10000);
        await plain("SLOCK.UNLOCK", `pairs:${number}`, rawToken(number), "FENCE", fence);
      }
    };
    return sideBySide(tasks, library, raw);
  },
  async handoffs(one, {key, tasks, rounds}) {
    const [base] = one.bases;
    const asked = plainLocks(one).write(key, {renew: false});
    const clients = Array.from({length: tasks}, () => base.make());
    const plain = await Promise.all(clients.map((client) => base.plain(client)));
    const library = async () => {
      for (let done = 0; done < rounds; done++) await (await asked.acquire()).release();
    };
    const raw = async (number) => {
      for (let done = 0; done < rounds; done++) {
        const fence = await plain[number]("SLOCK.LOCK", key, rawToken(number), 10000, "WAIT", 0);
        await plain[number]("SLOCK.UNLOCK", key, rawToken(number), "FENCE", fence);
      }
    };
    const times = await sideBySide(tasks, library, raw);
    for (const client of clients) base.close(client);
    return times;
  },
  async close({locks, plain, bases}) {
    await Promise.all([locks.close(), plain?.close()]);
    for (const base of bases) base.close();
    return {};
  },
  events(one) {
    return {events: one.events.splice(0)};
  },
};

const ofHolds = {
  async release(hold) {
    return {released: await hold.release()};
  },
  async extend(hold, {ttl_ms}) {
    await hold.extend(ttl_ms ?? undefined);
    return {valid_ms: valid(hold).valid_ms};
  },
  async upgrade(hold, {wait_ms}, signal) {
    await hold.upgrade(given({waitMs: wait_ms, signal}));
    return {fence: hold.fence, mode: hold.mode};
  },
  async downgrade(hold, _, signal) {
    await hold.downgrade({signal});
    return {fence: hold.fence, mode: hold.mode};
  },
  check(hold) {
    hold.check();
    return {};
  },
  hand_over(hold) {
    hold.handOver();
    return {};
  },
  state(hold) {
    return {...valid(hold), mode: hold.mode, keys: hold.keys, metadata: hold.metadata ?? null, lost: hold.lost, reason: hold.reason ?? null};
  },
  async await_lost(hold, _, signal) {
    if (!hold.signal.aborted) {
      await new Promise((resolve, reject) => {
        hold.signal.addEventListener("abort", resolve, {once: true});
        signal.addEventListener("abort", () => reject(signal.reason), {once: true});
      });
    }
    return {reason: hold.reason};
  },
};

const simple = {
  async open(fields) {
    const base = new Base(fields);
    await base.open();
    const events = [];
    const options = given({
      waiting: fields.waiting === "poll" ? strategy(fields.poll) : fields.waiting,
      retryForMs: fields.retry_for_ms,
      retryWaitForMs: fields.retry_wait_for_ms,
      hooks: hooksInto(events),
    });
    opened.set(fields.locks, {locks: new Locks(base.given, options), events, bases: [base]});
    return {};
  },
  open_quorum(fields) {
    const bases = fields.nodes.map((node) => new Base({nodes: [node]}));
    const events = [];
    const options = given({
      nodeTimeoutMs: fields.node_timeout_ms,
      driftFactor: fields.drift_factor,
      failFast: fields.fail_fast,
      poll: fields.poll ? strategy(fields.poll) : undefined,
      hooks: hooksInto(events),
    });
    const locks = new Quorum(bases.map((base) => base.given), options);
    opened.set(fields.locks, {locks, events, bases});
    return {};
  },
  cancel({target}) {
    running.get(target)?.abort();
    return {};
  },
  tasks() {
    return {count: process.getActiveResourcesInfo().filter((one) => one === "Timeout" || one === "TCPSocketWrap").length};
  },
};

async function answer(fields) {
  const {id, op} = fields;
  const controller = new AbortController();
  const {signal} = controller;
  running.set(id, controller);
  try {
    let ok;
    if (op in simple) ok = await simple[op](fields);
    else if (op in ofLocks) ok = await ofLocks[op](opened.get(fields.locks), fields, signal);
    else ok = await ofHolds[op](holds.get(fields.hold), fields, signal);
    say({id, ok});
  } catch (error) {
    const isCancelled = signal.aborted && (error === signal.reason || error?.name === "AbortError");
    const name = isCancelled ? "Cancelled" : error instanceof SlockError ? error.name.replace(/Error$/, "") : "Other";
    say({id, error: name, text: String(error?.message ?? error)});
    if (name === "Other") process.stderr.write(`${op}: ${error?.stack ?? error}\n`);
  } finally {
    running.delete(id);
  }
}

function say(line) {
  process.stdout.write(`${JSON.stringify(line)}\n`);
}

const lines = createInterface({input: process.stdin});
lines.on("line", (line) => void answer(JSON.parse(line)));
lines.on("close", () => process.exit(0));
