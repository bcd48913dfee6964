// The changes of a hold's mode. While one is open the hold is renewed without naming its fence, because the server may have
// given it another one.

import {LATE_REPLY_MS, ServerAcquisition} from "./acquisition.js";
import {NoAnswerError, NotHeldError, TimedOutError, invalid} from "./errors.js";
import {LiveHold, type Hold} from "./hold.js";
import {check, requestSettings, type Mode} from "./options.js";
import {REFUSE_MS} from "./protocol.js";
import {Server, noAnswer, repeat, type Answer} from "./server.js";
import {Stop} from "./stop.js";
import type {Call} from "./transport.js";

export class HeldLock extends LiveHold implements Hold {
  /** The end of the last change, if it was given up. */
  #settled: Promise<unknown> = Promise.resolve();

  async upgrade({waitMs, signal}: Parameters<Hold["upgrade"]>[0] = {}): Promise<void> {
    const {minReplicas, replicaTimeoutMs} = this.wanted;
    const {request} = this.locks.settings;
    const wanted = requestSettings(request, {ttlMs: this.ttlMs, waitMs: waitMs ?? Infinity, minReplicas, replicaTimeoutMs});
    check(this.keys, "write", wanted);
    await this.#change("write", signal, async (server, call, stop) => {
      const acquisition = new ServerAcquisition(server, this.owner, call, wanted, stop);
      try {
        const grant = await acquisition.run();
        this.update(() => this.grant("write", grant!));
        return undefined;
      } catch (error) {
        return {error, isOpen: acquisition.isOpen};
      }
    });
  }

  async downgrade(): Promise<void> {
    await this.#change("read", undefined, async (server, call) => {
      this.mode = "read";
      try {
        const {number, sent} = await server.ask(this.keys, call);
        this.update(() => this.grant("read", {fence: number, from: sent}));
        return undefined;
      } catch (error) {
        return {error, isOpen: error instanceof NoAnswerError};
      }
    });
  }

  /** Runs a change, unless another one is open. What is still open after that is settled in the background. */
  async #change(
    to: Mode, signal: AbortSignal | undefined,
    run: (server: Server, call: Call, stop: Stop) => Promise<{error: unknown; isOpen: boolean} | undefined>,
  ): Promise<void> {
    const {keeper} = this;
    if (!(keeper instanceof Server) || this.keys.length > 1) throw invalid("the mode changes for one key on one server");
    if (this.change) throw invalid("another change of the mode is open");
    const stop = new Stop(this.locks.running, signal);
    this.change = stop;
    try {
      const {retryForMs} = this.locks.settings;
      if (!(await within(this.#settled, retryForMs))) throw noAnswer(this.keys, retryForMs, undefined);
      this.check();
      const {isOpen: wasOpen, ttlMs, fence} = this;
      this.isOpen = true;
      const call = this.owner.change(to, ttlMs, fence);
      const failed = await run(keeper, call, stop);
      const problem = this.update(() => {
        if (!failed) return;
        if (!failed.isOpen) this.isOpen = wasOpen;
        if (failed.error instanceof NotHeldError || String((failed.error as Error)?.message).startsWith("WRONGTYPE")) this.lose();
      });
      if (problem) throw problem;
      if (failed?.isOpen) this.#settled = this.#settle(keeper, to, call).catch(() => {});
      // If the server replies it is not for long.
      if (failed?.isOpen && failed.error instanceof TimedOutError) await within(this.#settled, LATE_REPLY_MS);
      if (failed) throw failed.error;
    } finally {
      stop.done();
      this.change = undefined;
    }
  }

  /** Learns which mode a hold has whose change was given up. */
  async #settle(server: Server, to: Mode, call: Call): Promise<void> {
    const ask = (one: Call): Promise<Answer> => repeat(this.keys, REFUSE_MS, (until) => {
      this.check();
      return server.number({...one, reserved: true}, until);
    });
    if (to === "write" && (await ask(this.owner.withdraw())).number > 0) return;
    const {number, sent} = await ask(to === "write" ? this.owner.adopt("write", this.ttlMs) : call);
    if (number > 0) this.update(() => this.grant(to, {fence: number, from: sent}));
  }
}

/** Whether a promise is settled within so many ms. */
const within = (promise: Promise<unknown>, ms: number): Promise<boolean> => new Promise((resolve) => {
  const timer = setTimeout(resolve, ms, false);
  void promise.then(() => {
    clearTimeout(timer);
    resolve(true);
  });
});
