// SPDX-License-Identifier: MIT OR Apache-2.0

// A server in memory for the tests of programs that use locks. It answers as a server with the module does, so what is tested
// is the library that the program uses.

import {ReplyError, type Call, type Reply, type Topology, type Transport} from "./transport.js";

interface Holder {
  readonly token: string;
  meta: string;
  fence: number;
  since: number;
  deadline: number;
}

interface Lock {
  mode: "read" | "write";
  /** In the order of their holds. */
  readonly holders: Map<string, Holder>;
}

/** What a command asks for. */
interface Wanted {
  readonly keys: readonly string[];
  readonly token: string;
  readonly mode: "read" | "write" | "upgrade";
  readonly ttl: number;
  readonly has: ReadonlyMap<string, readonly string[]>;
}

interface Waiter {
  wanted: Wanted;
  since: number;
  until: number;
}

/** How many arguments an option has. */
const OPTIONS: Record<string, number> = {META: 1, LIMIT: 1, WAIT: 1, NOTIFY: 2, XX: 0, GT: 0, FENCE: 1, REFUSE: 1, FULL: 0, COUNT: 1};

/** The longest ttl, as by default. */
const MOST_TTL_MS = 86_400_000;

const error = (text: string): never => { throw new ReplyError(text); };

/**
 * A `Transport` that needs no server: `new Locks(new MemoryServer())`. Several `Locks` may share one.
 *
 *     const release = server.hold("report"); // somebody else has it
 *     server.lose("report");                 // the hold of the program is gone
 *     server.fail(new Error("…"));           // nobody replies
 */
export class MemoryServer implements Transport {
  readonly topology: Topology = {name: "memory", hasFailover: true}; // so that losses are noticed at once
  readonly #locks = new Map<string, Lock>();
  /** In the order of arrival; an upgrade comes before the others. */
  #queue: Waiter[] = [];
  /** By key and token: the tokens that are refused, until when, and whether their end released something. */
  readonly #ended = new Map<string, {until: number; released: boolean}>();
  readonly #channels = new Map<string, {heard: (payload: string) => void; changed: () => void}>();
  #fence = 0;
  #failure: Error | undefined;
  #timer: NodeJS.Timeout | undefined;

  /** Has somebody else hold the lock for writing until the function is called. */
  hold(key: string): () => void {
    this.#locks.delete(key);
    this.#grant({keys: [key], token: "somebody else", mode: "write", ttl: 3_600_000, has: new Map()});
    return () => this.lose(key);
  }

