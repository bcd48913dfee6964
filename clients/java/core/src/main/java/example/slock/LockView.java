// SPDX-License-Identifier: MIT OR Apache-2.0

package example.slock;

import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.Lock;

/**
 * A lock as {@link java.util.concurrent.locks.Lock}, with the meaning of Redisson's {@code RLock}: the owner is a thread, and
 * may lock several times; as many unlocks release. A lock with a lease time above 0 is not renewed, nor is one whose thread
 * has ended. Two views of the same keys by one {@link Locks} are one. In place of {@code lockAsync}, which has no thread to own
 * the lock, there is {@link Request#acquireAsync}.
 *
 * <p>If a renewed lock is lost, the next attempt of its thread to lock it throws {@link IllegalMonitorStateException}, whose
 * cause is the {@link SlockException.Lost}: work that was begun under the lock must not take a second one unawares. Later
 * attempts succeed. A lock whose lease time has passed can be locked again at once.
 */
public final class LockView implements Lock {
  /** What a thread holds, or has lost and not unlocked. Only this thread changes it. */
  static final class Held {
    private final Hold hold;
    /** How often it is locked by mode: the thread may read while it writes. */
    private final int[] counts = new int[Mode.values().length];
    /** The thread expects the end of the hold: the program has set its time, or locking has failed because of a loss. */
    private boolean isEndExpected;

    private Held(Hold hold) {
      this.hold = hold;
      isEndExpected = !hold.kept.settings.isRenewed;
    }
  }

  private final Locks locks;
  private final List<String> keys;
  private final Mode mode;

  LockView(Locks locks, List<String> keys, Mode mode) {
    this.locks = locks;
    this.keys = keys;
    this.mode = mode;
  }

  /** What this thread holds, or null. What was lost is held no more. */
  private Held held() {
    Held held = locks.owned.get().get(keys);
    return held != null && held.hold.kept.check() == null ? held : null;
  }

  private static IllegalMonitorStateException ended(SlockException problem) {
    return (IllegalMonitorStateException) new IllegalMonitorStateException(problem.getMessage()).initCause(problem);
  }

  private static int count(Held held, Mode mode) {
    return held == null ? 0 : held.counts[mode.ordinal()];
  }

  /** How a request is used. It may give nothing. */
  private interface Way<E extends Exception> {
    Hold use(Request request) throws E;
  }

  /**
   * Locks once more, or takes the lock, and tells whether it is locked. A thread that reads cannot lock for writing: it would
   * wait for itself.
   */
  private <E extends Exception> boolean lock(Duration lease, boolean isTry, Way<E> way) throws E {
    Map<List<String>, Held> mine = locks.owned.get();
    Held held = mine.get(keys);
    SlockException problem = held == null ? null : held.hold.kept.check();
    if (problem != null && !held.isEndExpected) {
      held.isEndExpected = true;
      throw ended(problem);
    } else if (held == null || problem != null) {
      Thread thread = Thread.currentThread();
      Request request = new Request(locks, keys, mode, locks.settings.with(s -> {
        s.thread = thread;
        s.token = null;
        s.limit = mode == Mode.WRITE ? null : s.limit;
      }));
      Hold hold = way.use(lease == null ? request : request.ttl(lease).renew(false));
      if (hold == null) {
        return false;
      }
      Held made = held = new Held(hold);
      mine.put(keys, made);
      if (made.isEndExpected) {
        hold.kept.onEnd(over -> mine.remove(keys, made));
      }
    } else if (mode == Mode.WRITE && count(held, Mode.WRITE) == 0) {
      if (isTry) {
        return false;
      }
      throw new IllegalMonitorStateException("this thread reads " + getName() + ": it would wait for itself");
    } else if (lease != null) {
      held.hold.extend(lease);
    }
    held.counts[mode.ordinal()]++;
    return true;
  }

  private boolean lockInterruptibly(Duration lease, boolean isTry, Way<InterruptedException> way) throws InterruptedException {
    if (Thread.interrupted()) {
      throw new InterruptedException();
    }
    return lock(lease, isTry, way);
  }

  private static Duration of(long time, TimeUnit unit) {
    return Duration.ofNanos(unit.toNanos(time));
  }

