package example.slock;

import example.slock.SlockException.Reason;
import java.util.List;

/**
 * What is known of a hold: its mode and fence, until when it is valid, and why it was lost. It sends nothing and reads
 * no clock: the time is passed in.
 */
final class Lease implements Cloneable {
  enum State { LIVE, RELEASING, ENDED, LOST }

  /** What of a ttl does not count for the validity. */
  record Drift(double factor, long fixed) {
    /** A clock that is slewed runs up to 500 ppm fast, on both sides, and the server counts in milliseconds. */
    static final Drift ONE_SERVER = new Drift(0.001, Clock.MS);

    long counted(long ttl) {
      return ttl - (long) (ttl * factor) - fixed;
    }
  }

  /** What a server gave: sent is the moment before the command from which the ttl counts. */
  record Grant(Mode mode, long fence, long sent, boolean doubt) {}

  /** A renewal that was sent. */
  record Renewal(long fence, long ttl, long sent) {}

  final Drift drift;
  final boolean renews;
  State state = State.LIVE;
  Mode mode;
  long fence;
  /** A command that may give something had no answer: the hold ends as an acquisition that is given up. */
  boolean doubt;
  /** A change of mode is open: the server may have done it already. */
  boolean changing;
  long ttl;
  long until;
  long renewAt;
  long leaseEnd = Clock.NONE;
  /** Null while the hold is not lost. */
  Reason reason;
  /** Of the renewals since the last one that was answered. */
  private Throwable failed;

  Lease(Grant grant, long ttl, Drift drift, boolean renews) {
    this.drift = drift;
    this.renews = renews;
    this.ttl = ttl;
    mode = grant.mode;
    fence = grant.fence;
    doubt = grant.doubt;
    lengthen(grant.sent, ttl);
  }

  Lease copy() {
    try {
      return (Lease) clone();
    } catch (CloneNotSupportedException e) {
      throw new AssertionError(e);
    }
  }

  /** Ends a live hold whose time is over. */
  void look(long at) {
    if (state == State.LIVE && at >= leaseEnd) {
      lose(Reason.LEASE_ENDED);
    } else if (state == State.LIVE && at >= until) {
      lose(Reason.EXPIRED);
    }
  }

  void lose(Reason why) {
    state = State.LOST;
    reason = why;
  }

  /** Null while the hold is live. */
  SlockException problem(List<String> keys) {
    return switch (state) {
      case LIVE -> null;
      case LOST -> new SlockException.Lost(keys, reason, reason == Reason.EXPIRED ? failed : null);
      default -> new SlockException.NotHeld("the hold has ended", null);
    };
  }

  /** The server has set a deadline, a ttl after a command that was sent then, or has a later one. */
  void lengthen(long sent, long by) {
    failed = null;
    until = Math.max(until, sent + drift.counted(by));
    renewAt = until + ttl / 3 - drift.counted(ttl); // a third of the ttl after the last
  }

  /** A new mode and its fence. */
  void granted(Mode newMode, long newFence, long sent) {
    mode = newMode;
    fence = newFence;
    changing = false;
    lengthen(sent, ttl);
  }

  /**
   * The answer to a renewal. It counts for the fence that it names; while a change of mode is open, a 0 says only that
   * the change may be done. Tells whether it counted.
   */
  boolean renewed(long at, Renewal r, boolean isHeld, Throwable error) {
    if (state != State.LIVE || r.fence != fence) {
      return false;
    }
    if (error == null && isHeld) {
      lengthen(r.sent, r.ttl);
    } else if (error == null && changing) {
      failed = null;
    } else if (error == null || Answers.hasCode(error, "WRONGTYPE")) {
      lose(Reason.GONE);
    } else {
      failed = Answers.cause(error);
      renewAt = at + r.ttl / 10;
    }
    return true;
  }

  /** When the watchdog has to look at the hold: it is over, or to be renewed. */
  long due() {
    long due = Math.min(until, leaseEnd);
    return renews ? Math.min(due, renewAt) : due;
  }

  /** The renewal that is to be sent now, or null. Without an answer for a third of the ttl another one is sent. */
  Renewal begin(long at) {
    if (state != State.LIVE || !renews || at < renewAt) {
      return null;
    }
    renewAt = at + ttl / 3;
    failed = failed == null ? Answers.NO_ANSWER : failed;
    return new Renewal(fence, ttl, at);
  }
}
