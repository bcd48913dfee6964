// The changes of a hold's mode. While one is open the hold is renewed without naming its fence, because the server may have
// given it another one.

import {Acquisition, LATE_REPLY_MS} from "./acquisition.js";
import {NoAnswerError, NotHeldError, TimedOutError, invalid, isWrongType} from "./errors.js";
import {LiveHold, type Hold} from "./hold.js";
import {check, requestSettings, type Mode} from "./options.js";
import {REFUSE_MS} from "./protocol.js";
import {Server, noAnswer, repeat, type Answer} from "./server.js";
import {Stop} from "./stop.js";
import type {Call} from "./transport.js";

export class HeldLock extends LiveHold implements Hold {
  /** The end of the last change, if it was given up. */
  #settled: Promise<unknown> = Promise.resolve();

  async upgrade({waitMs = Infinity, signal}: Parameters<Hold["upgrade"]>[0] = {}): Promise<void> {
    const {minReplicas, replicaTimeoutMs} = this.wanted;
    const wanted = requestSettings(this.locks.settings, {ttlMs: this.ttlMs, waitMs, minReplicas, replicaTimeoutMs});
    check(this.keys, "write", wanted, this.locks.counted);
    let acquisition: Acquisition | undefined;
    await this.#change("write", signal, (server, call, stop) => {
      acquisition = new Acquisition(server, this.owner, call, wanted, stop);
      return acquisition.run();
    }, () => acquisition!.isOpen);
  }

  async downgrade(): Promise<void> {
    await this.#change("read", undefined, (server, call) => {
      this.mode = "read";
      return server.ask(this.keys, call);
    }, (error) => error instanceof NoAnswerError);
  }

  /** Runs a change, unless another one is open. What `isOpen` after an error is settled in the background. */
  async #change(
    to: Mode, signal: AbortSignal | undefined, run: (server: Server, call: Call, stop: Stop) => Promise<Answer | undefined>,
    isOpen: (error: unknown) => boolean,
  ): Promise<void> {
    const {keeper} = this;
    if (!(keeper instanceof Server) || this.keys.length > 1) throw invalid("the mode changes for one key on one server");
    if (this.change) throw invalid("another change of the mode is open");
    const stop = this.change = new Stop(this.locks.running, signal);
    try {
      const {retryForMs} = this.locks.settings;
      if (!(await within(this.#settled, retryForMs))) throw noAnswer(this.keys, retryForMs, undefined);
      this.check();
      const {isOpen: wasOpen, ttlMs, fence} = this;
      this.isOpen = true;
      const call = this.owner.change(to, ttlMs, fence);
      const {grant, error} = await run(keeper, call, stop).then((got) => ({grant: got, error: undefined}), (failed: unknown) => ({grant: undefined, error: failed}));
      const isLeft = !grant && isOpen(error);
      const problem = this.update(() => {
        if (grant) this.grant(to, grant);
        else if (!isLeft) this.isOpen = wasOpen;
        if (error instanceof NotHeldError || isWrongType(error)) this.lose("gone");
      });
      if (problem) throw problem;
      if (isLeft) this.#settled = this.#settle(keeper, to, call).catch(() => {});
      if (isLeft && error instanceof TimedOutError) await within(this.#settled, LATE_REPLY_MS); // the server replies
      if (!grant) throw error;
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
    const grant = await ask(to === "write" ? this.owner.adopt("write", this.ttlMs) : call);
    if (grant.number > 0) this.update(() => this.grant(to, grant));
  }
}

/** Whether a promise is settled within so many ms. */
const within = (promise: Promise<unknown>, ms: number): Promise<unknown> =>
  new Stop(new Set()).wait(promise.then(() => true), ms);
