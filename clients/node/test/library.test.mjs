// What a program in Node does with the library, beside the scenarios that all libraries share.

import assert from "node:assert/strict";
import {execFileSync} from "node:child_process";
import {createRequire} from "node:module";
import {test} from "node:test";
import {setImmediate as turn} from "node:timers/promises";
import {fileURLToPath} from "node:url";
import {setFlagsFromString} from "node:v8";
import {runInNewContext} from "node:vm";
import {Locks, LostError, NotHeldError, Quorum, QuorumMissedError, Strategy, TimedOutError} from "slock-client";
import {newToken} from "../dist/esm/commands.js";
import {Connection} from "../dist/esm/connection.js";
import {hashTag, nameIn, slotOf} from "../dist/esm/slots.js";
import {BASES, startServer, until} from "./server.mjs";

const quiet = {warning() {}};

/** A client in the manner of node-redis whose commands are answered by `answer`, which may throw. */
function answering(answer) {
  const client = {
    options: {socket: {port: 1}},
    isOpen: true,
    duplicate: () => answering(answer),
    on: () => client,
    once(_, then) { then(); },
    connect: async () => {},
    sendCommand: async (words) => answer(words),
    sSubscribe() {},
    destroy() {},
  };
  return client;
}

/** A client of a cluster, in the manner of ioredis: `slots` are its primaries. */
function clusterOf(slots, call, more = {}) {
  const node = (options) => ({
    ...more,
    options,
    duplicate: (given) => node({...options, ...given}),
    on() { return this; },
    connect: async () => {},
    call: async (command) => (command === "CLUSTER" ? slots : call(command, options)),
    disconnect() {},
  });
  return {options: {}, nodes: () => [node({host: "one", port: 1})], call() {}};
}

test("the package is also CommonJS", () => {
  const required = createRequire(import.meta.url)("slock-client");
  assert.equal(typeof required.Locks, "function");
  assert.equal(typeof createRequire(import.meta.url)("slock-client/redlock").Redlock, "function");
});

test("what is wrong is refused before anything is sent", () => {
  const locks = new Locks(BASES["node-redis"](1));
  assert.throws(() => locks.write([]), RangeError);
  assert.throws(() => locks.write(["a", Buffer.from("a")]), RangeError);
  assert.throws(() => locks.write("a", {ttlMs: 1}), RangeError);
  assert.throws(() => locks.write("a", {waitMs: -1}), RangeError);
  assert.throws(() => locks.write("a", {ttl: 5}), TypeError);
  assert.throws(() => locks.write("a", {limit: 2}), TypeError);
  assert.throws(() => locks.read("a", {limit: 0}), RangeError);
  assert.throws(() => new Locks({}), TypeError);
  assert.throws(() => new Locks(BASES["node-redis"](1), {waiting: "sometimes"}), TypeError);
  assert.throws(() => new Quorum([BASES["node-redis"](1)], {minReplicas: 1}), TypeError);
  assert.throws(() => Strategy.constant(0), RangeError);
});

test("slots are those of a cluster", () => {
  assert.equal(slotOf("123456789"), 0x31c3);
  assert.equal(slotOf("{user1000}.following"), slotOf("user1000"));
  for (const key of ["a", "{a}b", "{}b", "}{", "", Buffer.from([0xff, 0x7d])]) {
    assert.equal(slotOf(`{${hashTag(key)}}.waits`), slotOf(key), String(key));
  }
});

test("each slot has a name, and all are found soon", () => {
  const began = performance.now();
  for (let slot = 0; slot < 16_384; slot++) assert.equal(slotOf(nameIn(slot)), slot);
  assert.ok(performance.now() - began < 5_000, `${performance.now() - began}`); // without a memory half a minute
});

test("tokens are all different", () => {
  const tokens = Array.from({length: 1_000}, newToken);
  assert.equal(new Set(tokens).size, 1_000);
  assert.deepEqual(new Set(tokens.map((token) => Buffer.from(token, "base64url").length)), new Set([16]));
});

