package example.slock;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentSkipListSet;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicLong;

/**
 * Looks after all holds of one {@link Locks} or {@link Quorum} from the one timer thread: each is renewed when that is due,
 * and ends when its time is over. What is due at once is renewed together.
 */
final class Watchdog {
  private static final AtomicLong NUMBERS = new AtomicLong();

  /** When a hold is to be looked at. */
  record Entry(long due, long number, Hold hold) implements Comparable<Entry> {
    @Override
    public int compareTo(Entry other) {
      return due != other.due ? Long.compare(due, other.due) : Long.compare(number, other.number);
    }
  }

  /** A hold, and the renewal that is to be sent for it. */
  record Due(Hold hold, Lease.Renewal renewal) {}

  private final ConcurrentSkipListSet<Entry> entries = new ConcurrentSkipListSet<>();
  private final AtomicLong nextLook = new AtomicLong(Clock.NONE);
  private volatile Future<?> timer;
  private volatile boolean isClosed;

  Entry add(Hold hold, long due) {
    Entry entry = new Entry(due, NUMBERS.incrementAndGet(), hold);
    entries.add(entry);
    lookAt(due);
    return entry;
  }

  void remove(Entry entry) {
    entries.remove(entry);
  }

  private void lookAt(long due) {
    long next = nextLook.get();
    while (due < next) {
      if (nextLook.compareAndSet(next, due)) {
        timer = Timers.at(due, this::look);
        return;
      }
      next = nextLook.get();
    }
  }

  private void look() {
    nextLook.set(Clock.NONE);
    Map<Hold.Keeper, List<Due>> due = new LinkedHashMap<>();
    for (Entry entry = entries.ceiling(new Entry(0, 0, null)); entry != null; entry = entries.higher(entry)) {
      if (entry.due > Clock.now()) {
        lookAt(entry.due);
        break;
      }
      entries.remove(entry);
      Lease.Renewal renewal = entry.hold.look();
      if (renewal != null) {
        due.computeIfAbsent(entry.hold.keeper, keeper -> new ArrayList<>()).add(new Due(entry.hold, renewal));
      }
    }
    if (!isClosed) {
      due.forEach(Hold.Keeper::renew);
    }
  }

  /** Renews nothing more. Holds that are over still end. */
  void close() {
    isClosed = true;
    Future<?> next = timer;
    if (next != null && entries.isEmpty()) {
      next.cancel(false);
    }
  }
}
