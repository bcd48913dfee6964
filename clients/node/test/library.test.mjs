// What the common scenarios do not show, because it belongs to Node.

import assert from "node:assert/strict";
import {AsyncLocalStorage} from "node:async_hooks";
import {readFileSync} from "node:fs";
import {createRequire} from "node:module";
import os from "node:os";
import {test} from "node:test";
import {setTimeout as sleep} from "node:timers/promises";
import {fileURLToPath} from "node:url";
import {setFlagsFromString} from "node:v8";
import {runInNewContext} from "node:vm";
import {Redis} from "ioredis";
import * as slock from "slock-client";
import {MemoryServer} from "slock-client/testing";
import {ALL, BASES, connected, run, startProxy, startServer, until} from "./server.mjs";

const {Locks, LostError, NotHeldError, Quorum, TimedOutError} = slock;
const quiet = {hooks: {warning() {}}};

for (const kind of ALL) {
  test(`${kind}: a lock is waited for by a message`, async (t) => {
    const server = await startServer(t);
    const locks = new Locks(await connected(t, kind, server.port), quiet);
    const hold = await locks.write("a").acquire();
    assert.equal(await server.holder("a"), hold.token);
    const next = locks.write("a").acquire();
    await until(async () => (await server.count("slock_waiters")) === 1, "the second to wait", server);
    assert.equal(await locks.write("a").tryAcquire(), undefined);
    await hold.release();
    await (await next).release();
    await assert.rejects(hold.release(), NotHeldError);
    await locks.close();
    await until(async () => (await server.clients()).length <= 1, "the connections of the library to end", server);
  });
}