for (const [name, client] of Object.entries(BASES)) {
  test(`${name}: a block by Symbol.asyncDispose`, async (t) => {
    const server = await startServer(t);
    const locks = new Locks(client(server.port), {hooks: quiet});
    const hold = await locks.write("a").acquire();
    await hold[Symbol.asyncDispose]();
    assert.equal(await server.count("slock_locks"), 0);
    assert.throws(() => hold.check(), NotHeldError);

    const lost = await locks.write("a").acquire();
    await server.call("DEL", "a");
    await assert.rejects(lost.extend(), LostError);
    await lost[Symbol.asyncDispose](); // it has been told
    const unseen = await locks.write("a", {ttlMs: 900}).acquire();
    await server.call("DEL", "a");
    await until(() => unseen.lost, "the loss to be noticed", server);
    await assert.rejects(unseen[Symbol.asyncDispose](), LostError);
    await locks[Symbol.asyncDispose]();
  });

  test(`${name}: run ends the work with its signal`, async (t) => {
    const server = await startServer(t);
    const locks = new Locks(client(server.port), {hooks: quiet});
    const request = locks.write(Buffer.from([0xff, 0x00]), {ttlMs: 600});
    assert.equal(await request.run((signal, hold) => [signal.aborted, hold.mode].join()), "false,write");
    const ended = request.run(async (signal) => {
      await server.call("FLUSHALL");
      await new Promise((resolve) => signal.addEventListener("abort", resolve));
      assert.ok(signal.reason instanceof LostError);
      return "its result is not given";
    });
    await assert.rejects(ended, LostError);
    await assert.rejects(request.run(() => Promise.reject(new Error("own"))), /own/);

    const controller = new AbortController();
    const cancelled = request.run((signal) => new Promise((_, reject) => {
      signal.addEventListener("abort", () => reject(signal.reason));
      controller.abort(new Error("enough"));
    }), {signal: controller.signal});
    await assert.rejects(cancelled, /enough/);
    assert.equal(await server.count("slock_locks"), 0);
    await assert.rejects(request.acquire({signal: AbortSignal.abort()}), {name: "AbortError"});
    await locks.close();
  });

  test(`${name}: 1000 tasks wait for 50 locks over two connections`, {timeout: 60_000}, async (t) => {
    const server = await startServer(t);
    const locks = new Locks(client(server.port));
    for (let lock = 0; lock < 50; lock++) await server.call("SLOCK.LOCK", `l${lock}`, "other", 60_000);
    const inside = new Map();
    const tasks = Array.from({length: 1000}, async (_, number) => {
      const key = `l${number % 50}`;
      await locks.write(key).run(() => {
        assert.equal(inside.get(key) ?? false, false);
        inside.set(key, true);
        return Promise.resolve().then(() => inside.set(key, false));
      });
    });
    await until(async () => (await server.count("slock_waiters")) === 1000, "all to wait", server);
    assert.equal((await server.connections()).length, 2);
    for (let lock = 0; lock < 50; lock++) await server.call("SLOCK.UNLOCK", `l${lock}`, "other");
    await Promise.all(tasks);
    assert.equal(await server.count("slock_locks"), 0);
    await locks.close();
  });

  test(`${name}: a limit of time names its cause`, async () => {
    const locks = new Locks(client(1), {retryForMs: 100});
    await assert.rejects(locks.write("a").acquire(), (error) => {
      assert.ok(error instanceof TimedOutError);
      assert.match(error.message, /connection refused/);
      assert.ok(error.cause instanceof Error);
      return !error.answered;
    });
    await locks.close();
  });
}

test("a hold of several keys of which one is gone is not released", async (t) => {
  const server = await startServer(t);
  const lost = [];
  const locks = new Locks(BASES.ioredis(server.port), {hooks: {...quiet, lost: (...told) => lost.push(told.join())}});
  const hold = await locks.write(["{t}a", "{t}b"]).acquire();
  await server.call("DEL", "{t}a");
  assert.equal(await hold.release(), false);
  assert.deepEqual(lost, ["{t}a,gone"]);
  assert.equal(await server.count("slock_locks"), 0);
  await locks.close();
});

test("an upgrade that was refused, of which a copy before comes late", async (t) => {
  const server = await startServer(t);
  let late;
  const locks = new Locks(answering((words) => {
    if (words[0] !== "SLOCK.UPGRADE" || late) return server.call(...words);
    late = words;
    throw new Error("Socket closed unexpectedly");
  }), {hooks: quiet});
  const hold = await locks.read("a").acquire();
  await server.call("SLOCK.RLOCK", "a", "other", 60_000);
  await assert.rejects(hold.upgrade({waitMs: 0}), TimedOutError);
  await server.call("SLOCK.RUNLOCK", "a", "other");
  await assert.rejects(server.call(...late), /REFUSED/);
  await hold.extend();
  assert.equal(hold.mode, "read");
  assert.equal(await hold.release(), true);
  await locks.close();
});

