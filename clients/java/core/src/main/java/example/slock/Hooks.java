// SPDX-License-Identifier: MIT OR Apache-2.0

package example.slock;

import java.time.Duration;

/**
 * What is called when a lock is granted, released or lost, with the label of the request. The methods are called from
 * several threads at once, and must not block.
 */
public interface Hooks {
  /**
   * An acquisition ended. The outcome is {@code granted}, {@code refused} (by a try), {@code timed out}, {@code cancelled},
   * or the name of an error.
   */
  default void waited(String label, Duration duration, String outcome) {}

  /** A hold ended, released or lost, so long after the grant. */
  default void held(String label, Duration duration) {}

  /** A hold is lost. */
  default void lost(String label, SlockException.Lost loss) {}

  /** A renewal got an error or no reply. It is sent again until the hold expires. */
  default void renewalFailed(String label, Throwable error) {}

  /** A release got an error or no reply in time. The lock ends by its ttl. */
  default void releaseFailed(String label, Throwable error) {}
}