  /** Ends all holds of the key, as if it had been deleted. Their owners are told at once. */
  lose(key: string): void {
    this.#locks.delete(key);
    this.#serve();
    for (const {changed} of this.#channels.values()) changed();
  }

  /** Has all calls fail from now on, as if no connection could be made. After undefined they succeed again. */
  fail(failure: Error | undefined): void { this.#failure = failure; }

  /** The owner tokens that hold the lock. */
  holders(key: string): string[] {
    this.#expire();
    return [...(this.#locks.get(key)?.holders.keys() ?? [])];
  }

  async call({command, then}: Call): Promise<Reply> {
    if (this.#failure) throw this.#failure;
    return {value: this.#run(command), then: then && this.#run(then)};
  }

  listen(channel: string, heard: (payload: string) => void, changed: () => void): () => void {
    this.#channels.set(channel, {heard, changed});
    queueMicrotask(changed);
    return () => void this.#channels.delete(channel);
  }

  close(): void {} // other Locks may use the server

  #run([name = "", ...words]: readonly string[]): unknown {
    this.#expire();
    try {
      return this.#execute(name.toUpperCase().replace("SLOCK.", ""), words);
    } catch (problem) {
      if (problem instanceof ReplyError) return problem;
      throw problem;
    } finally {
      this.#serve();
    }
  }

  #execute(name: string, words: readonly string[]): unknown {
    const [key = ""] = words;
    if (name === "WAIT") return 0; // there are no replicas
    if (name === "DEL") return words.filter((one) => this.#locks.delete(one)).length;
    if (name === "QUEUES") return this.#queues();
    if (name === "INFO") return this.#info(key);
    const wanted = parse(name, words);
    switch (name) {
      case "LOCK": case "RLOCK": case "MLOCK": case "MRLOCK": case "UPGRADE": return this.#acquire(wanted);
      case "UNLOCK": case "RUNLOCK": case "MUNLOCK": return this.#end(wanted, {UNLOCK: "write", RUNLOCK: "read"}[name as string]);
      case "EXTEND": case "MEXTEND": return this.#extend(wanted);
      case "CANCEL": return this.#withdraw(wanted);
      case "DOWNGRADE": return this.#downgrade(wanted);
      default: return error(`ERR unknown command '${name}'`);
    }
  }

  #acquire(wanted: Wanted): unknown {
    const {keys, token, mode, has} = wanted;
    let held = 0;
    for (const key of keys) {
      const lock = this.#locks.get(key);
      const holder = lock?.holders.get(token);
      if (mode === "upgrade" && (!holder || (lock!.mode === "read" && has.has("FENCE") && holder.fence !== fenceOf(wanted)))) {
        error("NOTHELD the token does not hold the lock");
      }
      if (holder && mode !== "upgrade" && lock!.mode !== mode && !has.has("XX")) {
        error(`WRONGMODE the token holds the lock for ${lock!.mode}: UPGRADE and DOWNGRADE change the mode`);
      }
      if (holder && lock!.mode === (mode === "upgrade" ? "write" : mode)) held += 1;
      else if ((this.#ended.get(`${key}\0${token}`)?.until ?? 0) > Date.now()) error("REFUSED the acquisition of this token was ended");
    }
    if (held === keys.length || (!has.has("XX") && !this.#isBlocked(wanted))) return this.#grant(wanted);
    const wait = has.get("WAIT");
    if (has.has("XX") || !wait) return 0;
    if (!this.#channels.has(has.get("NOTIFY")?.[0] ?? "")) error("NOSUBSCRIBER nobody subscribes to the channel");
    const until = Date.now() + (Number(wait[0]) || Infinity);
    const other = this.#queue.find((one) => one.wanted.token === token && one.wanted.mode === mode && String(one.wanted.keys) === String(keys));
    if (other) {
      Object.assign(other, {wanted, until});
      return null;
    }
    const waiter = {wanted, since: Date.now(), until};
    if (mode !== "upgrade") this.#queue.push(waiter);
    else if (this.#queue.some((one) => one.wanted.mode === "upgrade" && one.wanted.keys[0] === keys[0])) {
      error("DEADLOCK another reader of the lock waits to upgrade it");
    } else this.#queue.unshift(waiter);
    if (this.#waitsFor(waiter, token, new Set())) {
      this.#queue = this.#queue.filter((one) => one !== waiter);
      error(`DEADLOCK ${token} and the owner of ${keys[0]} (${this.holders(keys[0]!).join(", ")}) wait for each other`);
    }
    return null;
  }

  /** Whether the holders of the lock let a request in. */
  #admits(key: string, {token, mode, has}: Wanted): boolean {
    const lock = this.#locks.get(key);
    if (!lock) return mode !== "upgrade";
    if (lock.holders.has(token)) return mode !== "upgrade" || lock.holders.size === 1;
    return mode === "read" && lock.mode === "read" && lock.holders.size < Number(has.get("LIMIT")?.[0] ?? Infinity);
  }

  /** Whether a request that does not wait yet has to. */
  #isBlocked(wanted: Wanted): boolean {
    return wanted.keys.some((key) => {
      const isHeld = this.#locks.get(key)?.holders.has(wanted.token);
      return !this.#admits(key, wanted) || (!isHeld && this.#queue.some((one) => one.wanted.keys.includes(key)));
    });
  }

  /** Whether a waiter waits for the token, by way of others who wait. */
  #waitsFor({wanted}: Waiter, token: string, seen: Set<Waiter>): boolean {
    return wanted.keys.some((key) => !this.#admits(key, wanted) && this.holders(key).some((holder) => {
      if (holder === wanted.token) return false;
      return holder === token || this.#queue.some((one) => one.wanted.token === holder && !seen.has(one) && this.#waitsFor(one, token, seen.add(one)));
    }));
  }

  /** Gives the hold on all keys, or refreshes it, and returns its fence. */
  #grant({keys, token, mode, ttl, has}: Wanted): number {
    const [first, ...others] = keys.map((key) => this.#locks.get(key)?.holders.get(token)?.fence);
    const isNew = !first || others.some((fence) => fence !== first) || (mode === "upgrade" && this.#locks.get(keys[0]!)!.mode === "read");
    const fence = isNew ? this.#nextFence() : first;
    const now = Date.now();
    for (const key of keys) {
      const lock = this.#locks.get(key) ?? {mode: "read", holders: new Map()};
      this.#locks.set(key, lock);
      lock.mode = mode === "read" ? "read" : "write";
      const holder = lock.holders.get(token) ?? {token, meta: "", fence, since: now, deadline: 0};
      lock.holders.set(token, holder);
      if (holder.fence !== fence) Object.assign(holder, {fence, since: now});
      holder.deadline = Math.max(holder.deadline, now + ttl);
      holder.meta = has.get("META")?.[0] ?? holder.meta;
    }
    return fence;
  }

  #downgrade(wanted: Wanted): number {
    const [key] = wanted.keys as [string];
    const lock = this.#locks.get(key);
    const holder = lock?.holders.get(wanted.token);
    if (!lock || !holder) return error("NOTHELD the token does not hold the lock");
    if (lock.mode === "write") Object.assign(holder, {fence: this.#nextFence(), since: Date.now()});
    lock.mode = "read";
    holder.deadline = Math.max(holder.deadline, Date.now() + wanted.ttl);
    return holder.fence;
  }

  /** Greater than all before, and than the time in microseconds. */
  #nextFence(): number { return (this.#fence = Math.max(this.#fence + 1, Date.now() * 1_000)); }

  /** The hold that a command means. */
  #holder(key: string, wanted: Wanted): Holder | undefined {
    const holder = this.#locks.get(key)?.holders.get(wanted.token);
    return wanted.has.has("FENCE") && holder?.fence !== fenceOf(wanted) ? undefined : holder;
  }

  /** Ends the waits of a token for the keys. */
  #withdraw({keys, token}: Wanted): number {
    return this.#leave(({wanted}) => wanted.token === token && wanted.keys.some((key) => keys.includes(key)));
  }

  /** Ends some waits, and tells how many. */
  #leave(isMeant: (waiter: Waiter) => boolean): number {
    const meant = this.#queue.filter(isMeant);
    this.#queue = this.#queue.filter((one) => !isMeant(one));
    for (const {wanted} of meant) this.#tell(wanted, 0);
    return meant.length;
  }

  /** Releases the token's holds of the keys, in a mode or in any, and tells how many. */
  #end(wanted: Wanted, mode: string | undefined): number {
    const refuse = Number(wanted.has.get("REFUSE")?.[0] ?? 0);
    if (refuse) this.#withdraw(wanted);
    return wanted.keys.filter((key) => {
      const isMeant = this.#holder(key, wanted) && (!mode || this.#locks.get(key)!.mode === mode);
      if (isMeant) this.#remove(key, wanted.token);
      if (!refuse) return isMeant;
      const id = `${key}\0${wanted.token}`;
      const released = Boolean(isMeant) || Boolean(this.#ended.get(id)?.released);
      this.#ended.set(id, {until: Date.now() + refuse, released});
      return released;
    }).length;
  }

  /** Moves the deadlines of one hold on all keys, or of none. */
  #extend(wanted: Wanted): number {
    const holders = wanted.keys.map((key) => this.#holder(key, wanted));
    if (holders.includes(undefined)) return 0;
    for (const holder of holders) holder!.deadline = Math.max(Date.now() + wanted.ttl, wanted.has.has("GT") ? holder!.deadline : 0);
    return 1;
  }

  #remove(key: string, token: string): void {
    const holders = this.#locks.get(key)?.holders;
    if (holders?.delete(token) && holders.size === 0) this.#locks.delete(key);
  }

  /** Grants what the queue lets in, in its order, and looks again when time alone lets somebody in. */
  #serve(): void {
    const blocked = new Set<string>();
    this.#queue = this.#queue.filter(({wanted}) => {
      const isFree = wanted.keys.every((key) => !blocked.has(key) && this.#admits(key, wanted));
      if (isFree) this.#tell(wanted, this.#grant(wanted));
      else wanted.keys.forEach((key) => blocked.add(key));
      return !isFree;
    });
    clearTimeout(this.#timer);
    const times = this.#queue.flatMap(({wanted, until}) => [until, ...wanted.keys.flatMap((key) =>
      [...(this.#locks.get(key)?.holders.values() ?? [])].map(({deadline}) => deadline))]);
    if (times.length === 0) return;
    this.#timer = setTimeout(() => this.#run(["WAIT"]), Math.max(0, Math.min(...times) - Date.now())).unref();
  }

  /** Sends the message that ends a wait. */
  #tell({has}: Wanted, what: number): void {
    const [channel, tag] = has.get("NOTIFY")!;
    queueMicrotask(() => this.#channels.get(channel!)?.heard(`${what} ${tag}`));
  }

  #expire(): void {
    const now = Date.now();
    for (const [key, {holders}] of this.#locks) {
      for (const {token, deadline} of holders.values()) if (now >= deadline) this.#remove(key, token);
    }
    for (const [id, {until}] of this.#ended) if (now > until) this.#ended.delete(id);
    this.#leave(({until}) => now >= until);
  }

  #info(key: string): unknown {
    const lock = this.#locks.get(key);
    const now = Date.now();
    const holders = [...(lock?.holders.values() ?? [])].map(({token, fence, deadline, since, meta}) =>
      ["token", token, "fence", fence, "pttl", deadline - now, "held-ms", now - since, "meta", meta]);
    const queue = this.#queue.filter(({wanted}) => wanted.keys.includes(key)).map(({wanted: {token, mode, has}, since, until}) => [
      "token", token, "mode", mode, "waiting-ms", now - since, "timeout-ms", until - since, "meta", has.get("META")?.[0] ?? "",
      "channel", has.get("NOTIFY")?.[0] ?? "",
    ]);
    if (holders.length + queue.length === 0) return null;
    const most = (at: number): number => Math.max(0, ...holders.map((one) => one[at] as number));
    return [
      "mode", lock?.mode ?? "free", "readers", lock?.mode === "read" ? holders.length : 0, "waiters", queue.length, "fence", most(3),
      "pttl", most(5), "holders", holders, "queue", queue,
    ];
  }