for (const kind of BASES) {
  async function opened(t, options = {}, ofClient = {}) {
    const server = await startServer(t);
    const client = await connected(t, kind, server.port, ofClient);
    const locks = new Locks(client, {...quiet, ...options});
    t.after(() => locks.close());
    return {server, client, locks};
  }

  test(`${kind}: a lock that is lost after its last renewal is lost for run, await using and release`, async (t) => {
    const losses = [];
    const {server, locks} = await opened(t, {hooks: {lost: (label, {keys, reason}) => losses.push([label, keys, reason]), warning() {}}});
    const request = locks.write(["{t}a", "{t}b"], {ttlMs: 60_000, label: "job"});
    const remove = () => server.call("DEL", "{t}a");
    const isLost = (error) => error instanceof LostError && error.reason === "gone" && error.keys.includes("{t}b");
    await assert.rejects(request.run(remove), isLost);
    const block = await request.acquire();
    await remove();
    await assert.rejects(block[Symbol.asyncDispose](), isLost);
    const hold = await request.acquire();
    await remove();
    await assert.rejects(hold.release(), isLost);
    assert.ok(hold.lost && hold.signal.reason instanceof LostError);
    assert.throws(() => hold.check(), LostError);
    assert.deepEqual(losses, Array(3).fill(["job", ["{t}a", "{t}b"], "gone"]));
    const own = new Error("of the work");
    const failing = request.run(async () => {
      await remove();
      throw own;
    });
    await assert.rejects(failing, (error) => isLost(error) && error.cause === own);
  });

  test(`${kind}: the signal of a call ends the work that it runs`, async (t) => {
    const {server, locks} = await opened(t);
    const controller = new AbortController();
    const work = (signal) => {
      controller.abort(new Error("enough"));
      return sleep(60_000, undefined, {signal});
    };
    await assert.rejects(locks.write("a").run(work, {signal: controller.signal}), {message: "enough"});
    assert.equal(await server.holder("a"), null);
    await assert.rejects(locks.write("a").run(work, {signal: controller.signal}), {message: "enough"});
    assert.equal(await locks.write("a").run(async (signal, hold) => hold.fences[0] === hold.fence), true);
  });

  test(`${kind}: the work ends when its lock is deleted`, async (t) => {
    const {server, locks} = await opened(t);
    await assert.rejects(locks.write("a", {ttlMs: 1500}).run(async (signal) => {
      await server.call("DEL", "a");
      await sleep(60_000, undefined, {signal});
    }), {name: "LostError", message: "the lock was lost, gone (lock a)"});
  });

  test(`${kind}: a program without locks ends by itself`, async (t) => {
    const {port} = await startServer(t);
    const program = kind === "ioredis"
      ? `import {Redis} from "ioredis"; const client = new Redis(${port}); const end = () => client.quit();`
      : `import {createClient} from "redis"; const client = await createClient({socket: {port: ${port}}}).connect(); const end = () => client.close();`;
    const {ms} = await run([process.execPath, "--input-type=module", "--eval", `${program}
      import {Locks} from "slock-client";
      const locks = new Locks(client);
      const hold = await locks.write("a", {ttlMs: 3000}).acquire();
      const next = locks.write("a").acquire();
      setTimeout(() => hold.release(), 1300); // it has been renewed, and the other one waits by a message
      await (await next).release();
      await end();`], {cwd: fileURLToPath(new URL("..", import.meta.url)), timeout: 20_000});
    assert.ok(ms < 8_000, `it took ${ms} ms`);
  });

  test(`${kind}: a hold without a reference is released, with a warning`, async (t) => {
    const warnings = [];
    const {server, locks} = await opened(t, {hooks: {warning: (text) => warnings.push(text)}});
    setFlagsFromString("--expose-gc");
    await (async () => void (await locks.write("a", {ttlMs: 30_000}).acquire()))();
    await until(async () => {
      runInNewContext("gc")();
      return (await server.holder("a")) === null;
    }, "the release", server);
    assert.match(warnings.join(), /never released, and the program has no reference to it: it is released \(lock a\)/);
  });

  test(`${kind}: hooks have the context of their call, and an error in one changes nothing`, async (t) => {
    const context = new AsyncLocalStorage();
    const seen = [];
    const wanted = process.listeners("warning");
    process.removeAllListeners("warning").on("warning", ({message}) => seen.push(message));
    t.after(() => process.removeAllListeners("warning") && wanted.forEach((one) => process.on("warning", one)));
    const note = (what) => () => {
      seen.push(`${what} in ${context.getStore()}`);
      throw new Error("of the hook");
    };
    const {locks} = await opened(t, {hooks: {waited: note("waited"), held: async () => note("held")()}});
    await context.run("a task", () => locks.write("a").run(() => {}));
    await until(() => seen.length === 4, "two hooks and two warnings");
    assert.deepEqual(seen.sort(), ["held in a task", "the hook held failed: of the hook", "the hook waited failed: of the hook", "waited in a task"]);
  });

  test(`${kind}: the time of the hook held begins with the grant`, async (t) => {
    const times = {};
    const note = (what) => (label, ms) => (times[what] = ms);
    const {server, locks} = await opened(t, {hooks: {waited: note("waited"), held: note("held"), warning() {}}});
    await server.call("SLOCK.LOCK", "a", "other", 500);
    await locks.write("a").run(() => {});
    assert.ok(times.waited > 400 && times.held < 300, JSON.stringify(times));
  });

  test(`${kind}: what instruments the program's client sees the commands of a call`, async (t) => {
    const {client, locks} = await opened(t);
    const {sendCommand} = client;
    const seen = [];
    client.sendCommand = function (command, ...others) {
      seen.push(Array.isArray(command) ? command[0] : command.name);
      return sendCommand.call(this, command, ...others);
    };
    await locks.write("a").run(() => {});
    assert.deepEqual(seen.filter((word) => word !== "CLIENT"), ["SLOCK.LOCK", "SLOCK.MUNLOCK"]); // node-redis asks for its database
  });

  test(`${kind}: a prefix of the client comes before that of Locks`, async (t) => {
    const {server, locks} = await opened(t, {prefix: "shop:"}, {keyPrefix: "app:"});
    const hold = await locks.write("a").acquire();
    assert.equal(await server.holder("app:shop:a"), hold.token);
    assert.equal((await locks.info("a")).holders[0].token, hold.token);
    assert.deepEqual(hold.keys, ["a"]);
    await assert.rejects(locks.write("a", {waitMs: 50}).acquire(), (error) =>
      error instanceof TimedOutError && error.message.startsWith("timed out after") && error.message.includes("(lock a), held by host="));
    await hold.release();
  });

  test(`${kind}: a database that the client has selected is also that of its duplicates`, async (t) => {
    const {port} = await startServer(t);
    const [one, other] = [await connected(t, kind, port), await connected(t, kind, port)];
    for (const client of [one, other]) await client.select(3);
    const [locks, others] = [one, other].map((client) => new Locks(client, quiet));
    const hold = await locks.write("a").acquire();
    await hold.extend(20_000);
    void (other.blPop ?? other.blpop).call(other, "nothing", 1).catch(() => {}); // so LOCK goes over a duplicate
    assert.equal(await others.write("a").tryAcquire(), undefined);
  });

  test(`${kind}: a minimum hold time that the server does not allow is refused before the lock is asked for`, async (t) => {
    const {server, client, locks} = await opened(t);
    await server.call("CONFIG", "SET", "slock.max-ttl-ms", 20_000);
    const seen = [];
    const {sendCommand} = client;
    client.sendCommand = function (command, ...others) {
      seen.push(Array.isArray(command) ? command[0] : command.name);
      return sendCommand.call(this, command, ...others);
    };
    const work = () => assert.fail("it runs");
    await assert.rejects(locks.write(["{t}a", "{t}b"], {atLeastMs: 20_001}).run(work), {name: "TypeError", message: /^atLeastMs: ERR ttl must be .* 20000 .*slock.max-ttl-ms/});
    await assert.rejects(locks.write("a", {atLeastMs: Infinity, waitMs: 0}).acquire(), {name: "TypeError", message: /^atLeastMs: /});
    await assert.rejects(locks.read("a", {atLeastMs: 20_001}).tryAcquire(), {name: "TypeError", message: /^atLeastMs: /});
    const quorum = new Quorum([client], quiet);
    t.after(() => quorum.close());
    await assert.rejects(quorum.write("a", {atLeastMs: 20_001}).acquire(), {name: "QuorumMissedError", message: /: atLeastMs: ERR ttl must be/});
    assert.deepEqual([...new Set(seen)].filter((word) => word !== "CLIENT"), ["SLOCK.MEXTEND", "SLOCK.EXTEND", "SLOCK.MUNLOCK"]); // the quorum ends what it asked for
    seen.length = 0;
    await server.call("SLOCK.LOCK", "a", "other", 300);
    const hold = await locks.write("a", {atLeastMs: 20_000}).acquire();
    await hold.release();
    assert.deepEqual(seen.filter((word) => word === "SLOCK.EXTEND").length, 2); // one before, one as the release
    assert.equal(await server.holder("a"), hold.token);
    await (await quorum.write("b", {atLeastMs: 20_000}).acquire()).release();
    assert.notEqual(await server.holder("b"), null);
  });

  test(`${kind}: a connection of a node that opens slower than its time is used once it is open`, async (t) => {
    const server = await startServer(t);
    const proxy = await startProxy(t, server.port, 900);
    const quorum = new Quorum([await connected(t, kind, proxy.port)], {nodeTimeoutMs: 300, ttlMs: 4_000, ...quiet});
    t.after(() => quorum.close());
    const hold = await quorum.write("a").acquire();
    await sleep(4_500, undefined, {signal: hold.signal});
    await hold.release();
  });

  test(`${kind}: a node that is up again counts at once`, async (t) => {
    const server = await startServer(t);
    const proxy = await startProxy(t, server.port);
    const quorum = new Quorum([await connected(t, kind, proxy.port)], quiet);
    t.after(() => quorum.close());
    const hold = await quorum.write("a", {renew: false}).acquire();
    proxy.close();
    await assert.rejects(hold.extend(10_000), /ECONNREFUSED/);
    await proxy.open();
    await hold.extend(10_000);
    await hold.release();
  });
}

