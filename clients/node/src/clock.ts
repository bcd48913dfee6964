// SPDX-License-Identifier: MIT OR Apache-2.0

// The clocks: one for limits of time, and one for the validity of holds, which goes on while the machine sleeps.

import os from "node:os";

/** Milliseconds on a clock that nobody sets. It stands still while the machine sleeps, as timers do. */
export const monotonic = (): number => performance.now();

/** The longest time that a timer can have, in ms. One with more than that runs out at once. */
export const MOST_TIMER_MS = 2 ** 31 - 1;

/** How exactly `os.uptime` counts, in ms: on some systems in whole seconds. */
const UPTIME_STEP_MS = 1_000;
/** By how much the wall clock leaves the monotonic one before that is looked into, in ms. */
const JUMP_MS = 500;

// The monotonic clock is read last: a process that stands still in between has not slept.
const wallAhead = (): number => Date.now() - monotonic();
const uptimeAhead = (): number => os.uptime() * 1_000 - monotonic();

let wall = wallAhead();
let uptime = uptimeAhead();
/** How long the machine has slept, in ms; rather too much than too little. */
let asleep = 0;

/**
 * Milliseconds on the clock that decides whether a hold is valid. After a sleep the wall clock has left the monotonic
 * one, and so it has if somebody set it. Which of both happened is told by the uptime, which nobody sets.
 */
export function now(): number {
  if (Math.abs(wallAhead() - wall) > JUMP_MS) {
    wall = wallAhead();
    const slept = uptimeAhead() - uptime;
    if (slept > UPTIME_STEP_MS) {
      asleep += slept + UPTIME_STEP_MS;
      uptime += slept;
    }
  }
  return monotonic() + asleep;
}
