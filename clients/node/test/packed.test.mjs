// The packed library in programs: module systems, compilers, and what npm says beside each Redis client library.

import assert from "node:assert/strict";
import {cpSync, mkdirSync, mkdtempSync, readFileSync, readdirSync, rmSync, symlinkSync, writeFileSync} from "node:fs";
import {tmpdir} from "node:os";
import {join} from "node:path";
import {test} from "node:test";
import {fileURLToPath} from "node:url";
import {connected, run, startServer} from "./server.mjs";

const HERE = fileURLToPath(new URL("..", import.meta.url));

/** A folder that ends with the test. */
function folder(t) {
  const path = mkdtempSync(join(tmpdir(), "slock-node-"));
  t.after(() => rmSync(path, {recursive: true, force: true}));
  return path;
}

/** A program that has the library, as npm would unpack it, and the development packages. */
function program(t) {
  const path = folder(t);
  const library = join(path, "node_modules/slock-client");
  mkdirSync(library, {recursive: true});
  cpSync(join(HERE, "package.json"), join(library, "package.json"));
  cpSync(join(HERE, "dist"), join(library, "dist"), {recursive: true});
  for (const name of readdirSync(join(HERE, "node_modules")).filter((one) => !one.startsWith("."))) {
    symlinkSync(join(HERE, "node_modules", name), join(path, "node_modules", name));
  }
  return path;
}

async function compile(path, compiler, files, options) {
  const config = {
    compilerOptions: {noEmit: true, strict: true, target: "es2022", lib: ["es2023", "esnext.disposable"], types: ["node"], skipLibCheck: false, preserveSymlinks: true, ...options},
    files,
  };
  writeFileSync(join(path, "tsconfig.json"), JSON.stringify(config));
  await run([process.execPath, join(HERE, "node_modules", compiler, "bin/tsc"), "-p", path]);
}

/** The examples of a page that are TypeScript, each as a module of its own, with the names that it takes for granted. */
function examples(page, given) {
  const blocks = [...readFileSync(join(HERE, page), "utf8").matchAll(/^```ts\n(.*?)^```/gms)].map(([, code]) => code);
  const isKnown = (code, name) => new RegExp(`(const|let) ${name}\\b|(const|let) {[^}]*\\b${name}\\b[^}]*} =|import [^"]*\\b${name}\\b`).test(code);
  return blocks.map((code) => {
    const needed = Object.entries(given).filter(([name]) => new RegExp(`\\b${name}\\b`).test(code) && !isKnown(code, name));
    const imports = [...code.matchAll(/^import .*$/gm)].map(([line]) => line);
    const rest = code.replace(/^import .*$/gm, "");
    return [...imports, ...needed.map(([, line]) => line), "export async function example() {", rest, "}"].join("\n");
  });
}

const GIVEN = {
  createClient: 'import {createClient} from "redis";',
  createCluster: 'import {createCluster} from "redis";',
  createSentinel: 'import {createSentinel} from "redis";',
  Redis: 'import {Redis} from "ioredis";',
  Locks: 'import {Locks} from "slock-client";',
  Quorum: 'import {Quorum} from "slock-client";',
  LostError: 'import {LostError} from "slock-client";',
  NoAnswerError: 'import {NoAnswerError} from "slock-client";',
  TimedOutError: 'import {TimedOutError} from "slock-client";',
  client: "declare const client: import('redis').RedisClientType;",
  a: "declare const a: import('ioredis').Redis, b: typeof a, c: typeof a;",
  locks: "declare const locks: import('slock-client').Locks;",
  hold: "declare const hold: import('slock-client').Hold;",
  token: "declare const token: string;",
  writeReport: "declare function writeReport(signal: AbortSignal): Promise<string>;",
  lead: "declare function lead(signal: AbortSignal): Promise<void>;",
  report: "declare function report(locks: import('slock-client').Locks): Promise<string>;",
  db: "declare const db: {query(sql: string, values: unknown[]): Promise<{rowCount: number}>};",
  body: "declare const body: string;",
  assert: 'import assert from "node:assert/strict";',
  Redlock: 'import Redlock from "slock-client/redlock";',
  Redlock4: 'import Redlock4 from "slock-client/redlock4";',
};

