// The ends of acquisitions that nobody waits for. Each is one command that may be repeated, and is sent until the server
// answers it, with growing pauses, for the time in which the server would refuse the token.

import {monotonic} from "./clock.js";
import {REFUSE_MS, passes} from "./protocol.js";
import {afterErrors, type Server} from "./server.js";
import type {Call} from "./transport.js";

/** How many ends are on their way at once. During an outage the others cost their memory. */
const MOST = 8;

interface End {
  readonly call: Call;
  readonly until: number;
  due: number;
  failures: number;
}

/** The ends that have no answer yet. */
export class Ends {
  readonly #server: Server;
  readonly #queue = new Set<End>(); // first those that were never sent, then in the order of their pauses
  #working = 0;

  constructor(server: Server) { this.#server = server; }

  get isIdle(): boolean { return this.#working === 0; }

  /** Sends a command in the background until it is answered, for a time. */
  deliver(call: Call, forMs = REFUSE_MS): void {
    const at = monotonic();
    this.#queue.add({call: {...call, reserved: true}, until: at + forMs, due: at, failures: 0});
    if (this.#working < MOST) void this.#work();
  }

  async #work(): Promise<void> {
    this.#working += 1;
    for (let [end] = this.#queue; end; [end] = this.#queue) {
      this.#queue.delete(end);
      const pause = end.due - monotonic();
      // A program that has nothing else to do does not wait for this.
      if (pause > 0) await new Promise((resolve) => setTimeout(resolve, pause).unref());
      try {
        await this.#server.number(end.call, Math.min(end.until, monotonic() + this.#server.settings.retryForMs));
      } catch (error) {
        end.due = monotonic() + afterErrors(end.failures++);
        if (passes(error) && end.due < end.until) this.#queue.add(end);
      }
    }
    this.#working -= 1;
  }
}
