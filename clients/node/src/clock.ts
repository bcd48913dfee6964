// The clock of the library, and timers for it. It knows nothing of locks.

// The wall clock counts in whole ms.
const ROUNDING_MS = 2;

let wallZero = Date.now() - performance.now();
let slept = 0;

/**
 * Milliseconds on a clock that never goes back. `performance.now()` stands still while the machine sleeps, so what the
 * wall clock has gained on it is added. A wall clock that is put forward looks like a sleep: holds may end early. One that is
 * put back counts from there on.
 */
export function now(): number {
  const monotonic = performance.now();
  const gained = Date.now() - monotonic - wallZero - slept;
  if (gained > 0) slept += gained;
  else if (gained < -ROUNDING_MS) wallZero += gained;
  return monotonic + slept;
}

// A longer delay would make Node call at once.
const LONGEST_MS = 2 ** 31 - 1;

/** Calls `work` after `ms`, or earlier: who needs the moment looks at the clock again. */
export function later(ms: number, work: () => void): NodeJS.Timeout {
  return setTimeout(work, Math.max(0, Math.min(Math.ceil(ms), LONGEST_MS)));
}

export function sleep(ms: number): Promise<void> { return new Promise((resolve) => later(ms, resolve)); }

/** What `promise` gives, or what `late` gives or throws once `ms` have passed. */
export async function within<T>(promise: Promise<T>, ms: number, late: () => T): Promise<T> {
  if (ms === Infinity) return promise;
  let timer: NodeJS.Timeout | undefined;
  const over = new Promise<void>((resolve) => (timer = later(ms, resolve))).then(late);
  try {
    return await Promise.race([promise, over]);
  } finally {
    clearTimeout(timer);
  }
}

/** Whether `promise` settles before `ms` have passed. Its error is left to who awaits it. */
export function settlesWithin(promise: Promise<unknown>, ms: number): Promise<boolean> {
  return within(promise.then(() => true, () => true), ms, () => false);
}
