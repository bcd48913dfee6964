// What the tests of redlock 5 and 4.2 show, asked of the classes in their manner. REDLOCK.md has the lists.

import assert from "node:assert/strict";
import {createRequire} from "node:module";
import {test} from "node:test";
import {setTimeout as sleep} from "node:timers/promises";
import {LostError} from "slock-client";
import {MemoryServer} from "slock-client/testing";
import {ExecutionError, Redlock as Redlock5, ResourceLockedError} from "slock-client/redlock";
import {BASES, connected, startServer, until} from "./server.mjs";

const Redlock4 = createRequire(import.meta.url)("slock-client/redlock4");
const LONG_MS = 60_000;
const FEW = {retryCount: 3, retryDelay: 50, retryJitter: 10};

/** Servers, a client of each, and a `Redlock` of these with few attempts. */
async function opened(t, Redlock, kind, count, settings = {}, ofClient = {}) {
  const servers = await Promise.all(Array.from({length: count}, () => startServer(t)));
  const clients = await Promise.all(servers.map(({port}) => connected(t, kind, port, ofClient)));
  const redlock = new Redlock(clients, {...FEW, ...settings});
  const errors = [];
  redlock.on(Redlock === Redlock5 ? "error" : "clientError", (error) => errors.push(error));
  const pttl = async (key, server = servers[0]) => Number(await server.call("SLOCK.PTTL", key, (await server.holder(key)) ?? ""));
  return {redlock, servers, clients, errors, pttl};
}

test("redlock 5 and 4: an outage of one server is waited for until the time for attempts is over", async () => {
  const waits = [Redlock5, Redlock4].map(async (Redlock) => {
    const memory = new MemoryServer();
    const tokens = new Set();
    const {call} = memory;
    memory.call = (wanted) => {
      tokens.add(wanted.command.at(wanted.command[0] === "SLOCK.LOCK" ? 2 : 3));
      return tokens.size > 1 ? call.call(memory, wanted) : Promise.reject(new Error("no network")); // until it tries again
    };
    const lock = await new Redlock([memory], {retryCount: -1}).acquire(["a"], LONG_MS);
    assert.deepEqual(memory.holders("a"), [lock.value]);
    memory.call = () => Promise.reject(new Error("no network"));
    const began = performance.now();
    await assert.rejects(new Redlock([memory], {...FEW, retryCount: 80}).acquire(["b"], LONG_MS), (error) => error.cause.name === "NoAnswerError");
    assert.ok(Math.abs(performance.now() - began - 4_000) < 500);
  });
  await Promise.all(waits);
});

