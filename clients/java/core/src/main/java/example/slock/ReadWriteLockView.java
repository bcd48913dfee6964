// SPDX-License-Identifier: MIT OR Apache-2.0

package example.slock;

import java.util.concurrent.locks.ReadWriteLock;

/**
 * A lock as {@link ReadWriteLock}, with the meaning of Redisson's {@code RReadWriteLock}: the owner is a thread. A thread that
 * writes may read too, and reads on after its last unlock of writing, with no writer in between. A thread that reads
 * cannot lock for writing: it would wait for itself.
 */
public record ReadWriteLockView(LockView readLock, LockView writeLock) implements ReadWriteLock {}
