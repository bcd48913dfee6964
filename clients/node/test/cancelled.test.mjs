// Thousands of acquisitions that are cancelled, by signals and by lost connections, leave nothing.

import assert from "node:assert/strict";
import {setMaxListeners} from "node:events";
import {test} from "node:test";
import {setTimeout as sleep} from "node:timers/promises";
import {Locks} from "slock-client";
import {MemoryServer} from "slock-client/testing";
import {BASES, connected, startProxy, startServer, until} from "./server.mjs";

const COUNT = 10_000;
const AT_ONCE = 500;
const LOCKS = 50;
const HOUR_MS = 3_600_000;

for (const kind of BASES) {
  test(`${kind}: ${COUNT} cancelled acquisitions leave nothing`, {timeout: 120_000}, async (t) => {
    const server = await startServer(t);
    const proxy = await startProxy(t, server.port);
    const client = await connected(t, kind, proxy.port);
    const locks = new Locks(client, {hooks: {warning() {}}});
    // Half of the locks are another's; the others can be acquired.
    for (let lock = 0; lock < LOCKS / 2; lock++) await server.call("SLOCK.LOCK", `l${lock}`, "other", HOUR_MS);
    const outcomes = {cancelled: 0, granted: 0};

    async function acquire(number) {
      const controller = new AbortController();
      const request = locks.write(`l${number % LOCKS}`, {ttlMs: HOUR_MS, renew: number % 2 === 0});
      const acquired = request.acquire({signal: controller.signal});
      if (number % 7 > 0) setTimeout(() => controller.abort(), Math.random() ** 2 * 1_000);
      else controller.abort();
      try {
        const hold = await acquired;
        outcomes.granted += 1;
        await hold.release();
      } catch (error) {
        assert.equal(error, controller.signal.reason);
        outcomes.cancelled += 1;
      }
    }

    for (let first = 0; first < COUNT; first += AT_ONCE) {
      const some = Array.from({length: AT_ONCE}, (_, at) => acquire(first + at));
      if (first % (2 * AT_ONCE) === 0) {
        await sleep(10);
        proxy.cut();
      }
      await Promise.all(some);
    }
    assert.ok(outcomes.cancelled > COUNT / 2 && outcomes.granted > 0, JSON.stringify(outcomes));
    t.diagnostic(JSON.stringify(outcomes));
    const isClean = async () => (await server.count("slock_locks")) === LOCKS / 2 && (await server.count("slock_waiters")) === 0;
    await until(isClean, "nothing to be held or queued", server);
    await locks.close();
    if (kind === "ioredis") client.disconnect();
    else client.destroy();
    await until(() => !process.getActiveResourcesInfo().includes("Timeout"), "no timer to run");
    await until(async () => (await server.clients()).length === 0, "no connection to be left", server);
  });
}

test("more waits than 10,000 that are aborted at once leave nothing", {timeout: 120_000}, async (t) => {
  const server = await startServer(t);
  const locks = new Locks(await connected(t, "ioredis", server.port), {hooks: {warning() {}}, retryForMs: 60_000});
  await server.call("SLOCK.LOCK", "a", "other", HOUR_MS);
  const controller = new AbortController();
  setMaxListeners(0, controller.signal);
  const waits = [];
  while (waits.length <= COUNT) {
    for (let number = 0; number < AT_ONCE; number++) {
      waits.push(assert.rejects(locks.write("a").acquire({signal: controller.signal}), {name: "AbortError"}));
    }
    await until(async () => (await server.count("slock_waiters")) === waits.length, "all to wait", server, 60);
  }
  controller.abort();
  await Promise.all(waits);
  await until(async () => (await server.count("slock_waiters")) === 0, "nothing to wait", server, 30);
  await locks.close();
});

for (const kind of ["memory", ...BASES]) {
  test(`${kind}: a wait with a token of the program's that is aborted is granted to nobody`, async (t) => {
    const server = kind === "memory" ? undefined : await startServer(t);
    const locks = new Locks(server ? await connected(t, kind, server.port) : new MemoryServer(), {hooks: {warning() {}}});
    const busy = await locks.write("{k}c").acquire();
    const next = locks.write("{k}c").acquire(); // it keeps the channel open, whose end would withdraw what waits
    for (const keys of [["{k}a"], ["{k}a", "{k}b"]]) {
      const other = await locks.write(keys.at(-1)).acquire();
      const controller = new AbortController();
      const waiting = locks.write(keys, {token: "task"}).acquire({signal: controller.signal});
      const waiters = async () => (await locks.info(keys[0])).waiters;
      await until(async () => (await waiters()) === 1, "it to wait", server);
      controller.abort();
      await assert.rejects(waiting, {name: "AbortError"});
      await until(async () => (await waiters()) === 0, "it to leave the queue", server, 5);
      await other.release();
      for (const key of keys) await (await locks.write(key, {waitMs: 2_000}).acquire()).release();
    }
    await busy.release();
    await (await next).release();
    await locks.close();
  });
}
