package example.slock.agent;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import example.slock.LockView;
import example.slock.Locks;
import example.slock.Options;
import example.slock.ReadWriteLockView;
import example.slock.SlockException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.FutureTask;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/**
 * What Redisson's tests of RLock and RReadWriteLock show, against the views. Each test has the name of theirs; REDISSON.md
 * says which are not here. Times are shorter, and conditions are waited for.
 */
@Timeout(120)
class RedissonTest {
  private static final Duration TTL = Duration.ofSeconds(2);
  private static final LettuceBase LETTUCE = new LettuceBase();

  private TestServer server;
  private Locks locks;
  private Locks others;

  @BeforeEach
  void start() throws Exception {
    server = new TestServer();
    locks = open(LETTUCE);
    others = open(new JedisBase());
    server.until("the classes to be loaded", () -> locks.info("lock").waiters() + others.info("lock").waiters() == 0);
  }

  @AfterEach
  void stop() throws Exception {
    locks.close();
    others.close();
    server.close();
  }

  private Locks open(Base base) {
    Request r = new Request();
    r.op = "open";
    r.nodes = List.of("127.0.0.1:" + server.port);
    return base.open(r, new Options().ttl(TTL)).locks();
  }

  private static <T> FutureTask<T> start(Callable<T> work) {
    FutureTask<T> task = new FutureTask<>(work);
    new Thread(task, "test-other").start();
    return task;
  }

  /** The result of work in another thread. */
  private static <T> T elsewhere(Callable<T> work) throws Exception {
    return start(work).get(60, TimeUnit.SECONDS);
  }

  private static void all(int threads, Callable<Void> work) throws Exception {
    List<FutureTask<Void>> tasks = new ArrayList<>();
    for (int n = 0; n < threads; n++) {
      tasks.add(start(work));
    }
    for (FutureTask<Void> task : tasks) {
      task.get(60, TimeUnit.SECONDS);
    }
  }

  private static void sleep(long ms) throws InterruptedException {
    Thread.sleep(ms); // as long as somebody works, or a lease lasts: there is nothing to wait for
  }

  // --- RLock

  @Test
  void testSubscriptionsPerConnection() throws Exception {
    AtomicInteger done = new AtomicInteger();
    all(32, () -> {
      for (int n = 0; n < 20; n++) {
        LockView lock = locks.lock("lock-" + ThreadLocalRandom.current().nextInt(5));
        lock.lock();
        done.incrementAndGet();
        lock.unlock();
      }
      return null;
    });
    assertEquals(32 * 20, done.get());
    assertTrue(server.connections("pubsub") <= 1);
  }

  @Test
  void testSinglePubSub() throws Exception {
    AtomicInteger number = new AtomicInteger();
    all(4, () -> {
      LockView lock = locks.lock("Lock" + number.incrementAndGet() % 2);
      assertTrue(lock.tryLock(5, TimeUnit.SECONDS));
      lock.unlock();
      return null;
    });
  }

  @Test
  void testLockIsNotRenewedAfterInterruptedTryLock() throws Exception {
    LockView lock = locks.lock("lock");
    CountDownLatch begun = new CountDownLatch(1);
    Thread thread = new Thread(() -> {
      begun.countDown();
      if (lock.tryLock()) {
        lock.unlock();
      }
    });
    thread.start();
    begun.await();
    thread.interrupt();
    thread.join(30_000);
    server.until("the lock to be free", () -> !lock.isLocked());
  }

  @Test
  void testRedisFailed() throws Exception {
    LockView lock = locks.lock("lock");
    server.close();
    SlockException.NoAnswer error =
        assertThrows(SlockException.NoAnswer.class, () -> lock.tryLock(5, 10, TimeUnit.SECONDS));
    assertTrue(error.getMessage().toLowerCase().contains("connect"), error.getMessage());
    server = new TestServer();
  }

  @Test
  void testRemainTimeToLive() {
    LockView lock = locks.lock("lock");
    lock.lock(1, TimeUnit.HOURS);
    assertTrue(lock.remainTimeToLive() > TimeUnit.MINUTES.toMillis(59));
    lock.unlock();
    assertEquals(-2, lock.remainTimeToLive());
    lock.lock();
    assertTrue(lock.remainTimeToLive() <= TTL.toMillis() && lock.remainTimeToLive() > 0);
    lock.unlock();
  }

