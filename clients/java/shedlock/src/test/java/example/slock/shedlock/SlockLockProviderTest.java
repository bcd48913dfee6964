package example.slock.shedlock;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import example.slock.Locks;
import example.slock.testing.MemoryServer;
import java.time.Duration;
import java.time.Instant;
import net.javacrumbs.shedlock.core.DefaultLockingTaskExecutor;
import net.javacrumbs.shedlock.core.LockConfiguration;
import net.javacrumbs.shedlock.core.LockExtender;
import org.junit.jupiter.api.Test;

class SlockLockProviderTest {
  private final MemoryServer server = new MemoryServer();
  private final Locks locks = server.locks();

  private void run(Runnable task) {
    new DefaultLockingTaskExecutor(new SlockLockProvider(locks))
        .executeWithLock(task, new LockConfiguration(Instant.now(), "task", Duration.ofSeconds(60), Duration.ZERO));
  }

  private static void extend(int lockAtLeastFor) {
    LockExtender.extendActiveLock(Duration.ofSeconds(90), Duration.ofSeconds(lockAtLeastFor));
  }

  @Test
  void anExtensionHasALockAtLeastFor() {
    run(() -> extend(30));
    Duration left = locks.info("task").remaining();
    assertTrue(left.toSeconds() > 5 && left.toSeconds() <= 30, left::toString);
  }

  @Test
  void aLockThatIsExtendedEndsWithItsTask() {
    run(() -> {
      extend(60);
      extend(0);
      assertTrue(locks.info("task").remaining().toSeconds() > 60);
    });
    assertTrue(server.holders("task").isEmpty());
  }

  @Test
  void aLockThatIsGoneCannotBeExtended() {
    run(() -> {
      server.lose("task");
      assertThrows(LockExtender.LockCanNotBeExtendedException.class, () -> extend(0));
    });
  }

  @Test
  void theErrorOfATaskCountsIfItsLockIsGone() {
    RuntimeException mine = new RuntimeException();
    assertEquals(mine, assertThrows(RuntimeException.class, () -> run(() -> {
      server.lose("task");
      throw mine;
    })));
  }
}
