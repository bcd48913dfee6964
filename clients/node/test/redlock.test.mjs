// What redlock's own tests show, asked of the class in its manner. REDLOCK.md has the list.

import assert from "node:assert/strict";
import {test} from "node:test";
import {setTimeout as sleep} from "node:timers/promises";
import {ExecutionError, Redlock, ResourceLockedError} from "slock-client/redlock";
import {BASES, startServer, until} from "./server.mjs";

const LONG_MS = 60_000;

/** The servers, a `Redlock` of them with few attempts, and who holds a key on the first. */
async function opened(t, name, count, settings = {}) {
  const servers = await Promise.all(Array.from({length: count}, () => startServer(t)));
  const redlock = new Redlock(servers.map(({port}) => BASES[name](port)), {retryCount: 3, retryDelay: 50, retryJitter: 10, ...settings});
  t.after(() => redlock.quit());
  const errors = [];
  redlock.on("error", (error) => errors.push(error));
  const held = async (key, server = servers[0]) => {
    const pttl = async (token) => Number(await server.call("SLOCK.PTTL", key, token));
    const info = await server.call("SLOCK.INFO", key, "FULL");
    const token = info ? new Map(pairs(new Map(pairs(info)).get("holders")[0])).get("token") : null;
    return {token, pttl: token === null ? -2 : await pttl(token)};
  };
  return {redlock, servers, errors, held};
}

function pairs(flat) {
  return Array.from({length: flat.length / 2}, (_, at) => [flat[2 * at], flat[2 * at + 1]]);
}

for (const name of Object.keys(BASES)) {
  test(`${name}: a duration must be whole`, async (t) => {
    const {redlock} = await opened(t, name, 1);
    await assert.rejects(async () => redlock.acquire(["a"], 1000.5), /integer value/);
    await assert.rejects(redlock.using(["a"], 1000.5, async () => {}), /integer value/);
  });

  for (const resources of [["a"], ["b1", "b2"]]) {
    test(`${name}: ${resources} are acquired, extended and released`, async (t) => {
      const {redlock, held} = await opened(t, name, 1);
      let lock = await redlock.acquire(resources, LONG_MS);
      for (const key of resources) {
        const {token, pttl} = await held(key);
        assert.equal(token, lock.value);
        assert.ok(Math.abs(pttl - LONG_MS) < 500, `${pttl}`);
      }
      const first = lock;
      lock = await lock.extend(3 * LONG_MS);
      assert.equal(first.expiration, 0);
      assert.ok(lock.expiration - Date.now() > 2.9 * LONG_MS);
      for (const key of resources) assert.ok((await held(key)).pttl > 2.9 * LONG_MS);
      await lock.release();
      for (const key of resources) assert.equal((await held(key)).token, null);
    });
  }

  test(`${name}: no server can be reached`, async (t) => {
    const redlock = new Redlock([BASES[name](1)], {retryCount: 2, retryDelay: 20});
    t.after(() => redlock.quit());
    await assert.rejects(redlock.acquire(["a"], LONG_MS), ExecutionError);
  });

  test(`${name}: a lock expires`, async (t) => {
    const {redlock, held} = await opened(t, name, 1);
    const lock = await redlock.acquire(["a"], 200);
    assert.equal((await held("a")).token, lock.value);
    await sleep(300);
    const next = await redlock.acquire(["a"], 200);
    assert.equal((await held("a")).token, next.value);
    await assert.rejects(lock.extend(200), /already-expired/);
    await next.release();
    assert.equal((await held("a")).token, null);
  });

  test(`${name}: locks are exclusive, also those that overlap`, async (t) => {
    const {redlock, held, errors} = await opened(t, name, 1);
    const lock = await redlock.acquire(["c1", "c2"], LONG_MS);
    await assert.rejects(redlock.acquire(["c1"], LONG_MS), ExecutionError);
    await assert.rejects(redlock.acquire(["c2", "c3"], LONG_MS, {retryCount: 0}), ExecutionError);
    assert.ok(errors.every((error) => error instanceof ResourceLockedError), String(errors));
    assert.equal((await held("c2")).token, lock.value);
    assert.equal((await held("c3")).token, null);
    await lock.release();
    for (const key of ["c1", "c2", "c3"]) assert.equal((await held(key)).token, null);
  });

  test(`${name}: \`using\` extends, releases and is exclusive`, async (t) => {
    const {redlock, held} = await opened(t, name, 1, {retryCount: -1});
    let inside = 0;
    const work = async (signal) => {
      assert.equal((inside += 1), 1);
      const {token} = await held("x");
      await sleep(700);
      assert.equal(signal.aborted, false);
      assert.equal(signal.error, undefined);
      assert.equal((await held("x")).token, token);
      inside -= 1;
      return token;
    };
    const tokens = await Promise.all([
      redlock.using(["x"], 500, {automaticExtensionThreshold: 200}, work),
      redlock.using(["x"], 500, work),
    ]);
    assert.notEqual(tokens[0], tokens[1]);
    assert.equal((await held("x")).token, null);
  });

  test(`${name}: \`using\` tells by its signal that the lock is lost`, async (t) => {
    const {redlock, servers} = await opened(t, name, 1);
    await redlock.using(["x"], 300, async (signal) => {
      await servers[0].call("DEL", "x");
      await until(() => signal.aborted, "the signal", servers[0]);
      assert.match(signal.error.message, /lost/);
    });
  });

  test(`${name}: a majority of three locks, extends and releases`, async (t) => {
    const {redlock, servers, held} = await opened(t, name, 3);
    let lock = await redlock.acquire(["q"], LONG_MS);
    for (const server of servers) await until(async () => (await held("q", server)).token === lock.value, "all to grant", server);
    lock = await lock.extend(3 * LONG_MS);
    for (const server of servers) await until(async () => (await held("q", server)).pttl > 2.9 * LONG_MS, "all to extend", server);
    await lock.release();
    for (const server of servers) await until(async () => (await held("q", server)).token === null, "all to release", server);
  });

  test(`${name}: a minority that has it locked is outvoted`, async (t) => {
    const {redlock, servers, held} = await opened(t, name, 3);
    await servers[0].call("SLOCK.LOCK", "q", "other", LONG_MS);
    const lock = await redlock.acquire(["q"], LONG_MS);
    assert.equal((await held("q", servers[0])).token, "other");
    const extended = await lock.extend(2 * LONG_MS);
    await extended.release();
    assert.equal((await held("q", servers[0])).token, "other");
  });

  test(`${name}: a majority that has it locked wins`, async (t) => {
    const {redlock, servers, held} = await opened(t, name, 3);
    for (const server of servers.slice(0, 2)) await server.call("SLOCK.LOCK", "q", "other", LONG_MS);
    await assert.rejects(redlock.acquire(["q"], LONG_MS), ExecutionError);
    await until(async () => (await held("q", servers[2])).token === null, "nothing to be left", servers[2]);
  });
}
