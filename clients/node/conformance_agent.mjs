// The agent of the conformance scenarios: it calls the library and does nothing else. Its argument is the Redis client library:
// node-redis or ioredis. SLOCK_REDIS and SLOCK_IOREDIS name the package, for another version or iovalkey; with SLOCK_POOL a
// client of node-redis is a pool. The protocol is in clients/conformance/README.md.

import {readFileSync} from "node:fs";
import {createInterface} from "node:readline";
import {setTimeout as sleep} from "node:timers/promises";
import {Locks, Quorum, SlockError} from "slock-client";
import {MemoryServer} from "slock-client/testing";

const isIoredis = process.argv[2] === "ioredis";
const {Redis, Cluster} = isIoredis ? await import(process.env.SLOCK_IOREDIS ?? "ioredis") : {};
const {createClient, createClientPool, createCluster, createSentinel} = isIoredis ? {} : await import(process.env.SLOCK_REDIS ?? "redis");

/** A client as a program would make it, and how plain commands go through it. */
class Base {
  constructor({kind = "single", nodes, service, user, password, password_file, read_timeout_ms}) {
    const addresses = nodes.map((node) => {
      const [host, port] = node.split(":");
      return {host, port: Number(port)};
    });
    const read = () => readFileSync(password_file, "utf8").trim();
    const login = user === undefined ? {} : password_file ? {username: user} : {username: user, password};
    if (isIoredis) {
      // A user of an application may not run INFO.
      const options = {...login, ...(user && {enableReadyCheck: false}), ...(read_timeout_ms && {commandTimeout: read_timeout_ms})};
      this.make = () => new Redis({...options, ...addresses[0], lazyConnect: true});
      if (kind === "cluster") this.client = new Cluster(addresses, {redisOptions: login, lazyConnect: true});
      else if (kind === "sentinel") this.client = new Redis({...options, sentinels: addresses, name: service, lazyConnect: true});
      else this.client = this.make();
      if (password_file) Object.defineProperty(this.client.options, "password", {get: read, enumerable: true});
    } else {
      const provider = {type: "async-credentials-provider", credentials: async () => ({username: user, password: read()})};
      const options = {
        ...(password_file ? {credentialsProvider: provider} : login),
        ...(read_timeout_ms && {commandOptions: {timeout: read_timeout_ms}}),
      };
      this.make = () => createClient({...options, socket: addresses[0]});
      if (kind === "cluster") {
        this.client = createCluster({rootNodes: addresses.map((socket) => ({socket})), defaults: login});
      } else if (kind === "sentinel") {
        const made = () => createSentinel({name: service, sentinelRootNodes: addresses, nodeClientOptions: login});
        this.client = made();
        if (!this.client.duplicate) this.client.duplicate = made; // node-redis 5 has none
      } else this.client = process.env.SLOCK_POOL ? createClientPool({...options, socket: addresses[0]}, {maximum: 2}) : this.make();
    }
    this.client.on("error", () => {});
  }

  /** It connects, or goes on trying. */
  async open() {
    if (isIoredis) return;
    await Promise.race([this.client.connect().catch(() => {}), sleep(1000, undefined, {ref: false})]);
  }

  async plain(client = this.client) {
    if (isIoredis) return (...words) => client.call(...words.map(String));
    if (!client.isOpen) await client.connect();
    return (...words) => {
      const texts = words.map(String);
      if (client.nodeClient) return client.sendCommand(texts[1], false, texts);
      return client.getMasterNode ? client.sendCommand(false, texts) : client.sendCommand(texts);
    };
  }

  close(client = this.client) {
    if (isIoredis) client.disconnect();
    else if (client.isOpen) client.destroy();
  }
}

const opened = new Map();
const holds = new Map();
const running = new Map();
const memories = new Map();

function given(options) {
  return Object.fromEntries(Object.entries(options).filter(([, value]) => value !== undefined && value !== null));
}

function strategy({kind, pause_ms, most_ms, limit} = {}) {
  const most = kind === "none" ? 0 : (limit ?? Infinity);
  const pause = (n) => (kind === "constant" ? pause_ms : Math.min((pause_ms ?? 10) * 2 ** n, most_ms ?? 100) * (0.5 + Math.random() / 2));
  return (n) => (n < most ? pause(n) : undefined);
}

