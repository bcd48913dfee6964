// What each answer of the server means. Pure.

import {getSystemErrorMap} from "node:util";
import {
  DeadlockError, ModuleNotLoadedError, NotHeldError, QueueFullError, RefusedError, SlockError, TimedOutError,
  WrongModeError, textOf,
} from "./errors.js";

/** What the server answered; an `Error` is an error of the server. */
export type Answer = unknown;

/** The connection failed, or the answer did not come in time. */
export class NoAnswer extends Error {
  override name = "NoAnswer";

  /** `unsent`: no server executed the command, or there was no connection. Else it may have been executed. */
  constructor(text: string, readonly unsent: boolean, cause?: unknown) {
    super(text, cause === undefined ? {} : {cause});
  }

  static of(error: unknown, unsent: boolean): NoAnswer {
    const {errno} = (error ?? {}) as {errno?: unknown};
    const words = typeof errno === "number" ? getSystemErrorMap().get(errno)?.[1] : undefined;
    const text = textOf(error);
    return new NoAnswer(words === undefined ? text : `${text}: ${words}`, unsent, error);
  }
}

// Answers that may be different when the same request is sent again.
const TEMPORARY = new Set([
  "UNBLOCKED", "TRYAGAIN", "READONLY", "LOADING", "MASTERDOWN", "CLUSTERDOWN", "GRACE", "NOREPLICAS",
]);

const WRONG_SERVER = new Set(["READONLY", "MASTERDOWN", "CLUSTERDOWN", "UNBLOCKED"]);

const NAMED: Record<string, new (text: string) => SlockError> = {
  DEADLOCK: DeadlockError,
  QUEUEFULL: QueueFullError,
  WRONGMODE: WrongModeError,
  NOTHELD: NotHeldError,
  REFUSED: RefusedError,
};

/**
 * Whether the base library rejected with what the server said, not with what became of the connection. The errors of a
 * server begin with a word in capital letters; the base libraries' own do not.
 */
export function isReply(error: unknown): error is Error {
  return error instanceof Error && !(error instanceof NoAnswer) && /^[A-Z][A-Z0-9]+( |$)/.test(error.message);
}

/** The first word of the error, as the server sent it. */
export function codeOf(error: unknown): string { return error instanceof Error ? error.message.split(" ", 1)[0]! : ""; }

/** Whether the command whose attempt ended with `error` may have been executed all the same. */
export function mayBeExecuted(error: unknown): boolean { return error instanceof NoAnswer && !error.unsent; }

/** Whether to ask again after a pause. */
export function isTemporary(error: unknown): boolean {
  return error instanceof NoAnswer || TEMPORARY.has(codeOf(error)) || /^ERR max number of clients/.test(textOf(error));
}

/** Whether an error of the server says that another one may serve by now. */
export function isWrongServer(error: Error): boolean { return WRONG_SERVER.has(codeOf(error)); }

export function isSubscriberMissing(error: unknown): boolean { return codeOf(error) === "NOSUBSCRIBER"; }

/** Whether the user may not use the channel of NOTIFY, or may not subscribe at all. */
export function isChannelRefused(error: unknown): boolean {
  return codeOf(error) === "NOPERM" && /channel|ssubscribe/i.test(textOf(error));
}

/** Where `MOVED` and `ASK` send a command. */
export function redirectionIn(answer: Answer): {asks: boolean; slot: number; host: string; port: number} | undefined {
  const found = answer instanceof Error && /^(MOVED|ASK) (\d+) (.*):(\d+)/.exec(answer.message);
  return found ? {asks: found[1] === "ASK", slot: Number(found[2]), host: found[3]!, port: Number(found[4])} : undefined;
}

/** The error that a program gets to see for a command about the keys `names`. */
export function errorOf(error: unknown, names: string): unknown {
  if (!(error instanceof Error)) return error;
  if (/^(ERR )?unknown command/i.test(error.message)) return new ModuleNotLoadedError();
  const code = codeOf(error);
  const kind = NAMED[code];
  if (kind !== undefined && isReply(error)) return new kind(`${names}: ${error.message.slice(code.length + 1) || code}`);
  if (code !== "WRONGTYPE") return error;
  const text = `${error.message} (${names}: the key holds something else than a lock of SLOCK, perhaps a lock of another library that uses the same name)`;
  return new Error(text, {cause: error});
}

/** The error in a message of NOTIFY, such as `DEADLOCK`. */
export function errorOfMessage(code: string): Error { return new Error(`${code} at the end of the wait`); }

/** How hooks name the end of an acquisition that failed. */
export function outcomeOf(problem: unknown, cancelled: boolean): string {
  if (cancelled) return "cancelled";
  if (problem instanceof TimedOutError) return "timed out";
  return problem instanceof Error ? problem.name : "cancelled";
}

/** The errors among answers. */
export function problemsIn(answers: readonly Answer[]): Error[] {
  return answers.filter((answer) => answer instanceof Error);
}
