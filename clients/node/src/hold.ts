// A hold: what a program may ask of it, when it is lost, and how it is extended, changed and released.
//
// `Held` is what one server knows of it, and what the watchdog renews. `AnyHold` is common to the holds of one server and
// of a quorum: the former is a quorum of one. `Hold` is the hold of one server.

import {Acquisition, type Granted} from "./acquisition.js";
import {codeOf, errorOf, isTemporary, problemsIn, type Answer} from "./answers.js";
import {now, sleep} from "./clock.js";
import {REFUSE_MS, cancel, change, extend, release, lookAtModes, type Command, type Key, type Mode} from "./commands.js";
import {notNegative, wholeTtl} from "./durations.js";
import {LostError, NotHeldError, RefusedError, TimedOutError, textOf, type Reason} from "./errors.js";
import {Lease, RENEW_AFTER, TRY_AGAIN_AFTER, isPrompt, majority, majorityUntil, type Drift, type Told} from "./lease.js";
import type {CallOptions, Wanted} from "./options.js";
import {answerTo} from "./servers.js";
import type {Answered, Shared} from "./shared.js";
import {onAbort} from "./stop.js";
import type {Renewable} from "./watchdog.js";

// How long the release of a hold that is lost may take, in ms. Its ttl ends what is left of it.
const LOST_RELEASE_FOR_MS = 500;

// An extension during a change of mode is asked again so often, in ms: the change gives another fence.
const CHANGE_LOOK_MS = 20;

/** What a token holds at one server, or tries to get. Its commands name the hold by its fence. */
export class Held implements Renewable {
  readonly lease: Lease;
  ttlMs: number;
  renewAt = Infinity;
  /** Whether nobody renews it any more, and what comes late is released. */
  ended = false;
  /** Nobody before the grant, and for ever when a quorum has no majority. */
  owner: AnyHold | undefined;

  constructor(readonly shared: Shared, readonly wanted: Wanted, readonly token: string, drift: Drift) {
    this.ttlMs = wanted.options.ttlMs;
    this.lease = new Lease(wanted.mode, drift);
  }

  get keys(): readonly Key[] { return this.wanted.keys; }

  get validUntil(): number { return this.owner?.validUntil ?? Infinity; }

  expire(): void { this.owner?.expire(); }

  stop(): void {
    this.ended = true;
    this.shared.watchdog.remove(this);
  }

  /** A command sent at `sent` gave the hold, or changed its mode. */
  granted(fence: number, mode: Mode, sent: number, ttlMs: number): void {
    this.lease.granted(fence, mode, sent, ttlMs);
    this.renewAfter(sent, RENEW_AFTER);
  }

  /** Extends it, and takes the answer, or the error, that it returns. `sent`: a moment before. */
  async renew(sent: number, until: number, ttlMs = this.ttlMs): Promise<Answer> {
    const fence = this.lease.fence ?? 0;
    const told = await answerTo(this.shared.servers, this.wanted.key, extend(this.keys, this.token, ttlMs, fence), until);
    const answer = codeOf(told) === "WRONGTYPE" ? 0 : told; // something else has the name
    this.renewed(fence, sent, ttlMs, answer);
    return answer;
  }

  /** What an answer to a command that was sent at `sent` meant. */
  told(told: Told, _sent: number): void { if (told !== "nothing") this.owner?.told(told); }

  /** Leaves nothing of it at the server, in the background. The answers, when they come while the caller waits. */
  async giveUp(callerWaitsMs: number): Promise<Answered | undefined> {
    const {shared, wanted, token, lease: {inDoubt, changing, fence, mode}} = this;
    if (inDoubt || changing) return shared.giveUpInDoubt(wanted, token, fence, callerWaitsMs);
    return fence === undefined ? undefined : shared.giveUp(wanted, [release(this.keys, mode, token, fence)], callerWaitsMs);
  }