test("ioredis: a login that is refused before the first reply is the error of the call, at once", async (t) => {
  const {port} = await startServer(t);
  for (const enableReadyCheck of [true, false]) {
    const client = new Redis({port, username: "app", password: "wrong", enableReadyCheck}).on("error", () => {});
    t.after(() => client.disconnect());
    const locks = new Locks(client, {retryForMs: 60_000, ...quiet});
    for (let calls = 0; calls < 2; calls++) await assert.rejects(locks.write("a").acquire(), {message: /^WRONGPASS /});
    await locks.close();
  }
});

test("ioredis: numbers that come as texts are numbers", async (t) => {
  const {port} = await startServer(t);
  const locks = new Locks(await connected(t, "ioredis", port, {stringNumbers: true}), quiet);
  const hold = await locks.write("a", {token: "1", metadata: "2"}).acquire();
  const {readers, waiters, fence, holders: [{heldMs, token, metadata}]} = await locks.info("a");
  assert.deepEqual([readers, waiters, fence, typeof heldMs, token, metadata], [0, 0, hold.fence, "number", "1", "2"]);
  await hold.release();
});

test("the wall clock may be set while a lock is held, and a sleep of the machine counts", async (t) => {
  const server = await startServer(t);
  const locks = new Locks(await connected(t, "ioredis", server.port), quiet);
  const hold = await locks.write("a", {ttlMs: 4_200}).acquire();
  const {now} = Date;
  const {uptime} = os;
  t.after(() => Object.assign(os, {uptime}) && (Date.now = now));
  for (const hours of [1, -2, 5]) {
    Date.now = () => now() + hours * 3_600_000;
    await sleep(1_600);
    hold.check();
    assert.equal(await server.holder("a"), hold.token);
  }
  Date.now = () => now() + 5 * 3_600_000 + 60_000;
  os.uptime = () => uptime() + 60;
  assert.throws(() => hold.check(), {name: "LostError", reason: "expired"});
});