test("an upgrade ends when its hold is lost", async () => {
  let away = false;
  const locks = new Locks(answering(([command]) => {
    if (away) throw new Error("Socket closed unexpectedly");
    return command === "SLOCK.UPGRADE" ? 0 : 1;
  }), {hooks: quiet, ttlMs: 300, waiting: Strategy.constant(10)});
  const hold = await locks.read("a").acquire();
  const began = performance.now();
  const upgrade = hold.upgrade();
  away = true;
  await assert.rejects(upgrade, LostError);
  assert.ok(performance.now() - began < 3_000, `${performance.now() - began}`);
  await locks.close();
});

test("a hold of a quorum by the program's token is released at a node that did not answer", async (t) => {
  const servers = await Promise.all([1, 2, 3].map(() => startServer(t)));
  const silent = async (words) => {
    const answer = await servers[2].call(...words);
    return words[0] === "SLOCK.LOCK" && words.at(-1) !== "XX" ? new Promise(() => {}) : answer;
  };
  const clients = [...servers.slice(0, 2).map(({port}) => BASES.ioredis(port)), answering(silent)];
  let isOverdue = false;
  const quorum = new Quorum(clients, {hooks: {...quiet, renewalFailed: () => (isOverdue = true)}, nodeTimeoutMs: 200});
  const hold = await quorum.write("a", {token: "mine", renew: false, ttlMs: 60_000}).acquire();
  await until(() => isOverdue, "the answer of the silent node to be overdue", servers[2]);
  assert.equal(await servers[2].count("slock_locks"), 1);
  assert.equal(await hold.release(), true);
  await until(async () => (await servers[2].count("slock_locks")) === 0, "its hold to be released", servers[2]);
  await quorum.close();
});

test("a majority that granted too late is no refusal", async (t) => {
  const server = await startServer(t);
  const quorum = new Quorum([BASES.ioredis(server.port)], {hooks: quiet});
  await assert.rejects(quorum.write("a", {ttlMs: 2}).tryAcquire(), QuorumMissedError); // less than the drift
  await quorum.close();
});

test("in a cluster a channel is left whose request ended before its subscription", async () => {
  const subscribed = [];
  const left = [];
  let confirm;
  const ssubscribe = (channel) => {
    subscribed.push(channel);
    return new Promise((resolve) => (confirm = resolve));
  };
  const more = {ssubscribe, sunsubscribe: async (channel) => left.push(channel)};
  const locks = new Locks(clusterOf([[0, 16_383, ["one", 1]]], () => 0, more), {hooks: quiet});
  const controller = new AbortController();
  const wait = locks.write("a").acquire({signal: controller.signal});
  await until(() => confirm, "the subscription");
  controller.abort();
  await assert.rejects(wait, {name: "AbortError"});
  confirm();
  await until(() => left.length > 0, "the channel to be left");
  assert.deepEqual(left, subscribed);
  await locks.close();
});

test("a signal that lives long keeps nothing of the work that it could have ended", async () => {
  setFlagsFromString("--expose-gc");
  const collect = runInNewContext("gc");
  const locks = new Locks(answering(() => 1), {hooks: quiet});
  const {signal} = new AbortController();
  const signals = [];
  for (let number = 0; number < 100; number++) {
    await locks.write("a").run((ends) => {
      ends.addEventListener("abort", () => {});
      signals.push(new WeakRef(ends));
    }, {signal});
  }
  await until(async () => {
    await turn();
    collect();
    return signals.filter((one) => one.deref()).length < 10;
  }, "the signals of the work to be collected");
  await locks.close();
});

test("an error of a hook changes nothing, also one that comes later", async (t) => {
  const warnings = [];
  const warned = ({message}) => warnings.push(message);
  process.on("warning", warned);
  t.after(() => process.off("warning", warned));
  const waited = () => { throw new Error("at once"); };
  const locks = new Locks(answering(() => 1), {hooks: {waited, held: async () => { throw new Error("later"); }}});
  assert.equal(await (await locks.write("a").acquire()).release(), true);
  await until(() => warnings.length === 2, "both to be told");
  assert.match(warnings[0], /the hook waited failed: Error: at once/);
  assert.match(warnings[1], /the hook held failed: Error: later/);
  await locks.close();
});

