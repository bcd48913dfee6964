package example.slock;

import java.util.List;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.locks.LockSupport;

/** What goes on, so that it can be ended: of one {@link Locks} or {@link Quorum}, or of one token of a quorum. */
final class Running {
  private final Set<Pending<?>> all = ConcurrentHashMap.newKeySet();
  private volatile boolean isEnding;

  boolean isEnding() {
    return isEnding;
  }

  /** Notes one, until it is done. */
  <T> Pending<T> add(Pending<T> one) {
    all.add(one);
    one.result().whenComplete((value, error) -> all.remove(one));
    if (isEnding) {
      one.cancel().accept(new SlockException.Closed());
    }
    return one;
  }

  /** Notes what is not given up, but waited for. */
  void addBackground(CompletableFuture<?> one) {
    add(new Pending<>(one, why -> {}));
  }

  /** Gives up all, and waits until nothing goes on, until then at the latest. */
  void end(long end) {
    isEnding = true;
    List.copyOf(all).forEach(one -> one.cancel().accept(new SlockException.Closed()));
    while (!all.isEmpty() && Clock.now() < end) {
      LockSupport.parkNanos(Clock.MS);
    }
  }
}
