// Thousands of acquisitions that are cancelled, by signals and by lost connections, leave nothing.

import assert from "node:assert/strict";
import {setMaxListeners} from "node:events";
import {test} from "node:test";
import {setTimeout as sleep} from "node:timers/promises";
import {Locks} from "slock-client";
import {BASES, startProxy, startServer, until} from "./server.mjs";

const COUNT = 10_000;
const AT_ONCE = 1_000;
const LOCKS = 50;
const HOUR_MS = 3_600_000;

for (const [name, client] of Object.entries(BASES)) {
  test(`${name}: ${COUNT} cancelled acquisitions leave nothing`, {timeout: 120_000}, async (t) => {
    const server = await startServer(t);
    const proxy = await startProxy(t, server.port);
    const locks = new Locks(client(proxy.port), {hooks: {warning() {}}});
    // Half of the locks are another's; who asks for the others may get them.
    for (let lock = 0; lock < LOCKS / 2; lock++) await server.call("SLOCK.LOCK", `l${lock}`, "other", HOUR_MS);
    const outcomes = {cancelled: 0, granted: 0};

    async function acquire(number) {
      const controller = new AbortController();
      const request = locks.write(`l${number % LOCKS}`, {ttlMs: HOUR_MS, renew: number % 2 === 0});
      const acquired = request.acquire({signal: controller.signal});
      if (number % 7 > 0) setTimeout(() => controller.abort(), Math.random() ** 2 * 300);
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
    assert.equal(outcomes.cancelled + outcomes.granted, COUNT);
    assert.ok(outcomes.cancelled > COUNT / 2 && outcomes.granted > 0, JSON.stringify(outcomes));
    t.diagnostic(JSON.stringify(outcomes));

    const others = LOCKS / 2;
    const isClean = async () => (await server.count("slock_locks")) === others && (await server.count("slock_waiters")) === 0;
    const isIdle = () => !process.getActiveResourcesInfo().includes("Timeout");
    const began = performance.now();
    await until(isClean, "nothing to be held or queued", server, 1);
    await sleep(Math.max(0, 1000 - (performance.now() - began)));
    await until(isIdle, "no timer to run", server, 0.2);
    await locks.close();
    await until(async () => (await server.call("CLIENT", "LIST", "TYPE", "PUBSUB")) === "", "nothing to listen", server);
    await until(async () => (await server.connections()).length === 0, "no connection to be left", server);
  });
}

test("more waits than 10,000 that are aborted at once leave nothing", {timeout: 120_000}, async (t) => {
  const server = await startServer(t);
  const locks = new Locks(BASES.ioredis(server.port), {hooks: {warning() {}}, retryForMs: 60_000});
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