  @Test
  void testRemainTimeToLive2() {
    LockView lock = locks.lock("lock");
    for (int n = 0; n < 3; n++) {
      lock.lock(10, TimeUnit.SECONDS);
    }
    lock.unlock();
    lock.unlock();
    assertTrue(lock.remainTimeToLive() > 5000);
    assertTrue(lock.isHeldByCurrentThread());
    lock.unlock();
  }

  @Test
  void testTryLockWait() throws Exception {
    LockView held = others.lock("lock");
    held.lock();
    long began = System.nanoTime();
    assertFalse(locks.lock("lock").tryLock(500, TimeUnit.MILLISECONDS));
    long ms = (System.nanoTime() - began) / 1_000_000;
    assertTrue(ms >= 490 && ms < 1500, ms + " ms");
    held.unlock();
  }

  @Test
  void testLockUninterruptibly() throws Exception {
    LockView held = locks.lock("lock");
    held.lock();
    CountDownLatch locked = new CountDownLatch(1);
    boolean[] wasInterrupted = new boolean[1];
    Thread thread = new Thread(() -> {
      LockView lock = locks.lock("lock");
      lock.lock();
      wasInterrupted[0] = Thread.currentThread().isInterrupted();
      lock.unlock();
      locked.countDown();
    });
    thread.start();
    server.until("it to wait", () -> server.slock("slock_waiters") == 1);
    thread.interrupt();
    assertFalse(locked.await(300, TimeUnit.MILLISECONDS));
    held.unlock();
    assertTrue(locked.await(30, TimeUnit.SECONDS));
    assertTrue(wasInterrupted[0]);
  }

  @Test
  void testForceUnlock() throws Exception {
    LockView lock = locks.lock("lock");
    lock.lock();
    assertTrue(lock.forceUnlock());
    assertFalse(lock.isLocked());
    assertFalse(lock.isHeldByCurrentThread());
    assertFalse(locks.lock("lock").forceUnlock());
    assertThrows(IllegalMonitorStateException.class, lock::unlock);
    others.lock("lock").lock();
    assertTrue(lock.forceUnlock());
    lock.lock();
    lock.unlock();
  }

  @Test
  void testExpire() throws Exception {
    LockView lock = locks.lock("lock");
    lock.lock(1, TimeUnit.SECONDS);
    long began = System.nanoTime();
    elsewhere(() -> {
      LockView other = locks.lock("lock");
      other.lock();
      other.unlock();
      return null;
    });
    long ms = (System.nanoTime() - began) / 1_000_000;
    assertTrue(ms > 800 && ms < 3000, ms + " ms");
    assertThrows(IllegalMonitorStateException.class, lock::unlock);
  }

  @Test
  void testAutoExpire() throws Exception {
    elsewhere(() -> {
      others.lock("lock").lock();
      return null;
    });
    assertTrue(locks.lock("lock").isLocked());
    others.close(); // the watchdog of a process that has ended
    server.until("the lock to expire", () -> !locks.lock("lock").isLocked());
  }

  @Test
  void testGetHoldCount() {
    LockView lock = locks.lock("lock");
    assertEquals(0, lock.getHoldCount());
    lock.lock();
    lock.lock();
    assertEquals(2, locks.lock("lock").getHoldCount());
    lock.unlock();
    assertEquals(1, lock.getHoldCount());
    lock.unlock();
    assertEquals(0, lock.getHoldCount());
  }

  @Test
  void testIsHeldByCurrentThread() throws Exception {
    LockView lock = locks.lock("lock");
    assertFalse(lock.isHeldByCurrentThread());
    lock.lock();
    assertTrue(lock.isHeldByCurrentThread());
    assertFalse(elsewhere(() -> locks.lock("lock").isHeldByCurrentThread()));
    assertFalse(others.lock("lock").isHeldByCurrentThread());
    lock.unlock();
    assertFalse(lock.isHeldByCurrentThread());
  }

