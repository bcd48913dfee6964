// Servers with the module for a test, clients of all kinds, and a proxy.

import {spawn} from "node:child_process";
import {once} from "node:events";
import {mkdtempSync, readFileSync, rmSync} from "node:fs";
import {createServer, connect} from "node:net";
import {tmpdir} from "node:os";
import {join} from "node:path";
import {setTimeout as sleep} from "node:timers/promises";
import {fileURLToPath} from "node:url";
import {Redis} from "ioredis";
import {Redis as Redis5} from "ioredis-5";
import {Redis as Valkey} from "iovalkey";
import {createClient, createClientPool} from "redis";
import {createClient as createClient5} from "redis-5";

const ROOT = fileURLToPath(new URL("../../..", import.meta.url));
export const MODULE = process.env.SLOCK_MODULE ?? join(ROOT, "target/release/libslock.so");

/** For each kind of client what connects one that ends with the test `t`. */
const KINDS = {
  "node-redis": ofNodeRedis(createClient),
  ioredis: ofIoredis(Redis),
  "node-redis 5": ofNodeRedis(createClient5),
  "a pool of node-redis": ofNodeRedis(createClientPool),
  "ioredis 5": ofIoredis(Redis5),
  iovalkey: ofIoredis(Valkey),
};
/** The newest of both libraries, and all. */
export const BASES = ["node-redis", "ioredis"];
export const ALL = Object.keys(KINDS);

function ofNodeRedis(create) {
  return async (t, port, options) => {
    const client = create({socket: {port}, ...options}).on("error", () => {});
    t.after(() => client.isOpen && client.destroy());
    return client.connect();
  };
}

function ofIoredis(Client) {
  return async (t, port, options) => {
    const client = new Client({port, ...options}).on("error", () => {});
    t.after(() => client.disconnect());
    if (client.status !== "ready") await once(client, "ready");
    return client;
  };
}

export const connected = (t, kind, port, options) => KINDS[kind](t, port, options);

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
  const child = spawn(process.env.SERVER ?? "redis-server", words.map(String), {stdio: "ignore"});
  const plain = new Redis({port, retryStrategy: () => 50}).on("error", () => {});
  const call = (...given) => plain.call(...given.map(String));
  const server = {
    port,
    call,
    log: () => readFileSync(join(directory, "log"), "utf8").slice(-3000),
    async count(field) { return Number(new RegExp(`^${field}:(\\d+)`, "m").exec(await call("INFO", "slock"))[1]); },
    /** The token that holds a key, or null. */
    async holder(key) {
      const info = await call("SLOCK.INFO", key, "FULL");
      const holders = info && info[info.indexOf("holders") + 1];
      return holders?.length ? holders[0][holders[0].indexOf("token") + 1] : null;
    },
    /** The clients that are connected, but for this one. */
    async clients() { return (await call("CLIENT", "LIST")).split("\n").filter((line) => line && !line.includes("cmd=client|list")); },
  };
  t.after(async () => {
    plain.disconnect();
    child.kill("SIGKILL");
    if (child.exitCode === null && child.signalCode === null) await once(child, "exit");
    rmSync(directory, {recursive: true, force: true});
  });
  await until(() => {
    if (child.exitCode !== null) throw new Error(server.log());
    return plain.ping().then(() => true, () => false);
  }, "the server to start", server);
  return server;
}

/** Forwards to a port. Each connection opens after a time. `cut` ends all of them; after `close`, until `open`, it refuses new ones. */
export async function startProxy(t, target, opensAfterMs = 0) {
  const sockets = new Set();
  const noted = (socket, other) => {
    sockets.add(socket);
    return socket.on("error", () => {}).on("close", () => {
      sockets.delete(socket);
      other()?.destroy();
    });
  };
  const proxy = createServer({pauseOnConnect: true}, async (from) => {
    let to;
    noted(from, () => to);
    if (opensAfterMs > 0) await sleep(opensAfterMs);
    if (from.destroyed) return;
    to = noted(connect(target, "127.0.0.1"), () => from);
    from.pipe(to).pipe(from);
  });
  const open = (port) => once(proxy.listen(port, "127.0.0.1"), "listening");
  await open(0);
  const {port} = proxy.address();
  const cut = () => sockets.forEach((socket) => socket.destroy());
  const close = () => {
    proxy.close();
    cut();
  };
  t.after(close);
  return {port, cut, close, open: () => open(port)};
}

/** Waits until the condition holds, for ten seconds at most. */
export async function until(condition, what, server, seconds = 10) {
  const end = performance.now() + seconds * 1000;
  while (!(await condition())) {
    if (performance.now() > end) throw new Error(`waited in vain for ${what}\n${server?.log() ?? ""}`);
    await sleep(5);
  }
}

/** Runs a program, and gives what it wrote and how long it took in ms. It must end by itself. */
export async function run(words, options = {}) {
  const began = performance.now();
  const child = spawn(words[0], words.slice(1), {timeout: 60_000, ...options, env: {...process.env, ...options.env}});
  let output = "";
  for (const stream of [child.stdout, child.stderr]) stream.on("data", (data) => (output += data));
  const [code] = await once(child, "close");
  if (code !== 0) throw new Error(`${words.join(" ")} ended with ${code}:\n${output}`);
  return {output, ms: performance.now() - began};
}
