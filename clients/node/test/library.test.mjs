// What a program in Node does with the library, beside the scenarios that all libraries share.

import assert from "node:assert/strict";
import {execFileSync} from "node:child_process";
import {createRequire} from "node:module";
import {test} from "node:test";
import {fileURLToPath} from "node:url";
import {Locks, LostError, NotHeldError, Quorum, Strategy, TimedOutError} from "slock-client";
import {Connection} from "../dist/esm/connection.js";
import {hashTag, slotOf} from "../dist/esm/slots.js";
import {BASES, startServer, until} from "./server.mjs";

const quiet = {warning() {}};

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
