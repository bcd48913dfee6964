// SPDX-License-Identifier: MIT OR Apache-2.0

package example.slock.shedlock;

import example.slock.Hold;
import example.slock.Locks;
import example.slock.Request;
import example.slock.SlockException;
import java.time.Duration;
import java.util.Optional;
import net.javacrumbs.shedlock.core.ExtensibleLockProvider;
import net.javacrumbs.shedlock.core.LockConfiguration;
import net.javacrumbs.shedlock.core.SimpleLock;

/**
 * A lock provider of ShedLock. The lock of a task ends after lockAtMostFor, without renewal, or with the task, but not before
 * lockAtLeastFor. If it is lost before the end of the task, the log and {@link example.slock.Hooks#lost} say so: an error of
 * {@code unlock} would hide that of the task.
 */
public record SlockLockProvider(Locks locks) implements ExtensibleLockProvider {
  @Override
  public Optional<SimpleLock> lock(LockConfiguration task) {
    try {
      return request(locks, task.getName(), task.getLockAtMostFor(), task.getLockAtLeastFor()).tryAcquire()
          .map(hold -> new TaskLock(locks, hold));
    } catch (InterruptedException e) {
      Thread.currentThread().interrupt();
      return Optional.empty();
    }
  }

  private static Request request(Locks locks, String name, Duration most, Duration least) {
    return locks.write(name).ttl(most).atLeast(least).renew(false);
  }

  private record TaskLock(Locks locks, Hold hold) implements SimpleLock {
    @Override
    public void unlock() {
      try {
        hold.close();
      } catch (SlockException.Lost e) { // it has been logged
      }
    }

    /** The same lock, for which both times count from now. On the server it does not end earlier than before. */
    @Override
    public Optional<SimpleLock> extend(Duration lockAtMostFor, Duration lockAtLeastFor) {
      try {
        hold.check();
        Hold same = request(locks, hold.keys().get(0), lockAtMostFor, lockAtLeastFor).adopt(hold.token());
        hold.detach();
        return Optional.of(new TaskLock(locks, same));
      } catch (SlockException.Lost | SlockException.NotHeld e) {
        return Optional.empty();
      }
    }
  }
}
