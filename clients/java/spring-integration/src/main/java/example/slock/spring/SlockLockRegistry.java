// SPDX-License-Identifier: MIT OR Apache-2.0

package example.slock.spring;

import example.slock.Locks;
import java.util.concurrent.locks.Lock;
import org.springframework.integration.support.locks.LockRegistry;

/**
 * A lock registry of Spring Integration. Its locks are those of {@link Locks#lock}: their owner is a thread, which may lock
 * several times, and they are renewed while it holds them.
 */
public record SlockLockRegistry(Locks locks) implements LockRegistry<Lock> {
  @Override
  public Lock obtain(Object lockKey) {
    return locks.lock(lockKey.toString());
  }
}
