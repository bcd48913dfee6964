// Connections that open late or never, or that are not needed any more: none is left.

import assert from "node:assert/strict";
import {test} from "node:test";
import {Locks, TimedOutError} from "slock-client";
import {BASES, startProxy, startServer, until} from "./server.mjs";

const quiet = {warning() {}};

for (const [name, client] of Object.entries(BASES)) {
  /** A server that asks for a password, so that a connection is not ready before it has an answer. */
  async function opened(t, options) {
    const server = await startServer(t);
    await server.call("CONFIG", "SET", "requirepass", "secret");
    const proxy = await startProxy(t, server.port);
    return {server, proxy, locks: new Locks(client(proxy.port, {password: "secret"}), {hooks: quiet, ...options})};
  }

  const nothingIsLeft = (proxy) => until(() => proxy.count() === 0, "all connections to be closed");

  test(`${name}: a wait that is over leaves no connection that opens late`, async (t) => {
    const {server, proxy, locks} = await opened(t, {waiting: "block"});
    const hold = await locks.write("a").acquire();
    proxy.holdBack();
    const waits = Array.from({length: 10}, () => locks.write("a", {waitMs: 50}).acquire());
    await Promise.all(waits.map((wait) => assert.rejects(wait, TimedOutError)));
    proxy.letThrough();
    await until(() => proxy.count() <= 2, "their connections to be closed", server); // one is shared, one is spare
    await hold.release();
    await locks.close();
    await nothingIsLeft(proxy);
  });

  test(`${name}: close leaves no connection that opens late`, async (t) => {
    const {proxy, locks} = await opened(t, {retryForMs: 200});
    proxy.holdBack();
    await assert.rejects(locks.write("a").acquire(), TimedOutError);
    assert.equal(proxy.count(), 1);
    await locks.close();
    proxy.letThrough();
    await nothingIsLeft(proxy);
  });

  test(`${name}: a request that close found being given up keeps no program running`, async (t) => {
    const {proxy, locks} = await opened(t, {});
    await (await locks.write("a").acquire()).release();
    proxy.holdBack();
    proxy.cut();
    const controller = new AbortController();
    const wait = locks.write("a").acquire({signal: controller.signal});
    await until(() => proxy.count() === 1, "it to connect again");
    controller.abort();
    await assert.rejects(wait, {name: "AbortError"});
    await locks.close();
    await until(() => !process.getActiveResourcesInfo().includes("Timeout"), "no timer to run");
    await nothingIsLeft(proxy);
  });

  test(`${name}: a server that has too many clients is asked again`, async (t) => {
    const server = await startServer(t);
    await server.call("CONFIG", "SET", "maxclients", 1);
    const locks = new Locks(client(server.port), {hooks: quiet, retryForMs: 10_000});
    const acquired = locks.write("a").acquire();
    await until(async () => /rejected_connections:[1-9]/.test(await server.call("INFO", "stats")), "a connection to be refused", server);
    await server.call("CONFIG", "SET", "maxclients", 100);
    await (await acquired).release();
    await locks.close();
  });

  test(`${name}: a connection that never opens is closed`, async (t) => {
    const {proxy, locks} = await opened(t, {retryForMs: 2_500}); // longer than a connection may take
    proxy.holdBack();
    await assert.rejects(locks.write("a").acquire(), TimedOutError);
    await locks.close();
    await nothingIsLeft(proxy);
  });

  test(`${name}: a connection that is lost soon after a wait began on it was open until then`, async (t) => {
    const {server, proxy, locks} = await opened(t, {waiting: "block", retryForMs: 200});
    await (await locks.write("b").acquire()).release(); // the permission has been asked for
    await server.call("SLOCK.LOCK", "a", "other", 60_000);
    const acquired = locks.write("a").acquire();
    const longestWait = async () => {
      const [queue = []] = await server.call("SLOCK.QUEUES");
      return queue[queue.indexOf("longest-wait-ms") + 1];
    };
    await until(async () => (await longestWait()) > 300, "it to wait for longer than retryForMs", server);
    proxy.cut();
    await server.call("SLOCK.UNLOCK", "a", "other");
    await (await acquired).release();
    await locks.close();
  });

  test(`${name}: a wait on a connection that ended while it was idle has no answer yet`, async (t) => {
    const {proxy, locks} = await opened(t, {waiting: "block", retryForMs: 500});
    await (await locks.write("a").acquire()).release();
    proxy.holdBack();
    proxy.cut();
    const began = performance.now();
    await assert.rejects(locks.write("a").acquire(), TimedOutError);
    assert.ok(performance.now() - began < 10_000, `${performance.now() - began}`);
    await locks.close();
  });

  test(`${name}: a server out of reach is told once, when it has been for a second`, async (t) => {
    const warnings = [];
    const server = await startServer(t);
    const proxy = await startProxy(t, server.port);
    const locks = new Locks(client(proxy.port), {hooks: {warning: (text) => warnings.push(text)}, retryForMs: 10_000});
    const hold = await locks.write("a", {renew: false, ttlMs: 60_000}).acquire();
    for (const outage of [1, 2]) {
      proxy.holdBack();
      proxy.cut();
      const extended = hold.extend(60_000);
      await until(() => warnings.length === outage, "it to be told", server);
      assert.match(warnings.at(-1), new RegExp(`^127.0.0.1:${proxy.port} is out of reach: |^localhost:${proxy.port} is out of reach: `));
      proxy.letThrough();
      await extended;
    }
    await hold.release();
    await locks.close();
    assert.equal(warnings.length, 2);
  });

  test(`${name}: a short wait ends in time beside a long one while the listening connection opens`, async (t) => {
    const {server, proxy, locks} = await opened(t, {});
    await server.call("SLOCK.LOCK", "a", "other", 60_000);
    assert.equal(await locks.write("a").tryAcquire(), undefined);
    proxy.holdBack();
    const long = locks.write("a").acquire();
    await until(() => proxy.count() === 2, "the listening connection to begin", server);
    const began = performance.now();
    await assert.rejects(locks.write("a", {waitMs: 50}).acquire(), TimedOutError);
    assert.ok(performance.now() - began < 1_500, `${performance.now() - began}`);
    proxy.letThrough();
    await server.call("SLOCK.UNLOCK", "a", "other");
    await (await long).release();
    await locks.close();
    await nothingIsLeft(proxy);
  });

  test(`${name}: close ends the connection that may not listen`, async (t) => {
    const server = await startServer(t);
    const proxy = await startProxy(t, server.port);
    await server.call("ACL", "SETUSER", "user", "on", ">secret", "~*", "+@all", "resetchannels");
    const locks = new Locks(client(proxy.port, {username: "user", password: "secret"}), {hooks: quiet});
    const hold = await locks.write("a").acquire();
    await assert.rejects(locks.write("a", {waitMs: 100}).acquire(), TimedOutError);
    await hold.release();
    await locks.close();
    await nothingIsLeft(proxy);
  });
}