test("a message for a copy before, whose hold is over, is no grant", async () => {
  const memory = new MemoryServer();
  let free = memory.hold("a");
  let isLost = false;
  const transport = {
    topology: {name: "memory"}, // without failover: messages are believed
    listen: (...all) => memory.listen(...all),
    close() {},
    async call(call) {
      const reply = await memory.call(call);
      if (isLost || !call.command.includes("WAIT")) return reply;
      isLost = true;
      free(); // it is granted, its message comes, and somebody else has the lock before the next copy
      await sleep(5);
      free = memory.hold("a");
      throw new Error("the reply is lost");
    },
  };
  const acquired = new Locks(transport, quiet).write("a").acquire();
  await until(async () => (await new Locks(memory).info("a")).waiters === 1, "the next copy to wait");
  assert.equal(await Promise.race([acquired, sleep(100, "waits")]), "waits");
  free();
  const hold = await acquired;
  assert.deepEqual(memory.holders("a"), [hold.token]);
  assert.equal((await new Locks(memory).info("a")).fence, hold.fence);
});

test("a program's own test can have a lock busy, lost and out of reach", async () => {
  const memory = new MemoryServer();
  const locks = new Locks(memory, {waitMs: 20, retryForMs: 50, ...quiet});
  const free = memory.hold("a");
  await assert.rejects(locks.write("a").acquire(), TimedOutError);
  free();
  const hold = await locks.write("a").acquire();
  memory.lose("a");
  await until(() => hold.signal.aborted, "the loss");
  assert.equal(hold.reason, "gone");
  memory.fail(new Error("no network"));
  await assert.rejects(locks.write("a").acquire(), {name: "NoAnswerError", message: /^no reply from the server within \d+ms \(lock a\): no network$/});
});

test("the holds are confirmed when a new channel is, which may be at another primary", async () => {
  const memory = new MemoryServer();
  let confirm;
  const slow = {topology: memory.topology, call: (...all) => memory.call(...all), listen: (...all) => (confirm = all[2], () => {}), close() {}};
  const locks = new Locks(slow, quiet);
  const hold = await locks.write("a").acquire();
  await memory.call({key: "a", command: ["DEL", "a"]});
  confirm();
  await until(() => hold.lost, "the loss, before the next renewal", undefined, 2);
  await locks.close();
});

test("an error of another realm, as those of Node are under Jest, passes or not by its name", async () => {
  const memory = new MemoryServer();
  const locks = new Locks(memory, {retryForMs: 50, ...quiet});
  memory.fail(runInNewContext("Object.assign(new Error('no network'), {errno: -111})"));
  await assert.rejects(locks.write("a").acquire(), {name: "NoAnswerError", message: /: no network: connection refused$/});
  memory.fail(runInNewContext("new TypeError('of the program')"));
  await assert.rejects(locks.write("a").acquire(), {name: "TypeError"});
});

test("an outage of any length with retryForMs without end is waited for in peace", async (t) => {
  const {port} = await startServer(t);
  const warned = t.mock.method(process, "emitWarning", () => {});
  const client = await connected(t, "ioredis", port);
  const locks = new Locks(client, {retryForMs: Infinity, ...quiet});
  void client.blpop("nothing", 0.3);
  await (await locks.write("a", {ttlMs: 1e7}).acquire()).release();
  const quorum = new Quorum([new MemoryServer()], {ttlMs: 1e11, nodeTimeoutMs: 1e10, ...quiet});
  await quorum.write("a").acquire().catch(() => {});
  assert.deepEqual(warned.mock.calls.map(({arguments: [text]}) => String(text)), []);
});

test("a limit by default is for readers", async () => {
  const locks = new Locks(new MemoryServer(), {limit: 1});
  await (await locks.write("a").acquire()).release();
  const hold = await locks.read("a").acquire();
  assert.ok(!(await locks.read("a").tryAcquire()));
  await hold.upgrade();
  assert.equal(hold.mode, "write");
});

test("an option that is null is not given", async () => {
  const locks = new Locks(new MemoryServer(), {prefix: null, hooks: null});
  for (const name of ["ttlMs", "waitMs", "metadata", "renew", "maxHoldMs", "atLeastMs", "token", "minReplicas", "label", "limit"]) {
    const hold = await locks.read("a", {[name]: null}).acquire({signal: null});
    await hold.upgrade({waitMs: null});
    await hold.release();
  }
  const hold = await locks.write("a", null).acquire(null);
  await assert.rejects(hold.extend(null), {name: "TypeError", message: "ttlMs must be a finite number of 2 or more, not null"});
});

