package example.slock;

import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Future;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;

/**
 * The one thread that looks after time, for all holds and waits of the process. It ends when nothing is left to look
 * after. What runs there must not block.
 */
final class Timers {
  private static final long TICK_MS = 100;
  private static final ScheduledThreadPoolExecutor EXECUTOR = new ScheduledThreadPoolExecutor(1, task -> {
    Thread thread = new Thread(task, "slock-timers");
    thread.setDaemon(true);
    return thread;
  });
  private static final AtomicBoolean TICKING = new AtomicBoolean();
  private static volatile boolean isUsed;

  static {
    EXECUTOR.setRemoveOnCancelPolicy(true);
    EXECUTOR.setKeepAliveTime(1, TimeUnit.SECONDS);
    EXECUTOR.allowCoreThreadTimeOut(true);
  }

  private Timers() {}

  static Future<?> at(long moment, Runnable task) {
    isUsed = true;
    // Something is always due soon, so that a limit of a command, which is later, does not wake the thread.
    if (!TICKING.get() && TICKING.compareAndSet(false, true)) {
      EXECUTOR.schedule(Timers::tick, TICK_MS, TimeUnit.MILLISECONDS);
    }
    return EXECUTOR.schedule(task, Math.max(0, Clock.until(moment)), TimeUnit.NANOSECONDS);
  }

  /** Gives the future, which has no answer then at the latest. */
  static CompletableFuture<Reply> limit(CompletableFuture<Reply> future, long moment) {
    if (moment < Clock.NONE) {
      Future<?> timer = at(moment, () -> future.complete(Reply.NO_ANSWER));
      future.whenComplete((reply, error) -> timer.cancel(false));
    }
    return future;
  }

  private static void tick() {
    if (isUsed) {
      isUsed = false;
      EXECUTOR.schedule(Timers::tick, TICK_MS, TimeUnit.MILLISECONDS);
    } else {
      TICKING.set(false);
    }
  }
}