  /** As Redisson has it, the lock is renewed without a lease above 0. */
  private static Duration lease(long time, TimeUnit unit) {
    return time > 0 ? of(time, unit) : null;
  }

  /** The key, or the keys. */
  public String getName() {
    return String.join(", ", keys);
  }

  /** Waits, also if interrupted: then the thread stays interrupted. The lock is renewed while it is held. */
  @Override
  public void lock() {
    lock(0, TimeUnit.NANOSECONDS);
  }

  /** As {@link #lock()}; the lock ends after the lease time, without renewal. */
  public void lock(long leaseTime, TimeUnit unit) {
    lock(lease(leaseTime, unit), false, Request::acquireUninterruptibly);
  }

  @Override
  public void lockInterruptibly() throws InterruptedException {
    lockInterruptibly(0, TimeUnit.NANOSECONDS);
  }

  /** As {@link #lockInterruptibly()}; the lock ends after the lease time, without renewal. */
  public void lockInterruptibly(long leaseTime, TimeUnit unit) throws InterruptedException {
    lockInterruptibly(lease(leaseTime, unit), false, Request::acquire);
  }

  @Override
  public boolean tryLock() {
    return lock(null, true, request -> request.join(true));
  }

  @Override
  public boolean tryLock(long time, TimeUnit unit) throws InterruptedException {
    return tryLock(time, 0, unit);
  }

  /** As {@link #tryLock(long, TimeUnit)}; the lock ends after the lease time, without renewal. */
  public boolean tryLock(long waitTime, long leaseTime, TimeUnit unit) throws InterruptedException {
    return lockInterruptibly(lease(leaseTime, unit), true, request -> {
      try {
        return request.waitFor(of(Math.max(0, waitTime), unit)).acquire();
      } catch (SlockException.TimedOut e) {
        return null;
      }
    });
  }

  /**
   * Unlocks once.
   *
   * @throws IllegalMonitorStateException if this thread does not hold the lock, or has lost it
   */
  @Override
  public void unlock() {
    Map<List<String>, Held> mine = locks.owned.get();
    Held held = mine.get(keys);
    if (count(held, mode) == 0) {
      throw new IllegalMonitorStateException("this thread does not hold " + getName());
    }
    held.counts[mode.ordinal()]--;
    boolean isLast = count(held, Mode.READ) + count(held, Mode.WRITE) == 0;
    if (isLast) {
      mine.remove(keys);
    }
    try {
      held.hold.check();
      if (isLast) {
        held.hold.close();
      } else if (count(held, Mode.WRITE) == 0 && held.hold.mode() == Mode.WRITE) {
        held.hold.downgrade();
      }
    } catch (SlockException.Lost | SlockException.NotHeld e) {
      throw ended(e);
    }
  }

  /** There is none. */
  @Override
  public Condition newCondition() {
    throw new UnsupportedOperationException();
  }

  /** Whether anybody holds the lock (of several keys: of the first one by name) in this mode; asks the server. */
  public boolean isLocked() {
    return locks.info(keys.get(0)).mode() == mode || isHeldByCurrentThread();
  }

  /** Asks no server: a thread that has lost the lock does not hold it. */
  public boolean isHeldByCurrentThread() {
    return getHoldCount() > 0;
  }

  /** How often this thread has locked and not unlocked it. */
  public int getHoldCount() {
    return count(held(), mode);
  }

  /** Until the deadline of the last holder, in ms; -2 if nobody holds the lock. Asks the server. */
  public long remainTimeToLive() {
    Info info = locks.info(keys.get(0));
    return info.mode() == Mode.FREE ? -2 : info.remaining().toMillis();
  }

  /** Releases the lock, whoever holds it, and tells whether somebody did. */
  public boolean forceUnlock() {
    Info info = locks.info(keys.get(0));
    if (info.mode() != mode) {
      return false;
    }
    locks.owned.get().remove(keys);
    locks.holds.stream().filter(kept -> kept.settings.thread != null && kept.owner.names().equals(keys))
        .forEach(Kept::finish); // here, too, nobody holds it any more
    info.holders().forEach(holder -> locks.release(keys, holder.token()));
    return true;
  }

  /** The hold of this thread, for its fence; null without one. */
  public Hold hold() {
    Held held = held();
    return held == null ? null : held.hold;
  }
}
