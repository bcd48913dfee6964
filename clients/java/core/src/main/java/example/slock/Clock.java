// SPDX-License-Identifier: MIT OR Apache-2.0

package example.slock;

import java.time.Duration;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.TimeUnit;

/** Time in ns since this class was loaded, and what happens later. On Linux the clock stops while the machine sleeps. */
final class Clock {
  static final long MS = 1_000_000;
  static final long SECOND = 1000 * MS;
  /** A moment that never comes. */
  static final long NEVER = Long.MAX_VALUE;

  private static final long START = System.nanoTime();
  private static final ScheduledThreadPoolExecutor TIMERS = new ScheduledThreadPoolExecutor(1, task -> {
    Thread thread = new Thread(task, "slock-timers");
    thread.setDaemon(true);
    return thread;
  });

  static {
    TIMERS.setRemoveOnCancelPolicy(true);
    TIMERS.setKeepAliveTime(10, TimeUnit.SECONDS);
    TIMERS.allowCoreThreadTimeOut(true);
  }

  private Clock() {}

  static long now() {
    return System.nanoTime() - START;
  }

  /** The moment that is so long after another, at most {@link #NEVER}. */
  static long plus(long moment, long duration) {
    return duration > NEVER - Math.max(moment, 0) ? NEVER : moment + duration;
  }

  static long nanos(Duration duration) {
    try {
      return duration.toNanos();
    } catch (ArithmeticException e) {
      return duration.isNegative() ? Long.MIN_VALUE : NEVER;
    }
  }

  /** For the server, rounded up: a wait of 0 ms would have no end. */
  static long millis(long nanos) {
    return nanos / MS + (nanos % MS > 0 ? 1 : 0);
  }

  /** For texts: in ms, or in seconds if that is exact. */
  static String text(long nanos) {
    long ms = Math.round((double) nanos / MS);
    return ms % 1000 == 0 ? ms / 1000 + "s" : ms + "ms";
  }

  /** Calls the task once, on a thread that all timers share: it must not block. */
  static ScheduledFuture<?> after(long nanos, Runnable task) {
    return TIMERS.schedule(task, Math.max(0, nanos), TimeUnit.NANOSECONDS);
  }

  /** Is done after a while, on the same thread. */
  static CompletableFuture<Void> later(long nanos) {
    CompletableFuture<Void> over = new CompletableFuture<>();
    after(nanos, () -> over.complete(null));
    return over;
  }
}
