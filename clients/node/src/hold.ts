// SPDX-License-Identifier: MIT OR Apache-2.0

// A lock that was granted: what is known of it, its renewal, the change of its mode, its release, and its end for the program.
// While a change of mode is open the hold is renewed without naming its fence: the server may have given it another one.

import {Acquisition, type Outcome} from "./acquisition.js";
import {monotonic, now} from "./clock.js";
import {
  ClosedError, LostError, NoAnswerError, NotHeldError, TimedOutError, invalid, isWrongType, textOf, type Reason, type SlockError,
} from "./errors.js";
import type {Reporter} from "./hooks.js";
import {check, given, requestSettings, type Mode, type Settings} from "./options.js";
import {REFUSE_MS, explain, type Owner} from "./protocol.js";
import {LATE_REPLY_MS, Server, moreTelling, noAnswer, repeat, type Answer} from "./server.js";
import {Stop} from "./stop.js";
import type {Call} from "./transport.js";

/** A lock that was granted. It is renewed until it is released, detached or lost. */
export interface Hold extends AsyncDisposable {
  /** The owner token. Another process may adopt or release the lock by it. */
  readonly token: string;
  readonly keys: readonly string[];
  readonly mode: Mode;
  readonly metadata: string;
  /**
   * The fencing token. Each new hold has a greater one than all before on its server: send it with all that is written, and
   * refuse lesser ones where it is stored. It is 0 for a hold of a quorum.
   */
  readonly fence: number;
  /**
   * The fencing tokens of the nodes of a quorum, in the order of the clients, and 0 for a node that gave none. Those of
   * different servers cannot be compared. Without a quorum it is the one `fence`.
   */
  readonly fences: readonly number[];
  /** For how many ms the hold is certainly there if nobody deletes its keys. A renewal makes it longer. */
  readonly remainingMs: number;
  readonly lost: boolean;
  /** Why it was lost. */
  readonly reason: Reason | undefined;
  /** Is aborted when the hold is lost, with a `LostError` as its reason. Pass it to all that is done under the lock. */
  readonly signal: AbortSignal;
  /** Throws `LostError` if the hold was lost, and `NotHeldError` if it was released or detached. It sends nothing. */
  check(): void;
  /** Lets the hold last for at least so long from now on. It never shortens: for that, release. */
  extend(ttlMs: number): Promise<void>;
  /**
   * Releases the lock. Rejects with `LostError` if the hold was lost, and with `NotHeldError` if it was released or detached
   * before. Without a reply for `retryForMs` it rejects with `NoAnswerError` and goes on in the background. In any case
   * nothing renews the hold any more.
   */
  release(): Promise<void>;
  /** Ends the hold here without releasing it, for another process that adopts it by its token. It sends nothing. */
  detach(): void;
  /**
   * Makes a reader the writer, in one step, with a new fence. It waits until the other readers are gone. Rejects with
   * `DeadlockError` if another reader of the key waits for its own upgrade already. It works for one key on one server. If
   * it ends without a reply, the hold is still valid, and `mode` tells a little later which one it has.
   */
  upgrade(options?: {readonly waitMs?: number | undefined; readonly signal?: AbortSignal | undefined}): Promise<void>;
  /**
   * Makes the writer a reader, in one step, with a new fence and no writer in between. It works for one key on one server.
   * Without a reply it goes on in the background; the hold counts as a reader's from the first attempt on.
   */
  downgrade(): Promise<void>;
}

/** Where a hold is kept: one server, or the nodes of a quorum. @internal */
export interface Keeper {
  /** Sends one extension. The number of the answer is 0 if the hold is gone. */
  extend(owner: Owner, ttlMs: number, fence: number, wanted: Settings, until: number): Promise<Answer>;
  /** Releases, or has the hold end after a time, and tells whether it was there. */
  end(owner: Owner, fence: number, afterMs: number): Promise<boolean>;
  /** Releases in the background. */
  endLater(owner: Owner, fence: number): void;
  readonly fences?: readonly number[];
}

/** What is left of a hold when the program has dropped its object. */
interface Remains {
  readonly keeper: Keeper;
  readonly owner: Owner;
  readonly isRenewed: boolean;
  fence: number;
}

