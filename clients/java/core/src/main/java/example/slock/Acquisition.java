package example.slock;

import example.slock.Protocol.Owner;
import java.util.List;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;

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

  /** Waits in this thread. A grant that came after the interrupt is the result, and the thread stays interrupted. */
  final <T> T await(CompletableFuture<T> result) throws InterruptedException {
    try {
      return Caller.join(result, () -> leave(new CancellationException("interrupted")));
    } catch (CancellationException e) {
      if (Thread.interrupted()) {
        throw new InterruptedException();
      }
      throw e;
    }
  }

  /** The future for the program: if that cancels it, or completes it in another way, the acquisition is over. */
  final <T> CompletableFuture<T> cancellable(CompletableFuture<T> future) {
    future.whenComplete((value, error) -> leave(new CancellationException("cancelled")));
    return future;
  }
}