function hooksInto(events) {
  return {
    waited: (label, ms, outcome) => events.push({event: "waited", label, outcome}),
    held: (label) => events.push({event: "held", label}),
    lost: (label, {keys, reason}) => events.push({event: "lost", label, keys, reason}),
    renewalFailed: (label, error) => events.push({event: "renewal failed", label, error: textOf(error)}),
    releaseFailed: (label, error) => events.push({event: "release failed", label, error: textOf(error)}),
    warning: (text) => process.stderr.write(`${text}\n`),
  };
}

const textOf = (error) => String(error?.message ?? error);

function request({locks}, fields) {
  const options = given({
    ttlMs: fields.ttl_ms, waitMs: fields.wait_ms, limit: fields.limit, metadata: fields.metadata, renew: fields.renew,
    maxHoldMs: fields.max_hold_ms, atLeastMs: fields.at_least_ms, token: fields.token, minReplicas: fields.min_replicas,
    replicaTimeoutMs: fields.replica_timeout_ms, label: fields.label,
  });
  return locks[fields.mode ?? "write"](fields.keys, options);
}

function granted(name, hold) {
  holds.set(name, hold);
  return valid(hold);
}

function valid({token, fence, fences, remainingMs}) {
  return {token, fence, ...(fence === 0 && {fences}), remaining_ms: Math.floor(remainingMs)};
}

const rawToken = () => `raw:${Math.random().toString(16).slice(2).padEnd(18, "0").slice(0, 18)}`;
const META = ["META", "host=example pid=12345"];

function median(times) {
  return times.sort((one, other) => one - other)[times.length >> 1];
}

/** The times in which so many tasks do each, in five turns after a first one, in microseconds. */
async function sideBySide(tasks, rounds, library, raw) {
  const times = {library_us: [], raw_us: []};
  for (let turn = 0; turn <= 5; turn++) {
    for (const [name, work] of [["library_us", library], ["raw_us", raw]]) {
      const began = performance.now();
      await Promise.all(Array.from({length: tasks}, async (_, number) => {
        for (let done = 0; done < rounds / 5; done++) await work(number);
      }));
      if (turn > 0) times[name].push((performance.now() - began) * 1000);
    }
  }
  return Object.fromEntries(Object.entries(times).map(([name, all]) => [name, median(all) * 5]));
}

