package example.slock;

import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Executor;
import java.util.function.Consumer;
import java.util.function.Function;
import java.util.function.Supplier;

/** What will be there, and how to give it up. */
record Pending<T>(CompletableFuture<T> result, Consumer<Throwable> cancel) {
  private static final ThreadLocal<Boolean> MAY_BLOCK = ThreadLocal.withInitial(() -> false);

  /** Waits. An interrupted thread gives up, unless what it waits for is there by then: then it stays interrupted. */
  T await() throws InterruptedException {
    try {
      return result.get();
    } catch (InterruptedException interrupted) {
      cancel.accept(new CancellationException("interrupted"));
      try {
        T there = result.join();
        Thread.currentThread().interrupt();
        return there;
      } catch (CompletionException | CancellationException e) {
        throw interrupted;
      }
    } catch (ExecutionException e) {
      throw rethrown(e.getCause());
    }
  }

  /**
   * A future for the program, completed by the executor. Who cancels it, or completes it in another way, gives up; what is
   * there then is left to late.
   */
  <U> CompletableFuture<U> told(Executor executor, Function<T, U> convert, Consumer<T> late) {
    CompletableFuture<U> told = new CompletableFuture<>();
    told.whenComplete((value, error) -> cancel.accept(new CancellationException("cancelled")));
    result.whenCompleteAsync((value, error) -> {
      if (error != null) {
        told.completeExceptionally(Answers.unwrapped(error));
      } else if (!told.complete(convert.apply(value))) {
        late.accept(value);
      }
    }, executor);
    return told;
  }

  /** Begins a call in this thread, which then waits for it, and so may send the first command of it. */
  static <T> T begin(Supplier<T> call) {
    MAY_BLOCK.set(true);
    try {
      return call.get();
    } finally {
      MAY_BLOCK.set(false);
    }
  }

  /** Whether this thread waits for what it is about to send. */
  static boolean takeThread() {
    boolean may = MAY_BLOCK.get();
    MAY_BLOCK.set(false);
    return may;
  }

  /** Begins a call and waits for it, also when interrupted: the thread stays interrupted. */
  static <T> T join(Supplier<CompletableFuture<T>> call) {
    try {
      return begin(call).join();
    } catch (CompletionException e) {
      throw rethrown(e.getCause());
    }
  }

  /** Ends a future as another has ended, without the wrapper of errors that a dependent future has. */
  static <T> void pass(T value, Throwable error, CompletableFuture<T> to) {
    if (error == null) {
      to.complete(value);
    } else {
      to.completeExceptionally(Answers.unwrapped(error));
    }
  }

  /** The same, without the wrapper of errors that a dependent future has. */
  static <T> CompletableFuture<T> unwrapped(CompletableFuture<T> future) {
    CompletableFuture<T> result = new CompletableFuture<>();
    future.whenComplete((value, error) -> pass(value, error, result));
    return result;
  }

  static RuntimeException rethrown(Throwable error) {
    if (error instanceof Error e) {
      throw e;
    }
    return error instanceof RuntimeException e ? e : new SlockException("failed", error);
  }
}
