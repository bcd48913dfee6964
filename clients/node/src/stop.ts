// The end of a call from outside: its signal is aborted, or `Locks` is closed. It knows nothing of locks.

import {within} from "./clock.js";

/** Calls `then` when the signal is aborted, at once when it is, and no more once what it gives has been called. */
export function onAbort(signal: AbortSignal, then: (reason: unknown) => void): () => void {
  const abort = (): void => then(signal.reason);
  if (signal.aborted) abort();
  else signal.addEventListener("abort", abort, {once: true});
  return () => signal.removeEventListener("abort", abort);
}

/** Ends what one call waits for. */
export class Stop {
  /** Why it was stopped. */
  reason: unknown;
  stopped = false;
  private reject: ((reason: unknown) => void) | undefined;
  private readonly unlisten: (() => void) | undefined;

  constructor(signal?: AbortSignal) {
    this.unlisten = signal && onAbort(signal, (reason) => this.stop(reason));
  }

  stop(reason: unknown): void {
    if (this.stopped) return;
    this.stopped = true;
    this.reason = reason;
    this.reject?.(reason);
  }

  /** What the call waits for now: rejected when it is stopped. What has settled before is rejected to no effect. */
  rejects(reject: (reason: unknown) => void): void {
    if (this.stopped) reject(this.reason);
    else this.reject = reject;
  }

  /** Throws the reason once it is stopped. */
  check(): void { if (this.stopped) throw this.reason; }

  /** What `promise` gives; it rejects at once when the call is stopped. */
  wait<T>(promise: Promise<T>): Promise<T> {
    return new Promise((resolve, reject) => {
      this.rejects(reject);
      promise.then(resolve, reject);
    });
  }

  /** Waits so long; it rejects at once when the call is stopped. */
  sleep(ms: number): Promise<void> { return within(this.wait(new Promise(() => {})), ms, () => {}); }

  /** The call has ended: the signal is not listened to any more. */
  end(): void { this.unlisten?.(); }
}