test("a wrong argument is a TypeError that says what is meant, before anything is sent", async () => {
  const memory = new MemoryServer();
  memory.call = () => assert.fail("something is sent");
  const locks = new Locks(memory);
  const {signal} = new AbortController();
  for (const ttlMs of [Infinity, NaN, 1, "5000"]) {
    assert.throws(() => locks.write("a", {ttlMs}), {name: "TypeError", message: `ttlMs must be a finite number of 2 or more, not ${ttlMs}`});
  }
  for (const maxHoldMs of [0, -1]) {
    assert.throws(() => locks.write("a", {maxHoldMs}), {name: "TypeError", message: `maxHoldMs must be a number of 1 or more, not ${maxHoldMs}`});
  }
  const wrong = {retryForMs: ["x", -1, NaN], retryWaitForMs: ["x", -1], nodeTimeoutMs: [0], limit: ["1"], prefix: [5], hooks: [5], token: [5], metadata: [5], label: [7], renew: ["no"], poll: [5], failFast: [1]};
  for (const [name, values] of Object.entries(wrong)) {
    for (const value of values) assert.throws(() => new Quorum([memory], {[name]: value}), {name: "TypeError", message: new RegExp(`^${name} must be .*, not ${value}$`)});
  }
  assert.throws(() => locks.write("from", "to"), {name: "TypeError", message: "several keys are given as an array"});
  assert.throws(() => locks.write(5), {name: "TypeError", message: "the keys must be a text or an array of texts, not 5"});
  const calls = [(options) => locks.write("a").acquire(options), (options) => locks.write("a").tryAcquire(options), (options) => locks.write("a").run(() => {}, options)];
  for (const call of calls) {
    await assert.rejects(call(signal), {name: "TypeError", message: /as \{signal\}$/});
    await assert.rejects(call({waitMs: 5}), {name: "TypeError", message: 'there is no option "waitMs"'});
    await assert.rejects(call(5), {name: "TypeError", message: "the options must be an object, not 5"});
  }
});

test("a wait below a millisecond is one try", async () => {
  const memory = new MemoryServer();
  for (const locks of [new Locks(memory, {waitMs: 0.001}), new Quorum([memory], {waitMs: 0.001})]) {
    await (await locks.write("a").acquire()).release();
    const free = memory.hold("a");
    await assert.rejects(locks.write("a").acquire(), TimedOutError);
    free();
  }
});

test("a loss that check tells is told once", async () => {
  const work = (signal, hold) => {
    const end = performance.now() + 50;
    while (performance.now() < end) {}
    hold.check();
  };
  const locks = new Locks(new MemoryServer(), quiet);
  await assert.rejects(locks.write("a", {ttlMs: 20}).run(work), {name: "LostError", message: "the lock was lost, expired (lock a)"});
});

test("the errors are the same classes in both module systems", () => {
  const required = createRequire(import.meta.url)("slock-client");
  assert.equal(required.LostError, LostError);
  for (const name of Object.keys(required)) assert.equal(slock[name], required[name]);
});

test("a wrong client is named", () => {
  class Client4 { sendCommand() {} } // node-redis 4 has no destroy, ioredis 4 no ssubscribe
  class Redis4 { call() {} sendCommand() {} }
  for (const Kind of [Client4, Redis4]) assert.throws(() => new Locks(new Kind()), {name: "TypeError", message: new RegExp(`, not ${Kind.name}$`)});
  assert.throws(() => new Locks(new Map()), /the client must be one of node-redis 5 or 6, ioredis 5 or 6, or iovalkey, not Map/);
  assert.throws(() => new Locks(undefined), {name: "TypeError", message: /not undefined/});
});

test("the types export nothing internal", () => {
  const files = new Map();
  const read = (name) => {
    if (files.has(name)) return;
    const text = readFileSync(new URL(`../dist/${name}.d.ts`, import.meta.url), "utf8");
    files.set(name, text);
    for (const [, other] of text.matchAll(/from "\.\/(\w+)\.js"/g)) read(other);
  };
  const entries = ["index", "memory", "redlock", "redlock4"];
  entries.forEach(read);
  const named = entries.map((entry) => files.get(entry)).join();
  for (const [file, text] of files) {
    for (const [, name] of text.matchAll(/^export (?:declare )?(?:abstract )?(?:class|interface|type|const|function) (\w+)/gm)) {
      assert.match(named, new RegExp(`\\b${name}\\b`), `${file}.d.ts exports ${name}`);
    }
    assert.doesNotMatch(text, /\b(private|protected|_\w+)\b.*[:(]/, `${file}.d.ts`);
  }
});
