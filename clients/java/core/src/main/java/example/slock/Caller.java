// SPDX-License-Identifier: MIT OR Apache-2.0

package example.slock;

import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.function.Supplier;

/** A thread of the program that waits for the end of a call. */
final class Caller {
  private static final ThreadLocal<Boolean> IS_WAITING = ThreadLocal.withInitial(() -> false);

  private Caller() {}

  /** Whether this thread has nothing else to do than to wait for what it begins now, so that a command may block it. */
  static boolean isWaiting() {
    return IS_WAITING.get();
  }

  /** Begins what this thread will wait for. */
  static <T> T begin(Supplier<T> call) {
    IS_WAITING.set(true);
    try {
      return call.get();
    } finally {
      IS_WAITING.remove();
    }
  }

  /** Waits for a call, also if the thread is interrupted. */
  static <T> T join(Supplier<CompletableFuture<T>> call) {
    return join(begin(call));
  }

  static <T> T join(CompletableFuture<T> result) {
    try {
      return result.join();
    } catch (CompletionException e) {
      Throwable cause = Protocol.unwrap(e);
      if (cause instanceof Error error) {
        throw error;
      }
      throw cause instanceof RuntimeException error ? error : e;
    }
  }
}
