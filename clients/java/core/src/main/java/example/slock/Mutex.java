package example.slock;

import java.util.concurrent.locks.ReentrantLock;
import java.util.function.Supplier;

/** What only one thread does at a time. It is no {@code synchronized}, which would pin a virtual thread. */
final class Mutex {
  private final ReentrantLock lock = new ReentrantLock();

  void run(Runnable work) {
    get(() -> {
      work.run();
      return null;
    });
  }

  <T> T get(Supplier<T> work) {
    lock.lock();
    try {
      return work.get();
    } finally {
      lock.unlock();
    }
  }
}
