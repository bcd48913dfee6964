package example.slock;

import java.util.ArrayList;
import java.util.List;
import java.util.stream.Collectors;

/** Renews the holds of one {@link Locks} or {@link Quorum}: those that are due at once together. */
final class Watchdog {
  /** A hold, and the renewal that is to be sent for it. */
  record Due(Hold hold, Lease.Renewal renewal) {}

  private final List<Due> due = new ArrayList<>(); // only the timer thread uses it
  private volatile boolean isClosed;

  /** Sends a renewal, after the timer thread has looked at all other holds that are due by now. */
  void renew(Hold hold, Lease.Renewal renewal) {
    if (due.isEmpty()) {
      Timers.at(Clock.now(), this::send);
    }
    due.add(new Due(hold, renewal));
  }

  private void send() {
    List<Due> all = List.copyOf(due);
    due.clear();
    if (!isClosed) {
      all.stream().collect(Collectors.groupingBy(one -> one.hold().keeper)).forEach(Hold.Keeper::renew);
    }
  }

  /** Renews nothing more. Holds that are over still end. */
  void close() {
    isClosed = true;
  }
}