  /** Releases it: whether all of it was still there. `TimedOutError` at `until`: then it goes on in the background. */
  async release(moment: number, until: number): Promise<boolean> {
    const {lease, shared, wanted, token} = this;
    const {keys, names} = wanted;
    const wasValid = moment < lease.validUntil;
    const released = ({answers, afterUnanswered}: Answered): boolean => {
      const answer = answers.at(-1);
      if (answer instanceof Error) throw errorOf(answer, names);
      // 0 after a copy without an answer: that copy released it.
      return Number(answer) === keys.length || (answer === 0 && afterUnanswered && wasValid);
    };
    if (lease.inDoubt || lease.changing) {
      // The token may have a later hold by now, but not while a quorum has this one.
      if (wanted.given && !wasValid && moment >= this.validUntil) return false;
      const answered = await this.giveUp(until - moment);
      if (answered === undefined) throw new TimedOutError(`${names}: the release had no answer within the time`);
      return released(answered);
    }
    if (lease.fence === undefined || (!lease.isHeld && keys.length === 1)) return false;
    try {
      return released(await shared.insist(names, wanted.key, [release(keys, lease.mode, token, lease.fence)], until));
    } catch (error) {
      if (error instanceof TimedOutError) void this.giveUp(0);
      throw error;
    }
  }

  /** What the answer to an extension meant. */
  renewed(fence: number, sent: number, ttlMs: number, answer: Answer): Told {
    this.expire(); // a hold that is lost stays lost, whatever the answer is
    if (this.ended) return "nothing";
    this.renewAfter(now(), TRY_AGAIN_AFTER);
    if (typeof answer !== "number") {
      this.owner?.renewalFailed(answer);
      return "nothing";
    }
    const told = this.lease.extended(fence, sent, ttlMs, answer);
    if (told === "held") this.renewAfter(sent, RENEW_AFTER);
    this.told(told, sent);
    return told;
  }

  private renewAfter(moment: number, partOfTtl: number): void {
    if (this.wanted.options.renew) this.renewAt = moment + this.ttlMs * partOfTtl;
  }
}

/** A hold of one server or of a quorum. `await using hold = …` releases it at the end of the block. */
export abstract class AnyHold implements AsyncDisposable {
  protected readonly shared: Shared;
  protected problem: unknown; // of the last renewal
  private lostReason: Reason | undefined;
  private released = false; // or handed over
  handedOver = false;
  private wasTold = false; // of the loss
  private warned = false;
  private controller: AbortController | undefined;
  private readonly leaseEnd: number;

  constructor(protected readonly wanted: Wanted, protected readonly helds: readonly Held[], private readonly grantedAt: number) {
    this.shared = helds[0]!.shared;
    this.leaseEnd = this.grantedAt + wanted.options.longestLeaseMs;
    for (const held of helds) held.owner = this;
    this.lookAgain();
  }

  // --- what a program asks

  get keys(): readonly Key[] { return this.wanted.keys; }

  /** What the request said. Of a hold that was adopted `locks.info` tells it. */
  get metadata(): string | undefined { return this.wanted.options.metadata; }

  /** The name under which hooks report it. */
  get label(): string { return this.wanted.label; }

  /** The owner's identity. */
  get token(): string { return this.helds[0]!.token; }

  get mode(): Mode { return this.helds[0]!.lease.mode; }

  /** How long a renewal keeps the hold. */
  get ttlMs(): number { return this.helds[0]!.ttlMs; }

  /** Until when the hold is certain, as `now()` of this library counts. Renewals move it. */
  get validUntil(): number {
    const {helds} = this;
    const until = helds.length === 1 ? helds[0]!.lease.validUntil : majorityUntil(helds.map((held) => held.lease.validUntil));
    return Math.min(until, this.leaseEnd);
  }

  /** How long the hold is certain from now on; zero when it is not. */
  get timeLeftMs(): number { return this.hasEnded ? 0 : Math.max(0, this.validUntil - now()); }

  /** Whether the hold ended and nobody released it. Asks the clock, not the server. */
  get lost(): boolean {
    this.expire();
    return this.lostReason !== undefined;
  }

  /** Why the hold is lost; nothing when it is not. */
  get reason(): Reason | undefined { return this.lost ? this.lostReason : undefined; }

