package example.slock;

import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutionException;
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

  /** Waits for the call. */
  static <T> T join(Supplier<CompletableFuture<T>> call) {
    return join(begin(call), () -> {});
  }

  /** Waits for the result. An interrupt is kept for later. */
  static <T> T join(CompletableFuture<T> result, Runnable interrupted) {
    boolean wasInterrupted = false;
    try {
      while (true) {
        try {
          return result.get();
        } catch (InterruptedException e) {
          wasInterrupted = true;
          interrupted.run();
        }
      }
    } catch (ExecutionException e) {
      Throwable cause = Protocol.unwrap(e.getCause());
      if (cause instanceof RuntimeException error) {
        throw error;
      } else if (cause instanceof Error error) {
        throw error;
      }
      throw new CompletionException(cause);
    } finally {
      if (wasInterrupted) {
        Thread.currentThread().interrupt();
      }
    }
  }
}
