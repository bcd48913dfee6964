// The changes of a hold's mode. While one is open the hold is renewed without naming its fence, because the server may have
// given it another one.

import {LATE_REPLY_MS, ServerAcquisition} from "./acquisition.js";
import {NoAnswerError, NotHeldError, TimedOutError, invalid} from "./errors.js";
import {LiveHold, type Hold} from "./hold.js";
import {check, requestSettings, type Mode} from "./options.js";
import {REFUSE_MS} from "./protocol.js";
import {Server, repeat, type Answer} from "./server.js";
import {Stop} from "./stop.js";
import type {Call} from "./transport.js";

export class HeldLock extends LiveHold implements Hold {
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

  /** Runs a change, unless another one is open. If it is still open after that, it is settled in the background. */
  async #change(
    to: Mode, signal: AbortSignal | undefined,
    run: (server: Server, call: Call, stop: Stop) => Promise<{error: unknown; isOpen: boolean} | undefined>,
  ): Promise<void> {
    const {keeper, isOpen: wasOpen} = this;
    if (!(keeper instanceof Server) || this.keys.length > 1) throw invalid("the mode changes for one key on one server");
    if (this.change) throw invalid("another change of the mode is open");
    this.check();
    const stop = new Stop(this.locks.running, signal);
    this.change = stop;
    this.isOpen = true;
    const call = this.owner.change(to, this.ttlMs, this.fence);
    const failed = await run(keeper, call, stop);
    stop.done();
    const problem = this.update(() => {
      if (!failed) return;
      if (!failed.isOpen) this.isOpen = wasOpen;
      if (failed.error instanceof NotHeldError || String((failed.error as Error)?.message).startsWith("WRONGTYPE")) this.lose();
    });
    const settled = failed?.isOpen && !problem ? this.#settle(keeper, to, call).catch(() => {}) : Promise.resolve();
    const done = settled.then(() => (this.change = undefined));
    if (!failed?.isOpen) await done;
    else if (failed.error instanceof TimedOutError) { // the server replies, so it is not for long
      await Promise.race([done, new Promise((resolve) => setTimeout(resolve, LATE_REPLY_MS).unref())]);
    }
    if (problem ?? failed) throw problem ?? failed!.error;
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
