// One server or one cluster behind a transport: commands are sent to it again until they are answered.

import {monotonic, now} from "./clock.js";
import {Ends} from "./ends.js";
import {NoAnswerError, TooFewReplicasError, duration, textOf} from "./errors.js";
import type {Reporter} from "./hooks.js";
import {Listener} from "./listener.js";
import {exponential, type RequestSettings, type Settings} from "./options.js";
import {codeOf, explain, passes, type Owner} from "./protocol.js";
import {LEFT, type Stop} from "./stop.js";
import {ReplyError, SilentError, type Call, type Reply, type Transport} from "./transport.js";

/** The reply to a command that may have been sent several times. */
export interface Answer {
  readonly number: number;
  /** Before the copy was sent that was answered, by `now`. */
  readonly sent: number;
  /** Whether no other copy was sent. */
  readonly isAlone: boolean;
}

/** What prolongs a hold. A fence of 0: whatever the token holds. */
export interface Extension {
  readonly ttlMs: number;
  readonly fence: number;
  readonly wanted: RequestSettings;
}

/** One server, or one cluster. */
export class Server {
  readonly listener: Listener;
  readonly ends: Ends;

  /** `changed` is called when a primary may have been replaced. */
  constructor(
    readonly transport: Transport, readonly settings: Settings, readonly reporter: Reporter, changed: () => void,
  ) {
    this.listener = new Listener(this, changed);
    this.ends = new Ends(this);
  }

  /** Sends a call once. It has until then (by `monotonic`) for the reply. */
  async try(call: Call, until: number, stop?: Stop): Promise<Reply> {
    try {
      const called = this.transport.call(call, Math.max(0, until - monotonic()));
      const reply = await (stop ? stop.wait(called) : called);
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
    return {number: asNumber(value), sent, isAlone: !isRepeated};
  }

  /** Sends a command until it is answered, for `retryForMs`. */
  ask(names: readonly string[], call: Call): Promise<Answer> {
    return repeat(names, this.settings.retryForMs, (until) => this.number(call, until));
  }

  /** Sends one extension, and waits for replicas if it has to. */
  async extend(owner: Owner, {ttlMs, fence, wanted}: Extension, until: number, stop?: Stop): Promise<Answer> {
    const {minReplicas, replicaTimeoutMs} = wanted;
    if (minReplicas === 0) return this.number(owner.extend(ttlMs, fence), until, stop);
    // WAIT counts the replicas that have what its connection wrote last. An extension to the same millisecond would write
    // nothing, and any replica would do.
    const then = ["WAIT", String(minReplicas), String(replicaTimeoutMs)];
    const call = {...owner.extend(ttlMs + 1, fence), then};
    const sent = now();
    const reply = await this.try(call, until + replicaTimeoutMs, stop);
    const number = asNumber(reply.value);
    const acknowledged = number > 0 ? asNumber(reply.then) : 0;
    if (number > 0 && acknowledged < minReplicas) {
      throw new TooFewReplicasError(`${acknowledged} of ${minReplicas} replicas acknowledged`, owner.names);
    }
    return {number, sent, isAlone: false};
  }

  /** Releases, or has the hold end after a time, and tells whether it was there. Without a reply it goes on in the background. */
  async end(owner: Owner, fence: number, afterMs: number): Promise<boolean> {
    const isKept = afterMs > 0;
    const call = isKept ? owner.shorten(afterMs, fence) : owner.end(fence);
    try {
      const {number, isAlone} = await this.ask(owner.names, call);
      // The server does not remember the end of a token of the program's: of two copies the second finds nothing.
      return number === (isKept ? 1 : owner.keys.length) || (owner.isGiven && !isAlone);
    } catch (error) {
      if (String((error as Error)?.message).startsWith("WRONGTYPE")) return false; // another type has replaced the lock
      if (error instanceof NoAnswerError) this.ends.deliver(call, isKept ? afterMs : undefined);
      throw error;
    }
  }

  /** Releases in the background. */
  endLater(owner: Owner, fence: number): void { this.ends.deliver(owner.end(fence)); }
}

/** Sends until there is an answer, for a time. */
export async function repeat<T extends {readonly isAlone?: boolean} | void>(
  names: readonly string[], forMs: number, send: (until: number) => Promise<T>,
): Promise<T> {
  const until = monotonic() + forMs;
  let last: unknown;
  for (let failures = 0; ; failures++) {
    try {
      const answer = await send(until);
      return answer && failures > 0 ? {...answer, isAlone: false} : answer;
    } catch (error) {
      if (!passes(error)) throw explain(error, names);
      last = moreTelling(last, error);
    }
    const pause = afterErrors(failures);
    if (monotonic() + pause >= until) throw noAnswer(names, forMs, last);
    await new Promise((resolve) => setTimeout(resolve, pause));
  }
}

/** The pauses before the further attempt n after errors that pass. */
export const afterErrors = (n: number): number => exponential(10, 1_000, n);

/** Of two errors the later, unless it only says that nothing came. */
export function moreTelling(last: unknown, error: unknown): unknown {
  return last !== undefined && error instanceof SilentError ? last : error;
}

/** The error of a call without a reply in time, or with none but replies after which it was sent again. */
export function noAnswer(names: readonly string[], withinMs: number, last: unknown): NoAnswerError {
  const what = codeOf(last) ? "the server granted nothing" : "no reply from the server";
  return new NoAnswerError(`${what} within ${duration(withinMs)}`, names, last && explain(last, names));
}

function asNumber(value: unknown): number {
  if (value instanceof ReplyError) throw value;
  const number = Number(value);
  if (Number.isNaN(number)) throw new Error(`an unexpected reply: ${textOf(value)}`);
  return number;
}
