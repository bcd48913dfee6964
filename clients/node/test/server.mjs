// A server with the module for a test, and a proxy that cuts connections, or keeps them waiting.

import {spawn} from "node:child_process";
import {once} from "node:events";
import {mkdtempSync, readFileSync, rmSync} from "node:fs";
import {connect, createServer} from "node:net";
import {tmpdir} from "node:os";
import {join} from "node:path";
import {PassThrough} from "node:stream";
import {fileURLToPath} from "node:url";
import {setTimeout as sleep} from "node:timers/promises";
import {Redis} from "ioredis";
import {createClient} from "redis";

const MODULE = process.env.SLOCK_MODULE ?? fileURLToPath(new URL("../../../target/release/libslock.so", import.meta.url));

export const BASES = {
  "node-redis": (port, user) => createClient({socket: {port}, ...user}).on("error", () => {}),
  ioredis: (port, user) => new Redis({port, lazyConnect: true, ...user}).on("error", () => {}),
};

async function freePort() {
  const server = createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const {port} = server.address();
  server.close();
  await once(server, "close");
  return port;
}

/** A server that ends with the test `t`. `call` sends it a plain command. */
export async function startServer(t) {
  const directory = mkdtempSync(join(tmpdir(), "slock-node-"));
  const port = await freePort();
  const words = ["--port", port, "--bind", "127.0.0.1", "--dir", directory, "--save", "", "--logfile", "log", "--loadmodule", MODULE];
  const process_ = spawn(process.env.SERVER ?? "redis-server", words.map(String), {stdio: "ignore"});
  const plain = new Redis({port, retryStrategy: () => 50}).on("error", () => {});
  const server = {
    port,
    call: (...given) => plain.call(...given.map(String)),
    log: () => readFileSync(join(directory, "log"), "utf8").slice(-3000),
    async count(field) {
      const info = await plain.call("INFO", "slock");
      return Number(new RegExp(`^${field}:(\\d+)`, "m").exec(info)[1]);
    },
    async connections() {
      return (await plain.call("CLIENT", "LIST")).split("\n").filter((line) => line && !line.includes("cmd=client|list"));
    },
  };
  t.after(async () => {
    plain.disconnect();
    process_.kill("SIGKILL");
    if (process_.exitCode === null && process_.signalCode === null) await once(process_, "exit");
    rmSync(directory, {recursive: true, force: true});
  });
  await until(() => plain.ping().then(() => true, () => false), "the server to start", server);
  return server;
}

/**
 * Forwards to a port. `cut` ends all connections. Those made after `holdBack` get no answer before `letThrough`. `count()`
 * tells how many clients are connected.
 */
export async function startProxy(t, target) {
  const sockets = new Set();
  const clients = new Set();
  let open = Promise.resolve();
  let letThrough = () => {};
  const noted = (socket, ended) => {
    sockets.add(socket);
    socket.on("error", () => {}).on("close", () => {
      sockets.delete(socket);
      ended();
    });
  };
  const proxy = createServer(async (from) => {
    let to;
    clients.add(from);
    noted(from, () => {
      clients.delete(from);
      to?.destroy();
    });
    const said = from.pipe(new PassThrough());
    await open;
    if (from.destroyed) return;
    to = connect(target, "127.0.0.1");
    noted(to, () => from.destroy());
    said.pipe(to).pipe(from);
  });
  proxy.listen(0, "127.0.0.1");
  await once(proxy, "listening");
  const cut = () => sockets.forEach((socket) => socket.destroy());
  t.after(() => {
    proxy.close();
    cut();
  });
  return {
    port: proxy.address().port,
    cut,
    count: () => clients.size,
    holdBack: () => { open = new Promise((resolve) => (letThrough = resolve)); },
    letThrough: () => letThrough(),
  };
}

/** Waits until the condition holds, for ten seconds at most. */
export async function until(condition, what, server, seconds = 10) {
  const end = performance.now() + seconds * 1000;
  while (!(await condition())) {
    if (performance.now() > end) throw new Error(`waited in vain for ${what}\n${server?.log() ?? ""}`);
    await sleep(5);
  }
}