  /** It is aborted when the hold is lost, with a `LostError`. Not when the hold is released. */
  get signal(): AbortSignal {
    if (this.controller === undefined) {
      this.controller = new AbortController();
      if (this.lost) this.controller.abort(this.lostError());
      else if (!this.released) this.watch(); // also one that nobody renews
    }
    return this.controller.signal;
  }

  /**
   * Throws `LostError` when the hold is lost, and `NotHeldError` when it has been released. Asks the clock, not the
   * server: call it before each step.
   */
  check(): void {
    if (this.lost) {
      this.wasTold = true;
      throw this.lostError();
    }
    if (this.released) throw new NotHeldError(`the hold of ${this.wanted.names} has been released or handed over`);
  }

  /** Ends the hold here without releasing it: another process goes on with it, by `adopt`. */
  handOver(): void {
    this.check();
    this.handedOver = true;
    this.end(now());
  }

  /**
   * Releases the hold, and tells whether it was still there. A second call changes nothing and gives false. It ends within
   * a second after `retryForMs`: with `TimedOutError` when the server did not answer, of a quorum with
   * `QuorumMissedError`. The lock ends by its ttl then.
   */
  async release(): Promise<boolean> {
    if (this.released) return false;
    const moment = now();
    const held = this.end(moment);
    let there: boolean;
    try {
      there = await this.releaseAtServers(held, moment);
    } catch (error) {
      if (!held) return false; // its ttl has ended, or ends what is left of it
      this.shared.reporter.warn(`${this.label}: the release failed; the lock ends by its ttl: ${textOf(error)}`);
      this.shared.reporter.tell("releaseFailed", this.label, error);
      throw error;
    }
    if (held && !there && this.lostReason === undefined) {
      this.lostReason = "gone"; // it had ended before
      this.shared.reporter.tell("lost", this.label, "gone");
    }
    return held && there;
  }

  /**
   * Makes the hold valid for `ttlMs` from now on, without an argument for its present ttl. It never shortens: to shorten,
   * release. Later renewals take the longest ttl that was asked for.
   */
  async extend(ttlMs?: number): Promise<void> {
    this.shared.checkOpen();
    this.check();
    const wantedMs = ttlMs === undefined ? this.ttlMs : wholeTtl(ttlMs);
    await this.extendAtServers(wantedMs);
    this.check();
    for (const held of this.helds) held.ttlMs = Math.max(held.ttlMs, wantedMs);
    this.lookAgain();
  }

  /**
   * Does `work` under the hold, with a signal that is aborted when the hold is lost, or by the signal given. When the hold
   * is lost, it is `LostError` once the work has ended. The hold is not released.
   */
  async run<T>(work: (signal: AbortSignal, hold: this) => Promise<T> | T, {signal}: CallOptions = {}): Promise<T> {
    this.check();
    // Not by AbortSignal.any: a signal that lives long would keep something of each call.
    const either = new AbortController();
    const unlisten = [this.signal, signal].map((one) => one && onAbort(one, (reason) => either.abort(reason)));
    let result: T;
    try {
      result = await work(either.signal, this);
    } catch (error) {
      if (this.lost && (error === this.signal.reason || (error as Error | undefined)?.name === "AbortError")) this.check();
      throw error;
    } finally {
      for (const end of unlisten) end?.();
    }
    if (this.lost) this.check();
    return result;
  }

  /**
   * Releases at the end of a block. The work was done under the hold: a release that fails is no error of it. A loss is
   * `LostError`, unless `check` or another call has said so.
   */
  async [Symbol.asyncDispose](): Promise<void> {
    const lost = this.lost;
    await this.release().catch(() => {}); // it has been logged and told to the hook
    if (lost && !this.wasTold) this.check();
  }

  // --- its end

  /** Releases what the servers have: whether it was there. `held`: whether it was valid. */
  protected abstract releaseAtServers(held: boolean, moment: number): Promise<boolean>;

  /** Extends it at the servers, for so long. */
  protected abstract extendAtServers(ttlMs: number): Promise<void>;