for (const [compiler, name] of [["typescript-5.4", "TypeScript 5.4"], ["typescript", "the newest TypeScript"]]) {
  test(`${name}: programs compile, and so do the examples of the pages`, async (t) => {
    const path = program(t);
    const types = readFileSync(join(HERE, "test/types.ts"), "utf8");
    writeFileSync(join(path, "types.cts"), types);
    writeFileSync(join(path, "types.mts"), types.replace(/^import (\w+) = require\((.*)\);$/m, "import $1 from $2;"));
    const files = ["README.md", "REDLOCK.md"].flatMap((page) => examples(page, GIVEN).map((code, at) => {
      const file = `${page}.${at}.mts`;
      writeFileSync(join(path, file), code);
      return file;
    }));
    assert.ok(files.length > 8);
    await compile(path, compiler, ["types.cts", "types.mts", ...files], {module: "node16", esModuleInterop: true});
    await compile(path, compiler, ["types.mts", ...files], {module: "esnext", moduleResolution: "bundler"});
    // The newest compiler has no node10.
    if (compiler !== "typescript") await compile(path, compiler, ["types.cts"], {module: "commonjs", moduleResolution: "node10", esModuleInterop: true, skipLibCheck: true});
  });
}

test("the quick start prints what the page says", async (t) => {
  const {port} = await startServer(t);
  const path = program(t);
  const [, code, output] = /^```ts\n(.*?)^```.*?^prints `(.*?)`/ms.exec(readFileSync(join(HERE, "README.md"), "utf8"));
  writeFileSync(join(path, "start.mjs"), code.replace("createClient()", `createClient({socket: {port: ${port}}})`));
  assert.equal((await run([process.execPath, join(path, "start.mjs")])).output, `${output}\n`);
  writeFileSync(join(path, "drop-in.mjs"), `import Redlock, {Redlock as named} from "slock-client/redlock"; import Redlock4 from "slock-client/redlock4";
    console.log(Redlock.name, Redlock === named, new Redlock4([{listen() {}, topology: {}}]).retryCount);`);
  writeFileSync(join(path, "drop-in.cjs"), `const {default: Redlock} = require("slock-client/redlock"); const Redlock4 = require("slock-client/redlock4");
    console.log(Redlock.name, Redlock === require("slock-client/redlock").Redlock, new Redlock4([{listen() {}, topology: {}}]).retryCount);`);
  for (const file of ["drop-in.mjs", "drop-in.cjs"]) assert.equal((await run([process.execPath, join(path, file)])).output, "Redlock true 10\n");
});

test("the examples run", async (t) => {
  const {port} = await startServer(t);
  const client = await connected(t, "ioredis", port);
  for (const example of readdirSync(join(HERE, "examples"))) {
    await run([process.execPath, join(HERE, "examples", example), String(port)]);
    await client.flushall();
  }
});

test("npm says nothing beside the newest major of each library", {skip: !process.env.SLOCK_THOROUGH && "it fetches packages: set SLOCK_THOROUGH"}, async (t) => {
  const packed = folder(t);
  await run(["npm", "pack", "--silent", "--ignore-scripts", "--pack-destination", packed], {cwd: HERE});
  const [file] = readdirSync(packed);
  for (const base of ["redis@6", "ioredis@6", "redis@5", "ioredis@5", "iovalkey@latest"]) {
    const path = folder(t);
    writeFileSync(join(path, "package.json"), "{}");
    const {output} = await run(["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", base, join(packed, file)], {cwd: path});
    assert.match(output.trim(), /^added \d+ packages? in \S+$/, base);
  }
});
