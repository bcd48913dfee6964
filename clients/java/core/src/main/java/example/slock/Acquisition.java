package example.slock;

import example.slock.Protocol.Owner;
import java.util.List;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.function.Consumer;

/** One use of a request, or a change of mode that may have to wait, at a server or a quorum. */
abstract class Acquisition extends Repetition<Acquisition.Grant> {
  /**
   * What an acquisition gives.
   *
   * @param fence 0 for a quorum
   * @param from the validity counts from then
   */
  record Grant(Keeper keeper, Owner owner, long fence, long from) {}

  final Settings wanted;
  /** A refusal ends it without an error: the grant is null. */
  final boolean isTry;
  /** A refusal ends it. */
  final boolean isOnce;
  /** When the server last replied. */
  long contact = Clock.NEVER;
  int polls;

  Acquisition(Locks locks, List<String> names, Settings wanted, boolean isTry) {
    super(locks, names);
    this.wanted = wanted;
    this.isTry = isTry;
    this.isOnce = isTry || wanted.wait == 0;
  }

  /** Sees to it that nothing is left on the server after a failure. */
  void abandon() {}

  @Override
  final long deadline() {
    return isOnce ? Clock.NEVER : Clock.plus(began, wanted.wait);
  }

  @Override
  final long limit() {
    return contact == Clock.NEVER || isOnce ? Clock.plus(began, locks.settings.retryFor)
        : Clock.plus(contact, locks.settings.retryWaitFor);
  }

  /**
   * An acquisition under way.
   *
   * @param result what the program gets
   */
  record Running<T>(Acquisition acquisition, CompletableFuture<T> result) {
    /** Waits in this thread. A grant that came after the interrupt is the result, and the thread stays interrupted. */
    T await() throws InterruptedException {
      try {
        result.get();
      } catch (InterruptedException e) {
        Thread.currentThread().interrupt();
        acquisition.leave(new CancellationException("interrupted"));
      } catch (ExecutionException | CancellationException e) {
        // it is thrown below
      }
      try {
        return Caller.join(result);
      } catch (CancellationException e) {
        if (Thread.interrupted()) {
          throw new InterruptedException();
        }
        throw e;
      }
    }

    /** The future for the program. If that cancels it, or completes it in another way, the acquisition is over. */
    CompletableFuture<T> async(Consumer<T> giveBack) {
      CompletableFuture<T> future = acquisition.locks.told(result, giveBack);
      future.whenComplete((value, error) -> acquisition.leave(new CancellationException("cancelled")));
      return future;
    }
  }
}
