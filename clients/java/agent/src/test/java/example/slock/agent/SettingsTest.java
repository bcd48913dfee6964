package example.slock.agent;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import example.slock.Hold;
import example.slock.LockView;
import example.slock.Locks;
import example.slock.Mode;
import example.slock.Options;
import example.slock.Request;
import example.slock.testing.MemoryServer;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** What options mean for requests that are given up, for views, and for holds. */
@Timeout(60)
class SettingsTest {
  private final MemoryServer memory = new MemoryServer();

  private static void untilWaiting(Locks locks, long count) throws Exception {
    for (long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(4); locks.info("{k}a").waiters() != count;) {
      assertTrue(System.nanoTime() < end, "waited for " + count + " in the queue");
      Thread.sleep(2);
    }
  }

  /** Both by a future that is cancelled and by a thread that is interrupted. */
  private static void giveUp(Locks locks) throws Exception {
    for (String[] keys : new String[][] {{"{k}a"}, {"{k}a", "{k}b"}}) {
      Request request = locks.write(keys).token("task");
      Hold other = locks.write(keys[keys.length - 1]).acquire();
      CompletableFuture<Hold> future = request.acquireAsync();
      untilWaiting(locks, 1);
      future.cancel(true);
      untilWaiting(locks, 0);
      Thread thread = new Thread(() -> assertThrows(InterruptedException.class, request::acquire));
      thread.start();
      untilWaiting(locks, 1);
      thread.interrupt();
      thread.join();
      untilWaiting(locks, 0);
      other.release();
      for (String key : keys) {
        locks.write(key).waitFor(Duration.ofSeconds(2)).acquire().release();
      }
    }
  }

  @Test
  void aWaitInMemoryWithATokenThatIsGivenUpIsGrantedToNobody() throws Exception {
    giveUp(memory.locks());
  }

  @Test
  void aLimitByDefaultIsForReaders() {
    try (Locks locks = new Locks(memory, new Options().limit(1))) {
      for (LockView view : List.of(locks.lock("a"), locks.readWriteLock("b").writeLock())) {
        view.lock();
        assertTrue(view.tryLock());
        view.unlock();
        view.unlock();
      }
      Hold hold = locks.read("a").acquire();
      assertFalse(locks.readWriteLock("a").readLock().tryLock());
      hold.upgrade();
      assertEquals(Mode.WRITE, hold.mode());
    } catch (InterruptedException e) {
      throw new AssertionError(e);
    }
  }

  @Test
  void aTokenByDefaultIsNotThatOfViews() throws Exception {
    try (Locks locks = new Locks(memory, new Options().token("task"))) {
      locks.lock("a").lock();
      assertFalse(CompletableFuture.supplyAsync(() -> locks.lock("a").tryLock()).get());
      locks.lock("a").unlock();
    }
  }

  /** When a message may have been missed, all holds that are renewed are extended. */
  @Test
  void aHoldThatIsNotRenewedIsNotConfirmed() throws Exception {
    try (Locks locks = memory.locks()) {
      Hold brief = locks.write("a").renew(false).acquire();
      Hold renewed = locks.write("b").acquire();
      Thread.sleep(500);
      Duration left = brief.remaining();
      memory.lose("b");
      while (!renewed.isLost()) {
        Thread.sleep(2);
      }
      Thread.sleep(100);
      assertTrue(brief.remaining().compareTo(left) < 0);
    }
  }
}
