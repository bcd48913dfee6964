// Checks of numbers that are durations, in ms. Pure.

// A hold is valid for its ttl less 1 ms.
const LEAST_TTL_MS = 2;

export function notNegative(name: string, ms: number): number {
  if (typeof ms !== "number") throw new TypeError(`${name} must be a number of milliseconds, not ${typeof ms}`);
  if (!(ms >= 0)) throw new RangeError(`${name} must not be negative`);
  return ms;
}

export function positive(name: string, ms: number): number {
  if (notNegative(name, ms) === 0) throw new RangeError(`${name} must be above zero`);
  return ms;
}

/** A ttl in whole ms, as the server counts. */
export function wholeTtl(ms: number): number {
  const whole = Math.ceil(positive("ttlMs", ms));
  if (whole < LEAST_TTL_MS || whole === Infinity) throw new RangeError(`ttlMs must be at least ${LEAST_TTL_MS}, and finite`);
  return whole;
}
