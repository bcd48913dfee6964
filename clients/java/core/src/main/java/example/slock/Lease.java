package example.slock;

import example.slock.Acquisition.Grant;

/** What is known of a hold. It reads no clock, and is guarded by the hold. */
final class Lease implements Cloneable {
  enum State { LIVE, OVER, LOST }

  State state = State.LIVE;
  Mode mode;
  long fence;
  long ttl;
  /** When it was granted, at the earliest. */
  final long granted;
  /** Valid until then. */
  long until;
  /** When the next renewal is due. */
  long renewAt;
  /** The server may have changed the mode and the fence: renewals name no fence. */
  boolean isOpen;
  SlockException.Reason reason;
  /** What the last renewal said, unless one has succeeded since. */
  Throwable failed;
  /** It was warned of that nothing limits the hold. */
  boolean isLong;
  private final Locks locks;

  Lease(Locks locks, Mode mode, long ttl, Grant grant) {
    this.locks = locks;
    this.ttl = ttl;
    this.granted = grant.from();
    grant(mode, grant);
  }

  /**
   * The part of a ttl that counts for the validity: a clock that is slewed runs up to 500 ppm fast, on both sides, and the
   * server counts in milliseconds.
   */
  static long counted(long ttl) {
    return ttl - ttl / 1000 - Clock.MS;
  }

  /** The server gave the hold in a mode, by a command that was sent then. */
  void grant(Mode mode, Grant grant) {
    this.mode = mode;
    fence = grant.fence();
    isOpen = false;
    lengthen(grant.from(), ttl);
  }

  /** The server lets the hold live for a ttl, or longer, from a moment on. */
  void lengthen(long from, long ttl) {
    this.ttl = Math.max(this.ttl, ttl);
    until = Math.max(until, Clock.plus(from, locks.counted(ttl)));
    renewAt = Clock.plus(from, this.ttl / 3);
    failed = null;
  }

  /** The fence that renewals name. */
  long named() {
    return isOpen ? 0 : fence;
  }

  void lose(SlockException.Reason reason) {
    state = State.LOST;
    this.reason = reason;
  }

  Lease copy() {
    try {
      return (Lease) clone();
    } catch (CloneNotSupportedException e) {
      throw new AssertionError(e);
    }
  }
}
