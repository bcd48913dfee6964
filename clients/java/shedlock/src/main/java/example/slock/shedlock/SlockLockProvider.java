// SPDX-License-Identifier: MIT OR Apache-2.0

package example.slock.shedlock;

import example.slock.Hold;
import example.slock.Locks;
import java.time.Duration;
import java.util.Optional;
import net.javacrumbs.shedlock.core.ExtensibleLockProvider;
import net.javacrumbs.shedlock.core.LockConfiguration;
import net.javacrumbs.shedlock.core.SimpleLock;

/**
 * A lock provider of ShedLock. The lock of a task ends after lockAtMostFor, without renewal, or with the task, but not before
 * lockAtLeastFor. If it was gone before the end of the task, that is a {@link example.slock.SlockException.Lost}.
 */
public record SlockLockProvider(Locks locks) implements ExtensibleLockProvider {
  @Override
  public Optional<SimpleLock> lock(LockConfiguration task) {
    try {
      return locks.write(task.getName()).ttl(task.getLockAtMostFor()).atLeast(task.getLockAtLeastFor()).renew(false)
          .tryAcquire().map(TaskLock::new);
    } catch (InterruptedException e) {
      Thread.currentThread().interrupt();
      return Optional.empty();
    }
  }

  private record TaskLock(Hold hold) implements SimpleLock {
    @Override
    public void unlock() {
      hold.close();
    }

    /** As KeepAliveLockProvider of ShedLock needs it: this lock, which ends so much later. */
    @Override
    public Optional<SimpleLock> extend(Duration lockAtMostFor, Duration lockAtLeastFor) {
      if (hold.isLost()) {
        return Optional.empty();
      }
      hold.extend(lockAtMostFor);
      return Optional.of(this);
    }
  }
}