  /** Whether it was released, handed over or lost. */
  get hasEnded(): boolean { return this.released || this.lostReason !== undefined; }

  /** A server says that it has the hold, or that it has lost it. */
  told(told: Told): void {
    if (this.hasEnded) return;
    if (told === "held") this.problem = undefined;
    const gone = this.helds.filter((held) => !held.lease.isHeld).length;
    if (gone > this.helds.length - majority(this.helds.length)) this.lose("gone");
    else this.expire();
  }

  /** It is lost when its time has passed. */
  expire(moment = now()): void {
    if (this.hasEnded) return;
    if (moment >= this.leaseEnd) this.lose("lease ended");
    else if (moment >= this.validUntil) this.lose("expired");
  }

  /** A renewal failed and is tried again. Of one that the server refuses an operator must know: once for each hold. */
  renewalFailed(error: unknown): void {
    if (this.hasEnded) return;
    this.problem = error;
    const {reporter} = this.shared;
    if (!isTemporary(error) && !this.warned) {
      this.warned = true;
      reporter.warn(`${this.label}: a renewal failed: ${textOf(error)}`);
    }
    reporter.tell("renewalFailed", this.label, error);
  }

  /** The times have changed. */
  protected lookAgain(): void {
    if (this.wanted.options.renew && !this.hasEnded) this.watch();
  }

  protected lose(reason: Reason): void {
    if (this.hasEnded) return;
    this.lostReason = reason;
    this.stop();
    const error = this.lostError();
    const {reporter} = this.shared;
    // A hold that nobody renews ends by its ttl as a rule.
    if (this.wanted.options.renew) reporter.warn(error.message);
    else reporter.debug(error.message);
    reporter.tell("lost", this.label, reason);
    this.tellHeld();
    this.controller?.abort(error);
  }

  /** The program releases it or hands it over. Whether it was there, as far as is known. */
  protected end(moment: number): boolean {
    this.expire(moment);
    const held = !this.hasEnded;
    this.released = true;
    this.stop();
    if (held) this.tellHeld();
    return held;
  }

  private lostError(): LostError {
    const cause = this.lostReason === "expired" ? this.problem : undefined;
    return new LostError(this.label, this.wanted.names, this.lostReason!, cause);
  }

  private stop(): void { for (const held of this.helds) held.stop(); }

  private tellHeld(): void { this.shared.reporter.held(this.label, this.grantedAt); }

  private watch(): void { for (const held of this.helds) held.shared.watchdog.add(held); }
}

/** A lock that is held. `Locks` makes it; `release` ends it. */
export class Hold extends AnyHold {
  constructor(wanted: Wanted, protected readonly held: Held, grantedAt: number) { super(wanted, [held], grantedAt); }

  /** Rises with each new hold of the server: send it with every write. An upgrade or a downgrade gives a new one. */
  get fence(): number { return this.held.lease.fence ?? 0; }

  /**
   * The reader becomes the writer, when the other readers have gone. It waits at most for `waitMs`. `TimedOutError` when
   * the wait is over: the hold stays as it was. `DeadlockError` when another reader waits for the same. `RefusedError`
   * within 120 s after an upgrade of this hold that was given up, and while another change of its mode goes on.
   */
  async upgrade({waitMs = Infinity, signal}: {waitMs?: number | undefined} & CallOptions = {}): Promise<void> {
    await this.change("write", notNegative("waitMs", waitMs), signal);
  }

  /**
   * The writer becomes a reader. No other writer comes in between. From the call on it counts as a reader. `RefusedError`
   * while another change of its mode goes on.
   */
  async downgrade({signal}: CallOptions = {}): Promise<void> { await this.change("read", 0, signal); }

  protected releaseAtServers(held: boolean, moment: number): Promise<boolean> {
    return this.held.release(moment, moment + (held ? this.shared.retryForMs : LOST_RELEASE_FOR_MS));
  }