  @Test
  void testIsLocked() throws Exception {
    LockView lock = locks.lock("lock");
    assertFalse(lock.isLocked());
    lock.lock();
    assertTrue(lock.isLocked());
    assertTrue(elsewhere(() -> others.lock("lock").isLocked()));
    lock.unlock();
    assertFalse(lock.isLocked());
    assertFalse(elsewhere(() -> others.lock("lock").isLocked()));
  }

  @Test
  void testUnlockFail() throws Exception {
    LockView lock = locks.lock("lock");
    assertThrows(IllegalMonitorStateException.class, lock::unlock);
    CountDownLatch done = new CountDownLatch(1);
    CountDownLatch locked = new CountDownLatch(1);
    FutureTask<Void> owner = start(() -> {
      lock.lock();
      locked.countDown();
      done.await();
      lock.unlock();
      return null;
    });
    locked.await();
    assertThrows(IllegalMonitorStateException.class, lock::unlock);
    done.countDown();
    owner.get(30, TimeUnit.SECONDS);
  }

  @Test
  void testLockUnlock() {
    LockView lock = locks.lock("lock");
    for (int n = 0; n < 2; n++) {
      lock.lock();
      lock.unlock();
    }
    assertThrows(UnsupportedOperationException.class, lock::newCondition);
    assertNull(lock.hold());
  }

  @Test
  void testReentrancy() throws Exception {
    LockView lock = locks.lock("lock");
    assertTrue(lock.tryLock());
    assertTrue(lock.tryLock());
    lock.unlock();
    lock.unlock();
    assertTrue(lock.tryLock(Long.MAX_VALUE, -1, TimeUnit.DAYS)); // no lease
    lock.lock(-1, TimeUnit.SECONDS);
    lock.unlock();
    sleep(TTL.toMillis() + 500); // it is renewed
    assertFalse(elsewhere(() -> locks.lock("lock").tryLock()));
    assertFalse(elsewhere(() -> others.lock("lock").tryLock()));
    lock.unlock();
  }

  @Test
  void testConcurrencyTryLockUnLock() throws Exception {
    all(16, () -> {
      for (int n = 0; n < 100; n++) {
        LockView lock = locks.lock("lock");
        if (lock.tryLock()) {
          lock.unlock();
        }
      }
      return null;
    });
    assertFalse(locks.lock("lock").isLocked());
  }

  @Test
  void testConcurrency() throws Exception { // _SingleInstance, Loop_MultiInstance and _MultiInstance
    int[] counter = new int[1];
    AtomicInteger number = new AtomicInteger();
    all(16, () -> {
      Locks own = number.incrementAndGet() % 2 == 0 ? locks : others;
      for (int n = 0; n < 25; n++) {
        own.lock("lock").lock();
        counter[0]++; // plain: the lock protects it
        own.lock("lock").unlock();
      }
      return null;
    });
    assertEquals(16 * 25, counter[0]);
  }

  // --- RReadWriteLock

  @Test
  void testReadLockExpiration() throws Exception {
    CountDownLatch reading = new CountDownLatch(2);
    for (int lease : new int[] {1500, 400}) {
      start(() -> {
        locks.readWriteLock("rw").readLock().lock(lease, TimeUnit.MILLISECONDS);
        reading.countDown();
        return null;
      });
    }
    reading.await();
    long began = System.nanoTime();
    LockView write = locks.readWriteLock("rw").writeLock();
    write.lock();
    long ms = (System.nanoTime() - began) / 1_000_000;
    assertTrue(ms > 800 && ms < 5000, ms + " ms: until the longest lease has ended");
    write.unlock();
  }

  @Test
  void testReadLockIsLocked() throws Exception {
    ReadWriteLockView rw = locks.readWriteLock("rw");
    rw.writeLock().lock();
    assertFalse(rw.readLock().isLocked());
    assertTrue(rw.readLock().tryLock(10, TimeUnit.SECONDS));
    assertTrue(rw.readLock().isLocked());
    rw.readLock().unlock();
    rw.writeLock().unlock();
  }

  @Test
  void testReadLockExpirationRenewal() throws Exception {
    all(20, () -> {
      LockView read = locks.readWriteLock("rw").readLock();
      read.lock();
      sleep(TTL.toMillis() + 1000);
      read.unlock();
      return null;
    });
  }

