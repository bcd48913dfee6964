package example.slock;

import java.util.List;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.LockSupport;

/** What goes on in one {@link Locks} or {@link Quorum}, so that it can be closed. */
final class Running {
  /** What can be given up. */
  interface One {
    void cancel(Throwable why);
  }

  /** How much is sent in the background. */
  final AtomicInteger background = new AtomicInteger();
  private final Set<One> all = ConcurrentHashMap.newKeySet();
  private volatile boolean isEnding;

  boolean isEnding() {
    return isEnding;
  }

  /** Notes one that goes on, until it ends. */
  void add(One one) {
    all.add(one);
    if (isEnding) {
      one.cancel(new SlockException.Closed());
    }
  }

  void remove(One one) {
    all.remove(one);
  }

  /** Gives up all, and waits until nothing goes on, until then at the latest. */
  void end(long end) {
    isEnding = true;
    List.copyOf(all).forEach(one -> one.cancel(new SlockException.Closed()));
    while (background.get() + all.size() > 0 && Clock.now() < end) {
      LockSupport.parkNanos(Clock.MS);
    }
  }
}
