// What a program can have itself told about its locks, for metrics and logs.

import {debuglog} from "node:util";
import {now} from "./clock.js";
import {textOf, type Reason} from "./errors.js";

const debug = debuglog("slock");

// A server is out of reach when nothing has been answered for so long, in ms: a connection may be lost at any time.
const OUT_OF_REACH_AFTER_MS = 1_000;

/** How an acquisition ended: one of these, or the name of the error. */
export type Outcome = "granted" | "refused" | "timed out" | "cancelled" | (string & {});

/**
 * Functions that the library calls. They must return at once: the library waits for them. An error of one of them is
 * logged and changes nothing.
 */
export interface Hooks {
  /** When an acquisition has ended. `refused`: a `tryAcquire` that got nothing. */
  waited?(label: string, ms: number, outcome: Outcome): void;
  /** When a hold has ended: released, handed over or lost. */
  held?(label: string, ms: number): void;
  lost?(label: string, reason: Reason): void;
  /** For each renewal without an answer, or with an error. It is tried again. */
  renewalFailed?(label: string, error: unknown): void;
  /** When a release had no answer. The lock ends by its ttl. */
  releaseFailed?(label: string, error: unknown): void;
  /** What an operator must know. Without this it goes to `process.emitWarning`. */
  warning?(text: string): void;
}

/** The hooks of a program, called so that their errors change nothing. */
export class Reporter {
  private silentSince: number | undefined; // Infinity: it has been told

  constructor(private readonly hooks: Hooks) {}

  tell<Name extends keyof Hooks>(name: Name, ...told: Parameters<NonNullable<Hooks[Name]>>): void {
    const hook = this.hooks[name] as ((...told: unknown[]) => void) | undefined;
    if (hook === undefined) return;
    const call = async (): Promise<void> => hook.apply(this.hooks, told);
    call().catch((error: unknown) => process.emitWarning(`the hook ${name} failed: ${error}`, "SlockWarning"));
  }

  /** An acquisition that began then has ended. */
  waited(label: string, began: number, outcome: Outcome): void { this.tell("waited", label, now() - began, outcome); }

  /** A hold that was granted then has ended. */
  held(label: string, began: number): void { this.tell("held", label, now() - began); }

  /** The server has answered. */
  answered(): void { this.silentSince = undefined; }

  /** It has not. An operator is told once, until it answers again. */
  unanswered(server: string, error: unknown): void {
    this.silentSince ??= now();
    if (now() - this.silentSince < OUT_OF_REACH_AFTER_MS) return;
    this.silentSince = Infinity;
    this.warn(`${server} is out of reach: ${textOf(error)}`);
  }

  warn(text: string): void {
    if (this.hooks.warning) this.tell("warning", text);
    else process.emitWarning(text, "SlockWarning");
  }

  /** Shown with `NODE_DEBUG=slock`. */
  debug(text: string): void { debug(text); }
}
