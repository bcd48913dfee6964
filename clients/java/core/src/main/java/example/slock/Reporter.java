package example.slock;

import java.lang.System.Logger;
import java.lang.System.Logger.Level;
import java.time.Duration;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicLong;

/** Calls the hooks and writes the log. It decides nothing, and what a hook throws is logged. */
final class Reporter {
  private static final Logger LOG = System.getLogger("example.slock");
  /** How long the server does not answer before that is logged: a connection may be lost at any time. */
  private static final long LOG_OUTAGE_AFTER = Clock.SECOND;

  /** Of the nodes of a quorum, which itself tells what there is to tell: without a log, too. */
  static final Hooks SILENT = new Hooks() {};

  private final Hooks hooks;
  private final AtomicLong failingSince = new AtomicLong(Clock.NONE);
  private final AtomicBoolean isUnreached = new AtomicBoolean();

  Reporter(Hooks hooks) {
    this.hooks = hooks;
  }

  void waited(String label, long began, String outcome) {
    tell(() -> hooks.waited(label, Duration.ofNanos(Clock.now() - began), outcome));
  }

  void held(String label, long began) {
    tell(() -> hooks.held(label, Duration.ofNanos(Clock.now() - began)));
  }

  void lost(String label, SlockException.Lost loss) {
    log(Level.WARNING, "a lock is lost: " + label, loss);
    tell(() -> hooks.lost(label, loss.reason()));
  }

  void renewalFailed(String label, Throwable error) {
    log(Level.DEBUG, "a renewal failed: " + label, error);
    tell(() -> hooks.renewalFailed(label, error));
  }

  void releaseFailed(String label, Throwable error) {
    log(Level.WARNING, "a release failed, the lock ends by its ttl: " + label, error);
    tell(() -> hooks.releaseFailed(label, error));
  }

  void blocks(Throwable error) {
    log(Level.WARNING, "waits by blocking, because the user may not use the channels", error);
  }

  /** Notes whether the server answered, and logs when that changes. */
  void reached(Throwable error) {
    if (!Answers.isConnectionError(error)) {
      if (failingSince.get() != Clock.NONE && failingSince.getAndSet(Clock.NONE) != Clock.NONE
          && isUnreached.getAndSet(false)) {
        log(Level.DEBUG, "the server is in reach again", null);
      }
    } else if (!failingSince.compareAndSet(Clock.NONE, Clock.now())
        && Clock.until(failingSince.get()) < -LOG_OUTAGE_AFTER && isUnreached.compareAndSet(false, true)) {
      log(Level.WARNING, "the server is out of reach", error);
    }
  }

  private void log(Level level, String text, Throwable error) {
    if (hooks != SILENT) {
      LOG.log(level, error == null ? text : text + ": " + error.getMessage());
    }
  }

  private void tell(Runnable hook) {
    try {
      hook.run();
    } catch (RuntimeException e) {
      LOG.log(Level.WARNING, "a hook failed", e);
    }
  }
}
