package example.slock;

import java.util.List;

/** What a program asks for locks: {@link Locks}, or a {@link Quorum}. */
public interface Locker extends AutoCloseable {
  /** A request for the lock of all keys, or of none, as the one writer. It sends nothing. */
  Request write(String... keys);

  /** A request for the lock of all keys, or of none, as a reader. It sends nothing. */
  Request read(String... keys);

  /**
   * Releases what a token holds that another process took, in whichever mode, and tells on how many keys, or on how
   * many nodes of a quorum.
   */
  int release(List<String> keys, String token);

  /** Ends all waits with {@link SlockException.Closed}, and renewals. It releases nothing. */
  @Override
  void close();
}