  #queues(): unknown {
    const keys = new Set(this.#queue.flatMap(({wanted}) => wanted.keys));
    return ["0", [...keys].map((key) => {
      const waiters = this.#queue.filter(({wanted}) => wanted.keys.includes(key));
      const longest = Date.now() - Math.min(...waiters.map(({since}) => since));
      return ["key", key, "waiters", waiters.length, "longest-wait-ms", longest];
    })];
  }
}

const fenceOf = ({has}: Wanted): number => Number(has.get("FENCE")?.[0]);

/** Reads the arguments of a command. */
function parse(name: string, words: readonly string[]): Wanted {
  const rest = [...words];
  const keys = rest.splice(0, name.startsWith("M") ? Number(rest.shift()) : 1);
  const token = rest.shift() ?? error("ERR wrong number of arguments");
  const hasTtl = !name.endsWith("UNLOCK") && name !== "CANCEL";
  const ttl = hasTtl ? Number(rest.shift()) : 0;
  if (hasTtl && !(ttl > 0 && ttl <= MOST_TTL_MS)) error(`ERR ttl must be an integer from 1 to ${MOST_TTL_MS} milliseconds (slock.max-ttl-ms)`);
  const has = new Map<string, readonly string[]>();
  while (rest.length > 0) {
    const option = rest.shift()!.toUpperCase();
    has.set(option, rest.splice(0, OPTIONS[option] ?? error(`ERR unknown option '${option}'`)));
  }
  return {keys, token, mode: name === "UPGRADE" ? "upgrade" : name.includes("RLOCK") ? "read" : "write", ttl, has};
}