for (const kind of BASES) {
  const test5 = (name, work) => test(`redlock 5, ${kind}: ${name}`, work);
  const opened5 = (t, ...more) => opened(t, Redlock5, kind, ...more);

  test5("a duration must be whole", async (t) => {
    const {redlock} = await opened5(t, 1);
    await assert.rejects(redlock.acquire(["a"], 1000.5), /integer value/);
    await assert.rejects(redlock.using(["a"], 1000.5, async () => {}), /integer value/);
  });

  for (const resources of [["a"], ["b1", "b2"]]) {
    test5(`${resources} are acquired, extended and released`, async (t) => {
      const {redlock, servers: [server], pttl} = await opened5(t, 1);
      const first = await redlock.acquire(resources, LONG_MS);
      for (const key of resources) {
        assert.equal(await server.holder(key), first.value);
        assert.ok(Math.abs((await pttl(key)) - LONG_MS) < 500);
      }
      const lock = await first.extend(3 * LONG_MS);
      assert.equal(first.expiration, 0);
      assert.ok(lock.expiration - Date.now() > 2.9 * LONG_MS);
      for (const key of resources) assert.ok((await pttl(key)) > 2.9 * LONG_MS);
      await lock.release();
      for (const key of resources) assert.equal(await server.holder(key), null);
      await assert.rejects(lock.release(), ExecutionError);
    });
  }

  test5("no server can be reached", async (t) => {
    const {redlock, servers, clients} = await opened5(t, 1, {}, {});
    await servers[0].call("CLIENT", "PAUSE", 60_000).catch(() => {});
    const began = performance.now();
    await assert.rejects(redlock.acquire(["a"], LONG_MS), (error) => error instanceof ExecutionError && error.cause.name === "NoAnswerError");
    assert.ok(performance.now() - began < 4_500);
    clients.forEach((client) => client.destroy?.() ?? client.disconnect());
  });

  test5("a lock expires", async (t) => {
    const {redlock, servers: [server]} = await opened5(t, 1);
    const lock = await redlock.acquire(["a"], 200);
    assert.equal(await server.holder("a"), lock.value);
    await until(async () => (await server.holder("a")) === null, "the end of the ttl", server);
    const next = await redlock.acquire(["a"], 200);
    await assert.rejects(lock.extend(200), /already-expired/);
    await next.release();
  });

  test5("locks are exclusive, also those that overlap", async (t) => {
    const {redlock, servers: [server], errors} = await opened5(t, 1);
    const lock = await redlock.acquire(["c1", "c2"], LONG_MS);
    await assert.rejects(redlock.acquire(["c1"], LONG_MS), ExecutionError);
    await assert.rejects(redlock.acquire(["c2", "c3"], LONG_MS, {retryCount: 0}), ExecutionError);
    assert.equal(errors.length, 2);
    assert.ok(errors.every((error) => error instanceof ResourceLockedError), String(errors));
    assert.equal(await server.holder("c2"), lock.value);
    assert.equal(await server.holder("c3"), null);
    await lock.release();
  });

  test5("using extends, releases and is exclusive", async (t) => {
    const {redlock, servers: [server]} = await opened5(t, 1, {retryCount: -1});
    let inside = 0;
    const work = async (signal) => {
      assert.equal((inside += 1), 1);
      const token = await server.holder("x");
      await sleep(2_400);
      assert.deepEqual([signal.aborted, signal.error], [false, undefined]);
      assert.equal(await server.holder("x"), token);
      inside -= 1;
      return token;
    };
    const [one, other] = await Promise.all([
      redlock.using(["x"], 2_000, {automaticExtensionThreshold: 1_000}, work),
      redlock.using(["x"], 2_000, work),
    ]);
    assert.notEqual(one, other);
    assert.equal(await server.holder("x"), null);
  });

  test5("using tells of a loss by its signal, and rejects", async (t) => {
    const {redlock, servers: [server]} = await opened5(t, 1);
    const isLost = (error) => error instanceof ExecutionError && error.cause instanceof LostError;
    await assert.rejects(redlock.using(["x"], 300, async (signal) => {
      await server.call("DEL", "x");
      await until(() => signal.aborted, "the signal", server);
      assert.ok(isLost(signal.error));
    }), isLost);
    // After its last extension.
    await assert.rejects(redlock.using(["x"], LONG_MS, () => server.call("DEL", "x")), isLost);
  });

  test5("a prefix of the client comes before each resource", async (t) => {
    const {redlock, servers: [server]} = await opened5(t, 1, {}, {keyPrefix: "app:"});
    const lock = await redlock.acquire(["a"], LONG_MS);
    assert.equal(await server.holder("app:a"), lock.value);
    await lock.release();
  });

  test5("a majority of three decides", async (t) => {
    const {redlock, servers, pttl} = await opened5(t, 3);
    const lock = await (await redlock.acquire(["q"], LONG_MS)).extend(3 * LONG_MS);
    for (const server of servers) await until(async () => (await pttl("q", server)) > 2.9 * LONG_MS, "all to extend", server);
    await lock.release();
    for (const server of servers) await until(async () => (await server.holder("q")) === null, "all to release", server);
    await servers[0].call("SLOCK.LOCK", "q", "other", LONG_MS);
    await (await (await redlock.acquire(["q"], LONG_MS)).extend(2 * LONG_MS)).release();
    assert.equal(await servers[0].holder("q"), "other");
    await servers[1].call("SLOCK.LOCK", "q", "other", LONG_MS);
    await assert.rejects(redlock.acquire(["q"], LONG_MS), ExecutionError);
    await until(async () => (await servers[2].holder("q")) === null, "nothing to be left", servers[2]);
  });

  for (const [Redlock, name] of [[Redlock5, "redlock 5"], [Redlock4, "redlock 4"]]) {
    test(`${name}, ${kind}: while a process with redlock itself holds a resource, it waits`, async (t) => {
      for (const count of [1, 3]) {
        const {redlock, servers, errors} = await opened(t, Redlock, kind, count, {retryCount: 20});
        for (const server of servers) await server.call("SET", "a", "plain", "NX", "PX", 300);
        const began = performance.now();
        const lock = await redlock.acquire(["a"], LONG_MS);
        assert.ok(performance.now() - began > 200);
        const holders = () => Promise.all(servers.map((server) => server.holder("a").catch(() => "a plain key")));
        const held = async () => (await holders()).filter((one) => one === lock.value).length;
        await until(async () => (await held()) > count / 2, "the majority to be held", servers[0]);
        await redlock.release(lock);
        for (const server of servers) await server.call("SET", "a", "plain", "PX", LONG_MS);
        const failed = Redlock === Redlock5 ? ExecutionError : Redlock4.LockError;
        await assert.rejects(redlock.acquire(["a"], 200, ...(Redlock === Redlock5 ? [{retryCount: 1}] : [])), failed);
        if (Redlock === Redlock5) assert.ok(errors.at(-1) instanceof ResourceLockedError || count > 1, String(errors.at(-1)));
        await redlock.quit();
      }
    });
  }

  test(`redlock 4, ${kind}: locks by promises and by callbacks`, async (t) => {
    const {redlock, servers: [server], errors} = await opened(t, Redlock4, kind, 1, {retryCount: 2, retryDelay: 150, retryJitter: 50});
    const called = (method, ...words) => new Promise((resolve, reject) => {
      redlock[method](...words, (error, value) => (error ? reject(error) : resolve(value)));
    });
    const one = await called("lock", "a", 200);
    assert.ok(one instanceof Redlock4.Lock && one.attempts === 1 && one.attemptsRemaining === 1 && one.expiration > Date.now());
    const two = await redlock.lock("a", 800); // it waits until the first one expires
    assert.ok(Date.now() >= one.expiration);
    const three = await two.extend(900);
    assert.equal(three, two);
    await assert.rejects(redlock.lock(["a", "b"], 200), (error) => error instanceof Redlock4.LockError && error.attempts === 3
      && error.message === 'Exceeded 2 attempts to lock the resource "a,b".');
    const unlocked = two.unlock();
    assert.equal(two.expiration, 0);
    await unlocked;
    assert.equal(await server.holder("a"), null);
    await assert.rejects(two.unlock(), {name: "LockError", message: 'Unable to fully release the lock on resource "a".'});
    await assert.rejects(two.extend(200), {name: "LockError", attempts: 0});
    const four = await called("lockWithOptions", ["a", "b"], 200, {retryCount: 10, retryDelay: 1});
    assert.equal(four.attemptsRemaining, 9);
    await called("unlock", four);
    await assert.rejects(called("unlock", four), Redlock4.LockError);
    assert.deepEqual(errors.filter(({name}) => name !== "NotHeldError"), []);
    assert.throws(() => new Redlock4([]), /at least one/);
    assert.equal((await called("quit")).length, 1);
  });
}
