package example.slock;

import java.time.Duration;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;

/** What threads hold of one key, and how often: the state of the views. Only its own thread changes an entry. */
final class ThreadHolds {
  /** What a thread holds. It may read while it writes. */
  private record Held(Hold hold, int[] counts) {
    int count(Mode mode) {
      return counts[mode.ordinal()];
    }

    void add(Mode mode, int change) {
      counts[mode.ordinal()] += change;
    }
  }

  private record Owner(String key, Thread thread) {}

  /** Of all keys of one {@link Locks}. */
  private final Map<Object, Object> all;
  private final Locks locks;
  final String key;

  ThreadHolds(Locks locks, String key, ConcurrentHashMap<Object, Object> all) {
    this.locks = locks;
    this.key = key;
    this.all = all;
  }

  /** What this thread holds, or null. What was lost is held no more. */
  private Held held() {
    Owner owner = new Owner(key, Thread.currentThread());
    Held held = (Held) all.get(owner);
    if (held != null && held.hold.update(lease -> {}) != null) {
      all.remove(owner);
      return null;
    }
    return held;
  }

  Hold hold() {
    Held held = held();
    return held == null ? null : held.hold;
  }

  int count(Mode mode) {
    Held held = held();
    return held == null ? 0 : held.count(mode);
  }

  /** Locks once more, if this thread holds the lock so that it may. */
  private boolean again(Mode mode, Duration lease) {
    Held held = held();
    if (held == null || mode == Mode.WRITE && held.count(Mode.WRITE) == 0) {
      return false;
    }
    if (lease != null) {
      held.hold.extend(lease);
    }
    held.add(mode, 1);
    return true;
  }

  private Request request(Mode mode, Duration lease) {
    if (mode == Mode.WRITE && held() != null) {
      throw new IllegalMonitorStateException("this thread reads " + key + ": it would wait for itself");
    }
    Request request = mode == Mode.READ ? locks.read(key) : locks.write(key);
    return lease == null ? request : request.ttl(lease).renew(false);
  }

  private boolean keep(Mode mode, Hold hold) {
    if (hold == null) {
      return false;
    }
    Held held = new Held(hold, new int[Mode.values().length]);
    held.add(mode, 1);
    Owner owner = new Owner(key, Thread.currentThread());
    all.put(owner, held);
    hold.onEnd(problem -> all.remove(owner, held)); // the thread may have ended
    return true;
  }

  void lock(Mode mode, Duration lease) {
    if (!again(mode, lease)) {
      keep(mode, request(mode, lease).acquireUninterruptibly());
    }
  }

  boolean tryLock(Mode mode) {
    if (again(mode, null)) {
      return true;
    }
    if (held() != null) {
      return false; // it reads, and would write
    }
    return keep(mode, request(mode, null).tryAcquireUninterruptibly());
  }

  /** Tells whether it was locked within the wait; null: without limit. */
  boolean lockInterruptibly(Mode mode, Duration wait, Duration lease) throws InterruptedException {
    if (Thread.interrupted()) {
      throw new InterruptedException();
    }
    if (again(mode, lease)) {
      return true;
    }
    try {
      if (wait != null && held() != null) {
        return false; // it reads, and would write: no wait helps
      }
      Request request = request(mode, lease);
      return keep(mode, (wait == null ? request : request.waitFor(wait.isNegative() ? Duration.ZERO : wait)).acquire());
    } catch (SlockException.TimedOut e) {
      if (wait == null || e.getCause() != null) {
        throw e; // the server was not in reach
      }
      return false;
    }
  }

  void unlock(Mode mode) {
    Owner owner = new Owner(key, Thread.currentThread());
    Held held = (Held) all.get(owner);
    if (held == null || held.count(mode) == 0) {
      throw new IllegalMonitorStateException("this thread does not hold " + key);
    }
    try {
      held.hold.check();
      held.add(mode, -1);
      if (held.count(Mode.READ) + held.count(Mode.WRITE) == 0) {
        all.remove(owner);
        held.hold.close();
      } else if (held.count(Mode.WRITE) == 0 && held.hold.mode() == Mode.WRITE) {
        held.hold.downgrade();
      }
    } catch (SlockException.Lost | SlockException.NotHeld e) {
      all.remove(owner);
      throw (IllegalMonitorStateException) new IllegalMonitorStateException(e.getMessage()).initCause(e);
    }
  }

  boolean isLocked(Mode mode) {
    return locks.info(key).mode() == mode || count(mode) > 0;
  }

  long remaining() {
    Status.Info info = locks.info(key);
    return info.mode() == Mode.FREE ? -2 : info.remaining().toMillis();
  }

  boolean forceUnlock(Mode mode) {
    Status.Info info = locks.info(key);
    if (info.mode() != mode) {
      return false;
    }
    all.forEach((owner, held) -> {
      if (((Owner) owner).key.equals(key) && ((Held) held).hold.update(lease -> {}) == null) {
        ((Held) held).hold.handOver(); // here, too, nobody holds it any more
      }
    });
    info.holders().forEach(holder -> locks.release(java.util.List.of(key), holder.token()));
    return true;
  }
}
