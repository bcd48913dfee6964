package example.slock;

import java.time.Duration;

/**
 * What hears of waits, holds and losses, by the label of the request. The methods are called from the threads of this
 * library, of the base library and of callers, several at once: they must not block.
 */
public interface Hooks {
  /**
   * An acquisition ended. The outcome is {@code granted}, {@code refused} (by a try), {@code timed out}, {@code cancelled},
   * or the name of an error.
   */
  default void waited(String label, Duration duration, String outcome) {}

  /** A hold ended, released or lost. */
  default void held(String label, Duration duration) {}

  /** A hold is lost. */
  default void lost(String label, SlockException.Reason reason) {}

  /** A renewal got an error or no answer. It is tried again until the hold expires. */
  default void renewalFailed(String label, Throwable error) {}

  /** A release got an error or no answer in time. The lock ends by its ttl. */
  default void releaseFailed(String label, Throwable error) {}
}
