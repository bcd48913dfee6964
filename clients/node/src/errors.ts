// The errors of this library. All are `SlockError`; any other error is one of the base library.

/** The base of all errors of this library. */
export class SlockError extends Error { override name = "SlockError"; }

/** The call did not succeed within its limit. Where there was an error, it is the `cause`. */
export class TimedOutError extends SlockError {
  override name = "TimedOutError";

  /** `answered`: whether the server has answered at all: then another has the lock, else the server is out of reach. */
  constructor(text: string, cause?: unknown, readonly answered = true) {
    super(cause === undefined ? text : `${text} (${textOf(cause)})`, cause === undefined ? {} : {cause});
  }
}

/** Why a hold is lost. */
export type Reason = "gone" | "expired" | "lease ended";

const REASONS: Record<Reason, string> = {
  gone:
    "gone: the server says that the token does not hold it any more. It was deleted, or released from elsewhere, " +
    "or its ttl ended before a renewal arrived",
  expired: "expired: its ttl ended and no renewal was answered before",
  "lease ended": "lease ended: longestLeaseMs is over",
};

/** The hold ended and nobody released it through this library: stop the work. */
export class LostError extends SlockError {
  override name = "LostError";

  /** `keys` are the keys as text; `cause` is the error of the last renewal. */
  constructor(readonly label: string, readonly keys: string, readonly reason: Reason, cause?: unknown) {
    const told = cause === undefined ? "" : ` (${textOf(cause)})`;
    super(`the hold of ${keys} is lost: ${REASONS[reason]}${told}`, cause === undefined ? {} : {cause});
  }
}

/** The token does not hold the lock, or the hold was released. */
export class NotHeldError extends SlockError { override name = "NotHeldError"; }

/** The token holds the lock in the other mode: upgrade or downgrade that hold. */
export class WrongModeError extends SlockError { override name = "WrongModeError"; }

/** The wait would close a cycle of owners that wait for each other. The text names the cycle. */
export class DeadlockError extends SlockError { override name = "DeadlockError"; }

/** The server lets no more requests wait. */
export class QueueFullError extends SlockError { override name = "QueueFullError"; }

/**
 * The server was told to refuse this token for a while, by `SLOCK.CANCEL … REFUSE`. Final. A change of a
 * hold's mode is refused too while another one goes on.
 */
export class RefusedError extends SlockError { override name = "RefusedError"; }

/** Fewer than the majority of the nodes granted or extended the lock. */
export class QuorumMissedError extends SlockError {
  override name = "QuorumMissedError";

  /** `answers`: what each node answered, by its address. */
  constructor(text: string, readonly answers: Readonly<Record<string, string>>) {
    super(`${text} (${Object.entries(answers).map(([node, answer]) => `${node}: ${answer}`).join(", ")})`);
  }
}

/** Fewer replicas than `minReplicas` have confirmed the hold in time. It has been released. */
export class TooFewReplicasError extends SlockError { override name = "TooFewReplicasError"; }

/** The `Locks` or `Quorum` was closed. The call got no hold and left nothing in the queue. What is held ends by its ttl. */
export class ClosedError extends SlockError {
  override name = "ClosedError";

  constructor() { super("the locks have been closed"); }
}

/** The server does not know the SLOCK commands. */
export class ModuleNotLoadedError extends SlockError {
  override name = "ModuleNotLoadedError";

  constructor() {
    super(
      "the server does not have the SLOCK module: start it with `loadmodule /path/to/libslock.so` in its " +
        "configuration, or run `MODULE LOAD /path/to/libslock.so`",
    );
  }
}

export function textOf(error: unknown): string {
  return error instanceof Error ? error.message || error.name : String(error);
}
