package example.slock;

import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.Lock;

/**
 * A lock as {@link java.util.concurrent.locks.Lock}, with the meaning of Redisson's {@code RLock}: the owner is a thread, and
 * may lock several times; as many unlocks release. A lock with a lease time is not renewed. Made by {@link Locks#lock} and
 * {@link ReadWriteLockView}; two views of one key by the same {@link Locks} are one.
 */
public final class LockView implements Lock {
  record Owner(String key, Thread thread) {}

  /** What a thread holds, and how often by mode: it may read while it writes. Only this thread changes it. */
  record Held(Hold hold, int[] counts) {
    boolean isLive() {
      return hold.problem() == null;
    }
  }

  private final Locks locks;
  private final String key;
  private final Mode mode;
  /** Of all views of the locks. */
  private final Map<Owner, Held> all;

  LockView(Locks locks, String key, Mode mode, Map<Owner, Held> all) {
    this.locks = locks;
    this.key = key;
    this.mode = mode;
    this.all = all;
  }

  private Owner owner() {
    return new Owner(key, Thread.currentThread());
  }

  /** What this thread holds, or null. What was lost is held no more. */
  private Held held() {
    Held held = all.get(owner());
    return held != null && held.isLive() ? held : null;
  }

  private static int count(Held held, Mode mode) {
    return held == null ? 0 : held.counts[mode.ordinal()];
  }

  /** Locks once more, if this thread holds the lock so that it may. */
  private boolean again(Duration lease) {
    Held held = held();
    if (held == null || mode == Mode.WRITE && count(held, Mode.WRITE) == 0) {
      return false;
    }
    if (lease != null) {
      held.hold.extend(lease);
    }
    held.counts[mode.ordinal()]++;
    return true;
  }

  private Request request(Duration lease) {
    if (mode == Mode.WRITE && held() != null) {
      throw new IllegalMonitorStateException("this thread reads " + key + ": it would wait for itself");
    }
    Request request = mode == Mode.READ ? locks.read(key) : locks.write(key);
    return lease == null ? request : request.ttl(lease).renew(false);
  }

  private boolean keep(Hold hold) {
    if (hold == null) {
      return false;
    }
    Held held = new Held(hold, new int[Mode.values().length]);
    held.counts[mode.ordinal()] = 1;
    Owner owner = owner();
    all.put(owner, held);
    hold.onEnd(problem -> all.remove(owner, held));
    return true;
  }

  private void lock(Duration lease) {
    if (!again(lease)) {
      keep(request(lease).acquireUninterruptibly());
    }
  }

  /** Tells whether it was locked within the wait; null: without limit. */
  private boolean lockInterruptibly(Duration wait, Duration lease) throws InterruptedException {
    if (Thread.interrupted()) {
      throw new InterruptedException();
    }
    if (again(lease)) {
      return true;
    }
    if (wait != null && held() != null) {
      return false; // it reads, and would write: no wait helps
    }
    try {
      Request request = request(lease);
      return keep((wait == null ? request : request.waitFor(wait.isNegative() ? Duration.ZERO : wait)).acquire());
    } catch (SlockException.TimedOut e) {
      if (wait == null || e.getCause() != null) {
        throw e; // the server was not in reach
      }
      return false;
    }
  }

  private static Duration of(long time, TimeUnit unit) {
    return Duration.of(time, unit.toChronoUnit());
  }

  /** The key. */
  public String getName() {
    return key;
  }

  /** Waits, also when interrupted: then the thread stays interrupted. The lock is renewed while it is held. */
  @Override
  public void lock() {
    lock(null);
  }

  /** As {@link #lock()}; the lock ends after the lease time, without renewal. */
  public void lock(long leaseTime, TimeUnit unit) {
    lock(of(leaseTime, unit));
  }

  @Override
  public void lockInterruptibly() throws InterruptedException {
    lockInterruptibly(null, null);
  }

  /** As {@link #lockInterruptibly()}; the lock ends after the lease time, without renewal. */
  public void lockInterruptibly(long leaseTime, TimeUnit unit) throws InterruptedException {
    lockInterruptibly(null, of(leaseTime, unit));
  }

  @Override
  public boolean tryLock() {
    if (again(null)) {
      return true;
    }
    return held() == null && keep(request(null).acquireUninterruptibly(true)); // else it reads, and would write
  }

  @Override
  public boolean tryLock(long time, TimeUnit unit) throws InterruptedException {
    return lockInterruptibly(of(time, unit), null);
  }

  /** As {@link #tryLock(long, TimeUnit)}; the lock ends after the lease time, without renewal. */
  public boolean tryLock(long waitTime, long leaseTime, TimeUnit unit) throws InterruptedException {
    return lockInterruptibly(of(waitTime, unit), of(leaseTime, unit));
  }

  /**
   * Unlocks once.
   *
   * @throws IllegalMonitorStateException if this thread does not hold the lock, or has lost it
   */
  @Override
  public void unlock() {
    Held held = all.get(owner());
    if (count(held, mode) == 0) {
      throw new IllegalMonitorStateException("this thread does not hold " + key);
    }
    try {
      held.hold.check();
      held.counts[mode.ordinal()]--;
      if (count(held, Mode.READ) + count(held, Mode.WRITE) == 0) {
        held.hold.close();
      } else if (count(held, Mode.WRITE) == 0 && held.hold.mode() == Mode.WRITE) {
        held.hold.downgrade();
      }
    } catch (SlockException.Lost | SlockException.NotHeld e) {
      throw (IllegalMonitorStateException) new IllegalMonitorStateException(e.getMessage()).initCause(e);
    }
  }

  /** There is none. */
  @Override
  public Condition newCondition() {
    throw new UnsupportedOperationException();
  }

  /** Whether anybody holds the lock in this mode; asks the server. */
  public boolean isLocked() {
    return locks.info(key).mode() == mode || isHeldByCurrentThread();
  }

  /** Asks no server: a thread that has lost the lock does not hold it. */
  public boolean isHeldByCurrentThread() {
    return getHoldCount() > 0;
  }

  /** How often this thread has locked and not unlocked it. */
  public int getHoldCount() {
    return count(held(), mode);
  }

  /** Until the deadline of the last holder, in ms; -2 when nobody holds the lock. Asks the server. */
  public long remainTimeToLive() {
    Status.Info info = locks.info(key);
    return info.mode() == Mode.FREE ? -2 : info.remaining().toMillis();
  }

  /** Releases the lock, whoever holds it, and tells whether somebody did. */
  public boolean forceUnlock() {
    Status.Info info = locks.info(key);
    if (info.mode() != mode) {
      return false;
    }
    all.forEach((owner, held) -> {
      if (owner.key.equals(key) && held.isLive()) {
        held.hold.handOver(); // here, too, nobody holds it any more
      }
    });
    info.holders().forEach(holder -> locks.release(List.of(key), holder.token()));
    return true;
  }

  /** The hold of this thread, for its fence; null without one. */
  public Hold hold() {
    Held held = held();
    return held == null ? null : held.hold;
  }
}
