// SPDX-License-Identifier: MIT OR Apache-2.0

package example.slock;

import java.lang.System.Logger;
import java.lang.System.Logger.Level;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.CancellationException;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicLong;

/** Calls the hooks and writes the log of one {@link Locks}. It decides nothing. */
final class Reporter {
  private static final Logger LOG = System.getLogger("example.slock");
  /** How long no reply comes before that is logged: a connection may be lost at any time. */
  private static final long LOG_OUTAGE_AFTER = Clock.SECOND;

  private final Hooks hooks;
  private final AtomicLong failingSince = new AtomicLong(Clock.NEVER);
  private final AtomicBoolean isUnreached = new AtomicBoolean();

  Reporter(Hooks hooks) {
    this.hooks = hooks;
  }

  void waited(String label, long began, boolean isRefused, Throwable error) {
    String outcome = isRefused ? "refused" : error == null ? "granted" : error instanceof SlockException.TimedOut ? "timed out"
        : error instanceof CancellationException ? "cancelled" : error.getClass().getSimpleName();
    run(() -> hooks.waited(label, Duration.ofNanos(Clock.now() - began), outcome));
  }

  void held(String label, long nanos) {
    run(() -> hooks.held(label, Duration.ofNanos(nanos)));
  }

  void lost(String label, SlockException.Lost loss) {
    log(Level.WARNING, "a lock was lost", loss.keys(), label, loss);
    run(() -> hooks.lost(label, loss));
  }

  void renewalFailed(String label, List<String> keys, Throwable error) {
    log(Level.DEBUG, "a renewal failed", keys, label, error);
    run(() -> hooks.renewalFailed(label, error));
  }

  void releaseFailed(String label, List<String> keys, Throwable error) {
    log(Level.WARNING, "a release failed; the lock ends by its ttl", keys, label, error);
    run(() -> hooks.releaseFailed(label, error));
  }

  void warn(String text, String label, List<String> keys) {
    log(Level.WARNING, text, keys, label, null);
  }

  void polls(String reason) {
    log(Level.WARNING, "waits poll, and are not served in order: " + reason, null);
  }

  /** Notes whether the server replied, and logs when that changes. */
  void reached(Throwable error) {
    long since = failingSince.get();
    if (error == null) {
      if (since != Clock.NEVER && failingSince.getAndSet(Clock.NEVER) != Clock.NEVER && isUnreached.getAndSet(false)) {
        log(Level.INFO, "the server replies again", null);
      }
    } else if (since == Clock.NEVER) {
      failingSince.compareAndSet(since, Clock.now());
    } else if (Clock.now() - since > LOG_OUTAGE_AFTER && isUnreached.compareAndSet(false, true)) {
      log(Level.WARNING, "no reply from the server: " + error.getMessage(), null);
    }
  }

  private static void log(Level level, String text, List<String> keys, String label, Throwable error) {
    log(level, text + " (lock " + String.join(", ", keys) + ", label " + label + ")"
        + (error == null ? "" : ": " + error.getMessage()), null);
  }

  private static void log(Level level, String text, Throwable error) {
    try {
      LOG.log(level, "slock: " + text, error);
    } catch (RuntimeException | Error e) { // of the program's logging library: it changes nothing for the lock
    }
  }

  /** Calls the program. Whatever it throws, also a checked exception of another language, changes nothing for the lock. */
  static void run(Runnable hook) {
    try {
      hook.run();
    } catch (Throwable e) {
      log(Level.WARNING, "a hook or a callback of onLost failed", e);
    }
  }
}