const ofLocks = {
  async acquire(one, fields, signal) {
    return granted(fields.hold, await request(one, fields).acquire({signal}));
  },
  async try_acquire(one, fields, signal) {
    const hold = await request(one, fields).tryAcquire({signal});
    return hold === undefined ? {refused: true} : granted(fields.hold, hold);
  },
  async adopt(one, {token, ...fields}) {
    return granted(fields.hold, await request(one, fields).adopt(token));
  },
  async release_token({locks}, {keys, token}) {
    return {released: await locks.release(keys, token)};
  },
  async info({locks}, {key}) {
    const {mode, readers, waiters, holders, queue} = await locks.info(key);
    return {key, mode, readers, waiters, holders: holders.length, queue: queue.length, tokens: holders.map(({token}) => token)};
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
    await Promise.all(Array.from({length: tasks}, async () => (await asked.acquire()).release()));
    return {done: tasks};
  },
  async cost(one, {rounds}) {
    const plain = await one.bases[0].plain();
    const asked = plainLocks(one).write("cost", {renew: false});
    const times = {client_us: [], raw_us: []};
    const works = {
      client_us: async () => (await asked.acquire()).release(),
      async raw_us() {
        const token = rawToken();
        await plain("SLOCK.LOCK", "cost", token, 10000, ...META);
        await plain("SLOCK.MUNLOCK", 1, "cost", token, "REFUSE", 120000);
      },
    };
    for (let done = 0; done < rounds; done += 100) {
      for (const [name, work] of Object.entries(works)) {
        for (let pair = 0; pair < 100; pair++) {
          const began = performance.now();
          await work();
          times[name].push((performance.now() - began) * 1000);
        }
      }
    }
    return {client_us: median(times.client_us), raw_us: median(times.raw_us)};
  },
  async pairs(one, {tasks, rounds}) {
    const plain = await one.bases[0].plain();
    const locks = plainLocks(one);
    return sideBySide(tasks, rounds, async (number) => {
      await (await locks.write(`pairs:${number}`, {renew: false}).acquire()).release();
    }, async (number) => {
      const token = rawToken();
      await plain("SLOCK.LOCK", `pairs:${number}`, token, 10000, ...META);
      await plain("SLOCK.MUNLOCK", 1, `pairs:${number}`, token, "REFUSE", 120000);
    });
  },
  async handoffs(one, {key, tasks, rounds}) {
    const [base] = one.bases;
    const asked = plainLocks(one).write(key, {renew: false});
    const clients = Array.from({length: tasks}, () => base.make().on("error", () => {}));
    const plain = await Promise.all(clients.map((client) => base.plain(client)));
    const times = await sideBySide(tasks, rounds, async () => (await asked.acquire()).release(), async (number) => {
      const token = rawToken();
      await plain[number]("SLOCK.LOCK", key, token, 10000, ...META, "WAIT", 0);
      await plain[number]("SLOCK.MUNLOCK", 1, key, token, "REFUSE", 120000);
    });
    for (const client of clients) base.close(client);
    return times;
  },
  async fill_pool(one, {locks, ms}) {
    const plain = await one.bases[0].plain();
    for (let sent = 0; sent < (process.env.SLOCK_POOL ? 2 : 1); sent++) plain("BLPOP", `occupied:${locks}`, ms / 1000).catch(() => {});
    await sleep(10);
    return {};
  },
  async raw({memory, bases}, {command}) {
    if (!memory) return {reply: await (await bases[0].plain())(...command).catch(textOf)};
    const {value} = await memory.call({key: command[1] ?? "", command});
    return {reply: value instanceof Error ? value.message : value};
  },
  async close({locks, plain}, {release}) { // the clients stay open: a hold may still be released over them
    await Promise.all([locks.close(given({release})), plain?.close()]);
    return {};
  },
  events(one) {
    return {events: one.events.splice(0)};
  },
};

/** `Locks` of the same client without the hooks: what is measured is the library, not what they note. */
function plainLocks(one) {
  return (one.plain ??= new Locks(one.bases[0].client));
}

const ofHolds = {
  async release(hold) {
    await hold.release();
    return {};
  },
  async extend(hold, {ttl_ms}) {
    await hold.extend(ttl_ms);
    return {remaining_ms: valid(hold).remaining_ms};
  },
  async upgrade(hold, {wait_ms}, signal) {
    await hold.upgrade(given({waitMs: wait_ms, signal}));
    return {fence: hold.fence, mode: hold.mode};
  },
  async downgrade(hold) {
    await hold.downgrade();
    return {fence: hold.fence, mode: hold.mode};
  },
  check(hold) {
    hold.check();
    return {};
  },
  detach(hold) {
    hold.detach();
    return {};
  },
  state(hold) {
    const {mode, keys, metadata, lost} = hold;
    return {...valid(hold), mode, keys, metadata, lost, reason: hold.reason ?? null};
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
    const events = [];
    const options = given({
      prefix: fields.prefix, retryForMs: fields.retry_for_ms, retryWaitForMs: fields.retry_wait_for_ms, hooks: hooksInto(events),
    });
    if (fields.kind === "memory") {
      const [name] = fields.nodes;
      if (!memories.has(name)) memories.set(name, new MemoryServer());
      const memory = memories.get(name);
      opened.set(fields.locks, {locks: new Locks(memory, options), events, bases: [], memory});
      return {};
    }
    const base = new Base(fields);
    await base.open();
    opened.set(fields.locks, {locks: new Locks(base.client, options), events, bases: [base]});
    return {};
  },
  async open_quorum(fields) {
    const bases = fields.nodes.map((node) => new Base({...fields, kind: "single", nodes: [node]}));
    await Promise.all(bases.map((base) => base.open()));
    const events = [];
    const options = given({
      nodeTimeoutMs: fields.node_timeout_ms, driftFactor: fields.drift_factor, failFast: fields.fail_fast,
      poll: fields.poll ? strategy(fields.poll) : undefined, hooks: hooksInto(events),
    });
    opened.set(fields.locks, {locks: new Quorum(bases.map(({client}) => client), options), events, bases});
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
    say({id, error: name, text: textOf(error)});
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
