package example.slock;

import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.Executor;
import java.util.concurrent.ForkJoinPool;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.function.Function;

/** A thread that waits for the end of a call, and runs the steps of the call meanwhile: so it costs no other thread. */
final class Caller implements Executor {
  private final LinkedBlockingQueue<Runnable> steps = new LinkedBlockingQueue<>();
  private final Thread thread = Thread.currentThread();
  private volatile boolean hasLeft;

  @Override
  public void execute(Runnable step) {
    steps.add(step);
    if (hasLeft) {
      runElsewhere();
    }
  }

  /** Runs what blocks: at once if this is the thread that waits. */
  void block(Runnable task) {
    if (Thread.currentThread() == thread) {
      task.run();
    } else {
      execute(task);
    }
  }

  private void runElsewhere() {
    for (Runnable step = steps.poll(); step != null; step = steps.poll()) {
      ForkJoinPool.commonPool().execute(step);
    }
  }

  /** Waits for the call, whose steps run on the executor that it gets. */
  static <T> T join(Function<Executor, CompletableFuture<T>> call) {
    Caller caller = new Caller();
    return caller.run(call.apply(caller), () -> {});
  }

  /** Runs the steps until the result is there. An interrupt is kept for later. */
  <T> T run(CompletableFuture<T> result, Runnable interrupted) {
    if (!result.isDone()) {
      result.whenComplete((value, error) -> execute(() -> {}));
    }
    boolean wasInterrupted = false;
    while (!result.isDone()) {
      try {
        steps.take().run();
      } catch (InterruptedException e) {
        wasInterrupted = true;
        interrupted.run();
      }
    }
    hasLeft = true;
    runElsewhere();
    try {
      return result.join();
    } catch (CompletionException e) {
      Throwable cause = Protocol.unwrap(e);
      if (cause instanceof RuntimeException error) {
        throw error;
      } else if (cause instanceof Error error) {
        throw error;
      }
      throw e;
    } finally {
      if (wasInterrupted) {
        Thread.currentThread().interrupt();
      }
    }
  }
}
