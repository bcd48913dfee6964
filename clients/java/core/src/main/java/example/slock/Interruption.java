package example.slock;

import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.function.Consumer;

/** The end of a wait from outside: its thread is interrupted, or its future is cancelled. */
final class Interruption {
  private Interruption() {}

  /** Waits in this thread. A grant that came after the interrupt is the result, and the thread stays interrupted. */
  static <T> T await(Caller caller, CompletableFuture<T> result, Acquisition acquisition) throws InterruptedException {
    boolean[] wasInterrupted = {false};
    try {
      T value = caller.run(result, () -> {
        wasInterrupted[0] = true;
        acquisition.leave(new CancellationException("interrupted"));
      });
      if (wasInterrupted[0]) {
        Thread.currentThread().interrupt();
      }
      return value;
    } catch (CancellationException e) {
      if (wasInterrupted[0]) {
        throw new InterruptedException();
      }
      throw e;
    } catch (RuntimeException | Error e) {
      if (wasInterrupted[0]) {
        Thread.currentThread().interrupt();
      }
      throw e;
    }
  }

  /**
   * The future for the program. Whoever cancels it, or completes it in another way, gives the acquisition up; what was granted
   * all the same is given back.
   */
  static <T> CompletableFuture<T> cancellable(Locks locks, CompletableFuture<T> result, Acquisition acquisition,
      Consumer<T> giveBack) {
    CompletableFuture<T> future = new CompletableFuture<>();
    result.whenComplete((value, error) -> locks.execute(() -> {
      boolean isTaken = error == null ? future.complete(value) : future.completeExceptionally(Protocol.unwrap(error));
      if (!isTaken && error == null) {
        giveBack.accept(value);
      }
    }));
    future.whenComplete((value, error) -> acquisition.leave(new CancellationException("cancelled")));
    return future;
  }
}