test("a hold is gone when something else has its name", async (t) => {
  const server = await startServer(t);
  const locks = new Locks(BASES.ioredis(server.port), {hooks: quiet, ttlMs: 900});
  const hold = await locks.write("a").acquire();
  await server.call("SET", "a", "text");
  await until(() => hold.lost, "the loss to be noticed", server);
  assert.equal(hold.reason, "gone");
  await locks.close();
});

test("adopt asks for the hold alone, and needs no permission to look at the lock", async (t) => {
  const server = await startServer(t);
  await server.call("ACL", "SETUSER", "user", "on", ">secret", "~*", "+@all", "-slock.info");
  await server.call("SLOCK.LOCK", "a", "handed-over", 60_000);
  const locks = new Locks(BASES.ioredis(server.port, {username: "user", password: "secret"}), {hooks: quiet});
  const hold = await locks.adopt("a", "handed-over", "write");
  assert.equal(await hold.release(), true);
  await locks.close();
});

test("a quorum without servers is asked for retryForMs", async () => {
  const quorum = new Quorum([1, 2, 3].map((port) => BASES.ioredis(port)), {hooks: quiet});
  await assert.rejects(quorum.write("a").acquire(), QuorumMissedError);
  await quorum.close();
});

test("a hold of a quorum is released after close", async (t) => {
  const server = await startServer(t);
  const quorum = new Quorum([BASES.ioredis(server.port)], {hooks: quiet});
  const hold = await quorum.write("a").acquire();
  await quorum.close();
  assert.equal(await hold.release(), true);
  assert.equal(await server.count("slock_locks"), 0);
  await until(async () => (await server.connections()).length === 0, "its connection to be closed", server);
});

test("a sleep of the machine counts, also after the wall clock was put back", async (t) => {
  const clocks = {monotonic: 0, wall: 1e12};
  t.mock.method(performance, "now", () => clocks.monotonic);
  t.mock.method(Date, "now", () => clocks.wall);
  const {now} = await import("../dist/esm/clock.js?mocked");
  const passes = (monotonic, wall) => {
    const before = now();
    clocks.monotonic += monotonic;
    clocks.wall += wall;
    return now() - before;
  };
  assert.equal(passes(1_000, 1_000), 1_000);
  assert.equal(passes(10, 600_010), 600_010); // asleep
  assert.equal(passes(10, -3_600_000), 10); // put back
  assert.equal(passes(10, 600_010), 600_010);
  assert.equal(passes(10, 9) + passes(10, 11), 20); // whole ms
});

test("the queues of a cluster are those of all its primaries", async () => {
  const slots = [[0, 99, ["one", 1]], [100, 16_000, ["two", 2]], [16_001, 16_383, ["one", 1]]];
  const waits = {one: [["key", "a", "longest-wait-ms", 5], ["key", "c", "longest-wait-ms", 1]], two: [["key", "b", "longest-wait-ms", 3]]};
  const locks = new Locks(clusterOf(slots, (_, {host}) => waits[host]));
  assert.deepEqual((await locks.queues()).map(({key}) => key), ["a", "b", "c"]);
  await locks.close();
});

test("the examples run", async (t) => {
  const server = await startServer(t);
  for (const [example, says, ...words] of [
    ["counter.mjs", /200 of 200/, "200"],
    ["fenced.mjs", /refused/],
    ["many.mjs", /100 tasks, at most [1-3] at once/],
  ]) {
    const path = fileURLToPath(new URL(`../examples/${example}`, import.meta.url));
    const said = execFileSync(process.execPath, [path, String(server.port), ...words], {encoding: "utf8", timeout: 30_000});
    assert.match(said, says);
  }
});

test("the answers of a pipeline have the order of its commands, whichever settles first", async () => {
  const late = () => Promise.resolve().then(() => {}).then(() => { throw new Error("ERR refused"); });
  const raw = {connect: async () => {}, send: ([name]) => (name === "refused" ? late() : Promise.resolve(name)), destroy() {}};
  const connection = new Connection(async () => raw, "here", 1_000);
  const [first, second] = await connection.ask([["refused"], ["done"]], Infinity);
  assert.equal(first.message, "ERR refused");
  assert.equal(second, "done");
});
