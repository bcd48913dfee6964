// SPDX-License-Identifier: MIT OR Apache-2.0

// One server or one cluster behind a transport: commands are sent to it again until they are answered.

import {monotonic, now} from "./clock.js";
import {NoAnswerError, TooFewReplicasError, duration, isWrongType, textOf} from "./errors.js";
import type {Reporter} from "./hooks.js";
import {Listener} from "./listener.js";
import {exponential, type Settings} from "./options.js";
import {REFUSE_MS, codeOf, Owner, explain, passes} from "./protocol.js";
import {LEFT, type Stop} from "./stop.js";
import {ReplyError, SilentError, type Call, type Reply, type Transport} from "./transport.js";

/** How many commands are delivered in the background at once: an outage may leave many of them. */
const DELIVERIES_AT_ONCE = 100;

/** The reply to a command that may have been sent several times. */
export interface Answer {
  /** A fence, or how many. */
  readonly number: number;
  /** Before the copy was sent that was answered, by `now`. */
  readonly sent: number;
  /** Whether another copy may have been sent. */
  readonly isRepeated?: boolean | undefined;
}

/** One server, or one cluster. */
export class Server {
  readonly listener: Listener;
  /** What is to be delivered in the background, and how many deliveries are under way. */
  readonly #deliveries = new Set<{readonly calls: readonly Call[]; readonly until: number}>();
  delivering = 0;

  /** `holds` are those that are renewed. */
  constructor(readonly transport: Transport, readonly settings: Settings, readonly reporter: Reporter, holds: () => readonly {confirm(): void}[]) {
    const {hasFailover} = transport.topology;
    const confirm = (): void => { if (hasFailover) for (const hold of holds()) hold.confirm(); }; // the primary may be another one
    this.listener = new Listener(transport, reporter, confirm, () => Boolean(hasFailover) && holds().length > 0);
  }

  /** Sends a call once. It has until then (by `monotonic`) for the reply. */
  async try(call: Call, until: number, stop?: Stop): Promise<Reply> {
    try {
      const called = this.transport.call(call, Math.max(0, until - monotonic()));
      const reply = (await (stop ? stop.wait(called) : called))!;
      this.reporter.reached();
      return reply;
    } catch (error) {
      if (error !== LEFT) this.reporter.reached(error);
      throw error;
    }
  }

  /** Sends a command once. Null is 0. An error reply is thrown. */
  async number(call: Call, until: number, stop?: Stop): Promise<Answer> {
    const sent = now();
    const {value, isRepeated} = await this.try(call, until, stop);
    return {number: asNumber(value), sent, isRepeated};
  }

  /** Sends a command until it is answered, for `retryForMs`. */
  ask(names: readonly string[], call: Call): Promise<Answer> {
    return repeat(names, this.settings.retryForMs, (until) => this.number(call, until));
  }

  /**
   * Asks, before a lock is asked for, whether its minimum hold time is not too long for the server, if it is longer than the
   * ttl. What is extended is a token that nobody has: nothing changes.
   */
  async permit(names: readonly string[], {atLeastMs, ttlMs}: Settings, until: number, stop?: Stop): Promise<void> {
    if (atLeastMs <= ttlMs) return;
    const {value} = await this.try(new Owner(names, this.settings.prefix, undefined).shorten(atLeastMs, 0), until, stop);
    if (!(value instanceof ReplyError)) return;
    throw /\bttl\b/.test(value.message) ? new TypeError(`atLeastMs: ${value.message}`, {cause: value.cause}) : value;
  }

  /** Sends one extension, and waits for replicas if it has to. */
  async extend(
    owner: Owner, ttlMs: number, fence: number, {minReplicas, replicaTimeoutMs}: Settings, until: number, stop?: Stop,
  ): Promise<Answer> {
    if (minReplicas === 0) return this.number(owner.extend(ttlMs, fence), until, stop);
    // WAIT counts the replicas that have what its connection wrote last. An extension to the same millisecond would write
    // nothing, and any replica would do.
    const call = {...owner.extend(ttlMs + 1, fence), then: ["WAIT", String(minReplicas), String(replicaTimeoutMs)]};
    const sent = now();
    const {value, then} = await this.try(call, until + replicaTimeoutMs, stop);
    const number = asNumber(value);
    if (number > 0 && asNumber(then) < minReplicas) {
      throw new TooFewReplicasError(`${asNumber(then)} of ${minReplicas} replicas acknowledged`, owner.names);
    }
    return {number, sent};
  }