  @Test
  void testName() throws Exception {
    LockView read = locks.readWriteLock("{test}:abc:key").readLock();
    all(10, () -> {
      for (int n = 0; n < 10; n++) {
        read.lock();
        read.unlock();
      }
      return null;
    });
    assertEquals("{test}:abc:key", read.getName());
  }

  @Test
  void testReadLockLeaseTimeoutDiffThreadsWRR() throws Exception {
    assertTrue(locks.readWriteLock("rw").writeLock().tryLock(1000, 700, TimeUnit.MILLISECONDS));
    all(2, () -> {
      LockView read = locks.readWriteLock("rw").readLock();
      read.lock();
      read.unlock();
      return null;
    });
  }

  @Test
  void testReadLockLeaseTimeoutDiffThreadsRRW() throws Exception {
    assertTrue(elsewhere(() -> locks.readWriteLock("rw").readLock().tryLock(1, 2, TimeUnit.SECONDS)));
    elsewhere(() -> {
      LockView read = locks.readWriteLock("rw").readLock();
      assertTrue(read.tryLock(1, 10, TimeUnit.SECONDS));
      read.unlock();
      return null;
    });
    assertTrue(elsewhere(() -> locks.readWriteLock("rw").writeLock().tryLock(10, 1, TimeUnit.SECONDS)));
  }

  @Test
  void testWR() {
    ReadWriteLockView rw = locks.readWriteLock("rw");
    rw.writeLock().lock();
    rw.readLock().lock();
    assertTrue(rw.writeLock().isLocked());
    rw.readLock().unlock();
    assertTrue(rw.writeLock().isLocked());
    rw.writeLock().unlock();
    assertFalse(rw.writeLock().isLocked());
  }

  @Test
  void testWriteRead() throws Exception {
    ReadWriteLockView rw = locks.readWriteLock("rw");
    rw.writeLock().lock();
    CountDownLatch together = new CountDownLatch(20);
    List<FutureTask<Void>> readers = new ArrayList<>();
    for (int n = 0; n < 20; n++) {
      readers.add(start(() -> {
        rw.readLock().lock();
        together.countDown();
        assertTrue(together.await(30, TimeUnit.SECONDS), "all read at once");
        rw.readLock().unlock();
        return null;
      }));
    }
    server.until("all to wait", () -> server.slock("slock_waiters") == 20);
    rw.writeLock().unlock();
    for (FutureTask<Void> reader : readers) {
      reader.get(30, TimeUnit.SECONDS);
    }
  }

  @Test
  void testWriteReadReentrancy() throws Exception {
    ReadWriteLockView rw = locks.readWriteLock("rw");
    rw.writeLock().lock();
    assertTrue(rw.readLock().tryLock());
    assertFalse(elsewhere(() -> rw.readLock().tryLock()));
    rw.writeLock().unlock(); // it reads on, and others may read now
    assertTrue(elsewhere(() -> rw.readLock().tryLock(5, 1, TimeUnit.SECONDS)));
    assertFalse(rw.writeLock().tryLock());
    rw.readLock().unlock();
    server.until("the other's lease to end", () -> rw.writeLock().tryLock());
    rw.writeLock().unlock();
  }

  @Test
  void testWriteLock() throws Exception {
    ReadWriteLockView rw = locks.readWriteLock("rw");
    LockView write = rw.writeLock();
    write.lock();
    assertTrue(rw.writeLock().tryLock());
    elsewhere(() -> {
      assertFalse(write.isHeldByCurrentThread());
      assertTrue(write.isLocked());
      assertFalse(rw.readLock().tryLock());
      return null;
    });
    write.unlock();
    assertTrue(rw.readLock().tryLock());
    assertTrue(write.isHeldByCurrentThread());
    write.unlock();
    assertFalse(write.isHeldByCurrentThread());
    assertFalse(write.isLocked());
    elsewhere(() -> {
      assertTrue(rw.readLock().tryLock());
      rw.readLock().unlock();
      return null;
    });
    assertFalse(rw.writeLock().tryLock());
    rw.readLock().unlock();
  }