  protected async extendAtServers(ttlMs: number): Promise<void> {
    const {held, shared, wanted} = this;
    const end = now() + shared.retryForMs;
    for (;;) {
      const {fence} = this;
      const command = extend(this.keys, this.token, ttlMs, fence);
      let told: Told;
      try {
        const until = Math.min(end, Math.max(now(), this.validUntil));
        const {answers, sent} = await shared.insist(wanted.names, wanted.key, [command], until);
        told = held.renewed(fence, sent, ttlMs, answers[0]);
      } catch (error) {
        if (codeOf(error) === "WRONGTYPE") this.lose("gone");
        if (error instanceof TimedOutError) this.problem = error.cause;
        this.check(); // it may have ended meanwhile
        throw error;
      }
      this.check();
      if (told !== "nothing") return;
      if (now() >= end) throw new TimedOutError(`${wanted.names}: a change of mode is under way`);
      await sleep(CHANGE_LOOK_MS);
    }
  }

  private async change(to: Mode, waitMs: number, signal: AbortSignal | undefined): Promise<void> {
    const {held, shared, wanted} = this;
    const {lease} = held;
    shared.checkOpen();
    this.check();
    if (this.keys.length > 1) throw new TypeError("the mode of a hold of several keys cannot be changed");
    if (lease.changing) throw new RefusedError(`${wanted.names}: another change of the mode is under way`);
    signal?.throwIfAborted();
    const before = lease.mode;
    lease.changing = true;
    // The server refuses no downgrade, so a copy may be carried out late: it counts as a reader from now on.
    if (to === "read") lease.mode = "read";
    const {ttlMs} = held;
    const command = change(to, wanted.key, held.token, ttlMs, this.fence);
    const stop = shared.begin(signal);
    const unlisten = onAbort(this.signal, (lost) => stop.stop(lost));
    const acquisition = new Acquisition(shared, wanted, command, waitMs, waitMs === 0, stop, now());
    let granted: Granted | undefined;
    try {
      granted = await acquisition.granted();
      if (granted === undefined) throw acquisition.timedOut("other readers hold it");
      held.granted(granted.fence, to, granted.sent, ttlMs);
    } catch (error) {
      if (error instanceof NotHeldError) this.lose("gone");
      this.check();
      if (!(error instanceof RefusedError)) throw error;
      throw new RefusedError(
        `${wanted.names}: an upgrade of this hold was given up less than ${REFUSE_MS / 1000} s ago, and the server refuses another one for so long`,
      );
    } finally {
      acquisition.forget();
      lease.inDoubt ||= acquisition.inDoubt;
      if (acquisition.inDoubt && granted === undefined) { // a copy may come late, also after a refusal
        await this.settle(acquisition.leftToGiveUpMs, to === "read" ? command : undefined);
      } else {
        if (granted === undefined) lease.mode = before; // the server has refused it
        lease.changing = false;
      }
      unlisten();
      shared.end(stop);
    }
    this.check();
    if (!isPrompt(granted.sent, granted.received, ttlMs)) await this.extend();
    this.lookAgain();
  }

  /**
   * A change of mode was given up. Of an upgrade, it ends what waits, and asks in which mode the token holds the key. It
   * repeats a downgrade until it is answered.
   */
  private async settle(callerWaitsMs: number, downgrade: Command | undefined): Promise<void> {
    const {held, wanted} = this;
    if (this.reason !== undefined) { await held.giveUp(callerWaitsMs); return; } // nothing of it is to be left
    const {keys, token, ttlMs} = held;
    const sent = now();
    const modes: readonly Mode[] = downgrade ? ["read"] : ["write", "read"];
    const commands = downgrade
      ? [downgrade]
      : [...cancel(keys, token, !wanted.given), ...lookAtModes(keys, token, ttlMs)];
    await this.shared.giveUp(wanted, commands, callerWaitsMs, (answers) => {
      held.lease.changing = false;
      if (this.hasEnded || answers.length === 0) return;
      const told = answers.slice(-modes.length);
      const at = told.findIndex((answer) => typeof answer === "number" && answer > 0);
      if (at >= 0) {
        held.lease.granted(told[at] as number, modes[at]!, sent, ttlMs);
      } else if (problemsIn(told).length === 0) this.lose("gone");
    });
  }
}