  /** Releases, or has the hold end after a time, and tells whether it was there. Without a reply it goes on in the background. */
  async end(owner: Owner, fence: number, afterMs: number): Promise<boolean> {
    const isKept = afterMs > 0;
    const call = isKept ? owner.shorten(afterMs, fence) : owner.end(fence);
    try {
      const {number, isRepeated} = await this.ask(owner.names, call);
      // The server does not remember the end of a token of the program's: of two copies the second finds nothing.
      return number === (isKept ? 1 : owner.keys.length) || (owner.isGiven && Boolean(isRepeated));
    } catch (error) {
      if (isWrongType(error)) return false;
      if (error instanceof NoAnswerError) this.deliver([call], isKept ? afterMs : REFUSE_MS);
      throw error;
    }
  }

  /** Releases in the background. */
  endLater(owner: Owner, fence: number): void { this.deliver([owner.end(fence)], REFUSE_MS); }

  /** Ends an acquisition in the background. One with a token of the program's is withdrawn first, which its end does not do. */
  abandon(owner: Owner): void { this.deliver([...(owner.isGiven ? [owner.withdraw()] : []), owner.end(0)], REFUSE_MS); }

  /** Sends commands in order, each until it is answered, for a time. A program that has nothing else to do does not wait for that. */
  deliver(calls: readonly Call[], forMs: number): void {
    this.#deliveries.add({calls, until: monotonic() + forMs});
    if (this.delivering < DELIVERIES_AT_ONCE) void this.#deliver();
  }

  async #deliver(): Promise<void> {
    this.delivering += 1;
    for (const one of this.#deliveries) {
      this.#deliveries.delete(one);
      // Over the connection over which a request may be on its way, so that its end does not come first.
      for (const call of one.calls) {
        const send = (until: number): Promise<Answer> => this.number(call, Math.min(until, monotonic() + this.settings.retryForMs));
        await repeat([], one.until - monotonic(), send, true).catch(() => {});
      }
    }
    this.delivering -= 1;
  }
}

/** How long after the end of a wait a reply is still waited for. */
export const LATE_REPLY_MS = 500;
/** How long after the end of its time an attempt ends only if the event loop was busy, or the process stood still. */
const LATE_MS = 100;
/** How much more time such a process gets at most, in ms. */
const MOST_MORE_MS = 3_000;

/**
 * The limit after an attempt without a reply. A process that was late may have missed it. It gets the time for one more: as
 * much as it came late. This is not done twice.
 */
export function extended(until: number): number {
  const late = monotonic() - until;
  return late < LATE_MS ? until : monotonic() + Math.min(Math.max(late, LATE_REPLY_MS), MOST_MORE_MS);
}

/** Sends until there is an answer, for a time. */
export async function repeat<T extends object | void>(
  names: readonly string[], forMs: number, send: (until: number) => Promise<T>, isBackground = false,
): Promise<T> {
  const end = monotonic() + forMs;
  let until = end;
  let last: unknown;
  for (let failures = 0; ; failures++) {
    try {
      const answer = await send(until);
      return answer && failures > 0 ? {...answer, isRepeated: true} : answer;
    } catch (error) {
      if (!passes(error)) throw explain(error, names);
      last = moreTelling(last, error);
    }
    const pause = afterErrors(failures);
    if (until === end) until = extended(end);
    if (monotonic() + pause >= until) throw noAnswer(names, forMs, last);
    await new Promise((resolve) => (isBackground ? setTimeout(resolve, pause).unref() : setTimeout(resolve, pause)));
  }
}

/** The pauses before the further attempt n after errors that pass. */
export const afterErrors = (n: number): number => exponential(10, 1_000, n);

/** Of two errors the later, unless it only says that nothing came in time, also by a limit of the Redis client library. */
export function moreTelling(last: unknown, error: unknown): unknown {
  const isLate = error instanceof SilentError || (!(error instanceof ReplyError) && /timed? ?out/i.test(String(error)));
  return last !== undefined && isLate ? last : error;
}

/** The error of a call without a reply in time, or with none but replies after which it was sent again. */
export function noAnswer(names: readonly string[], withinMs: number, last: unknown): NoAnswerError {
  const what = codeOf(last) ? "only errors from the server" : "no reply from the server";
  return new NoAnswerError(`${what} within ${duration(withinMs)}`, names, {cause: explain(last, names)});
}

function asNumber(value: unknown): number {
  if (value instanceof ReplyError) throw value;
  if (Number.isNaN(Number(value))) throw new Error(`an unexpected reply: ${textOf(value)}`);
  return Number(value);
}