  @Test
  void testMultiRead() throws Exception {
    ReadWriteLockView rw = locks.readWriteLock("rw");
    assertFalse(rw.readLock().forceUnlock());
    rw.readLock().lock();
    assertFalse(rw.writeLock().tryLock());
    CountDownLatch reads = new CountDownLatch(1);
    CountDownLatch done = new CountDownLatch(1);
    FutureTask<Void> other = start(() -> {
      assertFalse(rw.readLock().isHeldByCurrentThread());
      rw.readLock().lock();
      reads.countDown();
      done.await();
      rw.readLock().unlock();
      return null;
    });
    assertTrue(reads.await(30, TimeUnit.SECONDS));
    rw.readLock().unlock();
    assertTrue(rw.readLock().isLocked());
    assertFalse(rw.writeLock().tryLock());
    done.countDown();
    other.get(30, TimeUnit.SECONDS);
    assertFalse(rw.readLock().isLocked());
    assertTrue(rw.writeLock().tryLock());
    assertTrue(rw.writeLock().isLocked());
    rw.writeLock().unlock();
    assertFalse(rw.writeLock().isLocked());
  }

  @Test
  void testForceUnlockOfReadersAndWriters() { // testForceUnlock
    ReadWriteLockView rw = locks.readWriteLock("rw");
    rw.readLock().lock();
    assertFalse(rw.writeLock().forceUnlock());
    assertTrue(rw.readLock().isLocked());
    for (int n = 0; n < 250; n++) {
      server.plain.call(0, "SLOCK.RLOCK", "rw", "reader" + n, "60000");
    }
    assertTrue(rw.readLock().forceUnlock());
    assertFalse(rw.readLock().isLocked());
    rw.writeLock().lock();
    assertFalse(rw.readLock().forceUnlock());
    assertTrue(rw.writeLock().isLocked());
    assertTrue(rw.writeLock().forceUnlock());
    assertFalse(rw.writeLock().isLocked());
  }

  @Test
  void testReadWriteTTL() throws Exception {
    ReadWriteLockView rw = locks.readWriteLock("rw");
    rw.writeLock().lock();
    rw.readLock().lock();
    sleep(TTL.toMillis());
    assertTrue(rw.readLock().remainTimeToLive() > TTL.toMillis() / 3);
    assertTrue(rw.writeLock().remainTimeToLive() > TTL.toMillis() / 3);
    rw.writeLock().unlock();
    sleep(TTL.toMillis());
    assertTrue(rw.readLock().remainTimeToLive() > TTL.toMillis() / 3);
    rw.readLock().unlock();
  }

  @Test
  void testExpireReadAndWrite() throws Exception { // testExpireRead, testExpireWrite
    for (boolean reads : new boolean[] {true, false}) {
      ReadWriteLockView rw = locks.readWriteLock("rw" + reads);
      LockView lock = reads ? rw.readLock() : rw.writeLock();
      lock.lock(700, TimeUnit.MILLISECONDS);
      elsewhere(() -> {
        rw.writeLock().lock();
        rw.writeLock().unlock();
        return null;
      });
      assertThrows(IllegalMonitorStateException.class, lock::unlock);
    }
  }

  @Test
  void testHoldCount() {
    ReadWriteLockView rw = locks.readWriteLock("rw");
    for (LockView lock : List.of(rw.readLock(), rw.writeLock())) {
      assertEquals(0, lock.getHoldCount());
      lock.lock();
      assertEquals(1, lock.getHoldCount());
      lock.lock();
      assertEquals(2, lock.getHoldCount());
      lock.unlock();
      lock.unlock();
      assertEquals(0, lock.getHoldCount());
      assertThrows(IllegalMonitorStateException.class, lock::unlock);
    }
  }

  @Test
  void testConcurrencyOfReadersAndWriters() throws Exception {
    int[] counter = new int[1];
    AtomicInteger number = new AtomicInteger();
    all(16, () -> {
      ReadWriteLockView rw = (number.incrementAndGet() % 2 == 0 ? locks : others).readWriteLock("rw");
      for (int n = 0; n < 15; n++) {
        rw.writeLock().lock();
        counter[0]++;
        rw.writeLock().unlock();
        rw.readLock().lock();
        rw.readLock().unlock();
      }
      return null;
    });
    assertEquals(16 * 15, counter[0]);
  }
}
