// SPDX-License-Identifier: MIT OR Apache-2.0

package example.slock;

import java.util.Locale;

/** How a lock is held. */
public enum Mode {
  /** By one writer, which excludes all others. */
  WRITE,
  /** By readers, which exclude only writers. */
  READ,
  /** By nobody. */
  FREE;

  @Override
  public String toString() {
    return name().toLowerCase(Locale.ROOT);
  }
}