/** What the requests and the holds of one Locks share: its settings, what is under way, and the holds that there are. @internal */
export class LocksState {
  /** Calls that are under way. */
  readonly running = new Set<Stop>();
  isClosed = false;
  readonly #holds = new Map<Remains, WeakRef<HeldLock>>();
  readonly #registry = new FinalizationRegistry<Remains>((remains) => {
    if (!this.ended(remains) || !remains.isRenewed) return;
    const {keeper, owner, fence} = remains;
    this.reporter.warn(`a hold was never released, and the program has no reference to it: it is released (lock ${owner.names.join(", ")})`);
    keeper.endLater(owner, fence);
  });

  /** `counted` is the part of a ttl that counts for the validity. */
  constructor(readonly settings: Settings, readonly reporter: Reporter, readonly counted: (ttlMs: number) => number) {}

  get holds(): HeldLock[] { return [...this.#holds.values()].map((one) => one.deref()).filter((hold) => hold !== undefined); }

  /** A new hold. It is not kept from being collected: one to which the program has no reference is not renewed. */
  began(hold: HeldLock): void {
    const {remains} = hold;
    this.#holds.set(remains, hold.self);
    this.#registry.register(hold, remains, remains);
  }

  /** A hold has ended. False: it had before. */
  ended(remains: Remains): boolean {
    this.#registry.unregister(remains);
    return this.#holds.delete(remains);
  }
}

/** How long a timer runs at most, in ms: timers stop while the machine sleeps, and the hold may be over when it wakes. */
const LONGEST_TIMER_MS = 1_000;
/** After which time a hold without `maxHoldMs` is worth a warning. */
const LONG_HOLD_MS = 3_600_000;

/** @internal */
export class HeldLock implements Hold {
  reason: Reason | undefined;
  ttlMs: number;
  /** The server may have changed the mode and the fence: renewals name no fence. */
  #isOpen = false;
  /** The change of mode that is under way, and the end of the last one, if it was given up. */
  #change: Stop | undefined;
  #settled: Promise<unknown> = Promise.resolve();
  readonly remains: Remains;
  readonly self = new WeakRef(this);
  #state: "live" | "over" | "lost" = "live";
  readonly #granted = now();
  /** Until when it is valid, and when its next renewal is due. */
  #until = 0;
  #renewAt = 0;
  /** What the last renewal said, unless one has succeeded since. */
  #failed: unknown;
  /** When its age is worth a warning. */
  #warnAt: number;
  #timer: NodeJS.Timeout | undefined;
  #controller: AbortController | undefined;
  /** The command under way that prolongs the hold: there is one at a time. */
  #turn: Promise<unknown> | undefined;

  constructor(
    readonly locks: LocksState, readonly keeper: Keeper, readonly owner: Owner, readonly wanted: Settings, public mode: Mode,
    grant: Answer,
  ) {
    this.ttlMs = wanted.ttlMs;
    this.remains = {keeper, owner, fence: grant.number, isRenewed: wanted.renew};
    this.#warnAt = wanted.maxHoldMs < Infinity ? Infinity : this.#granted + LONG_HOLD_MS;
    this.#grant(mode, grant);
    this.#setTimer(now());
    locks.began(this);
  }

  get token(): string { return this.owner.token; }
  get keys(): readonly string[] { return this.owner.names; }
  get metadata(): string { return this.wanted.metadata; }
  get label(): string { return this.wanted.label ?? this.keys[0]!; }
  get fence(): number { return this.remains.fence; }
  get fences(): readonly number[] { return this.keeper.fences ?? [this.fence]; }
  get remainingMs(): number { return this.isLive ? Math.max(0, Math.min(this.#until, this.#granted + this.wanted.maxHoldMs) - now()) : 0; }
  get lost(): boolean {
    this.update();
    return this.reason !== undefined;
  }

  get isLive(): boolean { return this.#state === "live"; }
  /** Whether the program released or detached it. */
  get wasLeft(): boolean { return this.#state === "over"; }
  get isRenewed(): boolean { return this.wanted.renew && !this.locks.isClosed; }
  /** The fence that renewals name. */
  get named(): number { return this.#isOpen ? 0 : this.fence; }

  get signal(): AbortSignal {
    this.#controller ??= new AbortController();
    if (this.lost) this.#controller.abort(this.#problem());
    return this.#controller.signal;
  }

  check(): void {
    this.update();
    if (!this.isLive) throw this.#problem();
  }

  async extend(ttlMs: number): Promise<void> {
    check(this.keys, "read", {...this.wanted, ttlMs}, this.locks.counted);
    if (this.locks.isClosed) throw new ClosedError();
    await this.#inTurn(() => repeat(this.keys, this.locks.settings.retryForMs, (until) => this.#extend(until, ttlMs)));
  }

  /** Extends a hold that is renewed, because the primary may be another one, which has not all holds. */
  confirm(): void { if (this.isRenewed) this.extend(this.wanted.ttlMs).catch(() => {}); }

  detach(): void { this.#finish(); }

  async release(): Promise<void> {
    this.#finish();
    const {reporter} = this.locks;
    try {
      const wasHeld = await this.keeper.end(this.owner, this.named, this.wanted.atLeastMs - (now() - this.#granted));
      if (wasHeld) return;
    } catch (error) {
      reporter.warn(`a release failed; the lock ends by its ttl (lock ${this.keys.join(", ")}): ${textOf(error)}`);
      reporter.tell("releaseFailed", this.label, error);
      throw error;
    }
    this.#lose("gone");
    throw this.#tellLoss();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    // A release that fails is no error of finished work.
    if (!this.wasLeft) await this.release().catch((error: unknown) => { if (error instanceof LostError) throw error; });
  }

  async upgrade(options: Parameters<Hold["upgrade"]>[0] = {}): Promise<void> {
    const {waitMs = Infinity, signal} = given(options, {waitMs: true, signal: true});
    const wanted = requestSettings({...this.wanted, limit: undefined, atLeastMs: 0}, {ttlMs: this.ttlMs, waitMs});
    check(this.keys, "write", wanted, this.locks.counted);
    await this.#changeTo("write", signal, (server, call, stop) => new Acquisition(server, this.owner, call, wanted, stop).run());
  }

  async downgrade(): Promise<void> {
    await this.#changeTo("read", undefined, (server, call) => {
      this.mode = "read";
      return server.ask(this.keys, call).then((answer) => ({answer, isOpen: false}), (error: unknown) => ({error, isOpen: error instanceof NoAnswerError}));
    });
  }

  /** Runs a change, unless another one is open. What is still open after an error is settled in the background. */
  async #changeTo(to: Mode, signal: AbortSignal | undefined, run: (server: Server, call: Call, stop: Stop) => Promise<Outcome>): Promise<void> {
    const {keeper} = this;
    if (!(keeper instanceof Server) || this.keys.length > 1) throw invalid("the mode changes for one key on one server");
    if (this.#change) throw invalid("another change of the mode is open");
    const stop = this.#change = new Stop(this.locks.running, signal);
    try {
      const {retryForMs} = this.locks.settings;
      if (!(await within(this.#settled, retryForMs))) throw noAnswer(this.keys, retryForMs, undefined);
      this.check();
      const {ttlMs, fence} = this;
      const wasOpen = this.#isOpen;
      this.#isOpen = true;
      const call = this.owner.change(to, ttlMs, fence);
      const {answer, error, isOpen} = await run(keeper, call, stop);
      this.update(() => {
        if (answer) this.#grant(to, answer);
        else if (!isOpen) this.#isOpen = wasOpen;
        if (error instanceof NotHeldError || isWrongType(error)) this.#lose("gone");
      });
      this.check();
      if (!answer && isOpen) this.#settled = this.#settle(keeper, to, call).catch(() => {});
      if (error instanceof TimedOutError) await within(this.#settled, LATE_REPLY_MS); // the server replies
      if (!answer) throw error;
    } finally {
      stop.done();
      this.#change = undefined;
    }
  }

  /** Learns which mode a hold has whose change was given up. */
  async #settle(server: Server, to: Mode, call: Call): Promise<void> {
    const ask = (one: Call): Promise<Answer> => repeat(this.keys, REFUSE_MS, (until) => {
      this.check();
      return server.number({...one, reserved: true}, until);
    });
    if (to === "write" && (await ask(this.owner.withdraw())).number > 0) return;
    const grant = await ask(to === "write" ? this.owner.adopt("write", {ttlMs: this.ttlMs, metadata: this.metadata}) : call);
    if (grant.number > 0) this.update(() => this.#grant(to, grant));
  }

  /** Notes that the server gave the hold in a mode. */
  #grant(mode: Mode, {number, sent}: Answer): void {
    this.mode = mode;
    this.remains.fence = number;
    this.#isOpen = false;
    this.#lengthen(sent, this.ttlMs);
  }

  /** Changes a live hold, and does what follows if that or its time ends it. */
  update(change?: () => void): void {
    if (!this.isLive) return;
    const at = now();
    if (at >= this.#granted + this.wanted.maxHoldMs) this.#lose("max hold");
    else if (at >= this.#until) this.#lose(this.locks.isClosed ? "closed" : "expired");
    else change?.();
    if (this.isLive) {
      this.#setTimer(at);
      return;
    }
    clearTimeout(this.#timer);
    this.#change?.close();
    this.locks.ended(this.remains);
    if (this.reason) {
      this.keeper.endLater(this.owner, this.fence); // by the fence, because another hold of a token of the program's stays
      this.#tellLoss();
    }
    this.locks.reporter.tell("held", this.label, at - this.#granted);
  }

  #lose(reason: Reason): void {
    this.#state = "lost";
    this.reason = reason;
  }

  /** The error of a hold that has ended. */
  #problem(): SlockError {
    if (!this.reason) return new NotHeldError(`the owner token does not hold the lock for ${this.mode}`, this.keys);
    return this.#loss();
  }

  #loss(): LostError { return new LostError(this.keys, this.reason!, this.reason === "expired" ? explain(this.#failed, this.keys) : undefined); }

  #tellLoss(): LostError {
    const loss = this.#loss();
    this.#controller?.abort(loss);
    this.locks.reporter.warn(`a lock was lost: ${loss.message}${this.label === this.keys[0] ? "" : ` (label ${this.label})`}`);
    this.locks.reporter.tell("lost", this.label, loss);
    return loss;
  }

  /** Ends a live hold here, before anything is sent. */
  #finish(): void {
    if (!this.isLive) throw this.#problem();
    this.update(() => (this.#state = "over"));
    if (this.reason) throw this.#problem();
  }

  /** Notes that the server lets the hold live for a ttl, or longer, from a moment on. */
  #lengthen(from: number, ttlMs: number): void {
    this.ttlMs = Math.max(this.ttlMs, ttlMs);
    this.#until = Math.max(this.#until, from + this.locks.counted(ttlMs));
    this.#renewAt = from + this.ttlMs / 3;
    this.#failed = undefined;
  }

  async #inTurn(work: () => Promise<unknown>): Promise<void> {
    while (this.#turn) await this.#turn;
    const done = work();
    this.#turn = done.catch(() => {}).finally(() => (this.#turn = undefined));
    await done;
  }

  /** Sends one extension to at least the ttl. What is wrong with the hold comes before another error. */
  async #extend(until: number, ttlMs: number): Promise<void> {
    this.check();
    const {named} = this;
    const longer = Math.max(this.ttlMs, ttlMs);
    const limit = Math.min(until, monotonic() + this.remainingMs);
    const answer: Answer | {error: unknown} = await this.keeper.extend(this.owner, longer, named, this.wanted, limit)
      .catch((error: unknown) => (isWrongType(error) ? {number: 0, sent: 0} : {error}));
    this.update(() => {
      if ("error" in answer) this.#failed = moreTelling(this.#failed, answer.error);
      else if (answer.number > 0) this.#lengthen(answer.sent, longer);
      else if (named === this.named) this.#lose("gone"); // else it was about another fence
    });
    this.check();
    if ("error" in answer) throw answer.error;
  }

  /** Has the hold looked at when that is due next, if it is renewed or somebody would notice its end. */
  #setTimer(at: number): void {
    if (this.#timer || !(this.wanted.renew || this.#controller)) return;
    const due = Math.min(this.#until, this.#granted + this.wanted.maxHoldMs, this.isRenewed ? this.#renewAt : Infinity);
    const {self} = this; // the timer does not keep the object
    this.#timer = setTimeout(() => self.deref()?.look(), Math.min(due - at, LONGEST_TIMER_MS)).unref();
  }

  /** Ends a hold whose time is over, and renews it if that is due. */
  look(): void {
    this.#timer = undefined;
    const at = now();
    let isDue = false;
    this.update(() => {
      isDue = this.isRenewed && at >= this.#renewAt;
      if (isDue) this.#renewAt = at + this.ttlMs / 10; // unless this renewal succeeds
    });
    if (!isDue || this.#turn) return;
    if (at >= this.#warnAt) {
      this.#warnAt = Infinity;
      this.locks.reporter.warn(`a lock has been held for an hour and has no maximum hold time (lock ${this.keys.join(", ")})`);
    }
    // A reply may be waited for in vain, so it is not waited for long.
    this.#inTurn(() => this.#extend(monotonic() + this.ttlMs / 4, this.ttlMs)).catch((error: unknown) => {
      if (this.isLive) this.locks.reporter.tell("renewalFailed", this.label, explain(error, this.keys));
    });
  }
}

/** Whether a promise is settled within so many ms. */
const within = (promise: Promise<unknown>, ms: number): Promise<unknown> =>
  new Stop(new Set()).wait(promise.then(() => true), ms);
