package example.slock;

import java.time.Duration;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.Lock;

/**
 * A lock as {@link java.util.concurrent.locks.Lock}, with the meaning of Redisson's {@code RLock}: the owner is a thread, and
 * may lock several times; as many unlocks release. A lock with a lease time is not renewed. Made by {@link Locks#lock} and
 * {@link ReadWriteLockView}; two views of one key by the same {@link Locks} are one.
 */
public final class LockView implements Lock {
  private final ThreadHolds holds;
  private final Mode mode;

  LockView(ThreadHolds holds, Mode mode) {
    this.holds = holds;
    this.mode = mode;
  }

  /** The key. */
  public String getName() {
    return holds.key;
  }

  /** Waits, also when interrupted: then the thread stays interrupted. The lock is renewed while it is held. */
  @Override
  public void lock() {
    holds.lock(mode, null);
  }

  /** As {@link #lock()}; the lock ends after the lease time, without renewal. */
  public void lock(long leaseTime, TimeUnit unit) {
    holds.lock(mode, Duration.of(leaseTime, unit.toChronoUnit()));
  }

  @Override
  public void lockInterruptibly() throws InterruptedException {
    holds.lockInterruptibly(mode, null, null);
  }

  /** As {@link #lockInterruptibly()}; the lock ends after the lease time, without renewal. */
  public void lockInterruptibly(long leaseTime, TimeUnit unit) throws InterruptedException {
    holds.lockInterruptibly(mode, null, Duration.of(leaseTime, unit.toChronoUnit()));
  }

  @Override
  public boolean tryLock() {
    return holds.tryLock(mode);
  }

  @Override
  public boolean tryLock(long time, TimeUnit unit) throws InterruptedException {
    return holds.lockInterruptibly(mode, Duration.of(time, unit.toChronoUnit()), null);
  }

  /** As {@link #tryLock(long, TimeUnit)}; the lock ends after the lease time, without renewal. */
  public boolean tryLock(long waitTime, long leaseTime, TimeUnit unit) throws InterruptedException {
    return holds.lockInterruptibly(mode, Duration.of(waitTime, unit.toChronoUnit()),
        Duration.of(leaseTime, unit.toChronoUnit()));
  }

  /**
   * Unlocks once.
   *
   * @throws IllegalMonitorStateException if this thread does not hold the lock, or has lost it
   */
  @Override
  public void unlock() {
    holds.unlock(mode);
  }

  /** There is none. */
  @Override
  public Condition newCondition() {
    throw new UnsupportedOperationException();
  }

  /** Whether anybody holds the lock in this mode; asks the server. */
  public boolean isLocked() {
    return holds.isLocked(mode);
  }

  /** Asks no server: a thread that has lost the lock does not hold it. */
  public boolean isHeldByCurrentThread() {
    return getHoldCount() > 0;
  }

  /** How often this thread has locked and not unlocked it. */
  public int getHoldCount() {
    return holds.count(mode);
  }

  /** Until the deadline of the last holder, in ms; -2 when nobody holds the lock. Asks the server. */
  public long remainTimeToLive() {
    return holds.remaining();
  }

  /** Releases the lock, whoever holds it, and tells whether somebody did. */
  public boolean forceUnlock() {
    return holds.forceUnlock(mode);
  }

  /** The hold of this thread, for its fence; null without one. */
  public Hold hold() {
    return holds.hold();
  }
}
