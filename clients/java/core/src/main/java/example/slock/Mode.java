package example.slock;

import java.util.Locale;

/** How a lock is held: by one writer, or by readers. FREE is only in what the server tells. */
public enum Mode {
  WRITE, READ, FREE;

  @Override
  public String toString() {
    return name().toLowerCase(Locale.ROOT);
  }
}
