// SPDX-License-Identifier: MIT OR Apache-2.0

package example.slock;

import java.lang.ref.Cleaner;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.function.Consumer;

/**
 * A lock that was granted. It is renewed until it is released or lost; one that nobody refers to any more is released. All
 * methods may be called by several threads at once.
 */
public final class Hold implements AutoCloseable {
  private static final Cleaner CLEANER = Cleaner.create();

  final Kept kept;
  private final Cleaner.Cleanable cleaning;

  Hold(Kept kept) {
    this.kept = kept;
    cleaning = CLEANER.register(this, kept::abandon);
  }

  /** The owner token. Another process may adopt or release the lock by it. */
  public String token() {
    return kept.owner.token();
  }

  /**
   * The fencing token. Each new hold has a greater one than all before on its server: send it with all that is written, and
   * refuse lesser ones where it is stored. It is 0 for a hold of a quorum.
   */
  public long fence() {
    return kept.fence;
  }

  /** The fencing tokens of the nodes of a quorum, in their order, 0 for a node that gave none. They cannot be compared. */
  public List<Long> fences() {
    return kept.keeper instanceof Quorum.Votes votes ? votes.fences() : List.of(fence());
  }

  /** The keys, without the prefix. */
  public List<String> keys() {
    return kept.owner.names();
  }

  /** Write or read. */
  public Mode mode() {
    return kept.mode;
  }

  /** The text that SLOCK.INFO shows. */
  public String metadata() {
    return kept.settings.metadata();
  }

  /** For how long the hold is certainly there if nobody deletes its keys. A renewal makes it longer. */
  public Duration remaining() {
    return Duration.ofNanos(kept.remaining());
  }

  /** Whether the hold was lost. */
  public boolean isLost() {
    return kept.check() instanceof SlockException.Lost;
  }

  /**
   * Does nothing while the hold is valid. It sends nothing: call it before each step that matters.
   *
   * @throws SlockException.Lost if it was lost
   * @throws SlockException.NotHeld if it was released or detached
   */
  public void check() {
    SlockException problem = kept.check();
    if (problem != null) {
      throw problem;
    }
  }

  /** Has the executor of {@link Options} call once if the hold is lost, also if that was before. */
  public void onLost(Consumer<SlockException.Lost> told) {
    Locks locks = kept.locks;
    kept.onEnd(problem -> {
      if (problem instanceof SlockException.Lost loss) {
        locks.execute(() -> Reporter.run(() -> told.accept(loss)));
      }
    });
  }

  /**
   * Releases the hold. If the server does not reply, it goes on in the background; in any case nothing renews the hold any
   * more.
   *
   * @throws SlockException.Lost if the hold was lost
   * @throws SlockException.NotHeld if it was released or detached before
   * @throws SlockException.NoAnswer if the server did not reply
   */
  public void release() {
    Caller.join(kept::release);
    cleaning.clean();
  }

  /** As {@link #release}. */
  public CompletableFuture<Void> releaseAsync() {
    return told(kept.release()).whenComplete((done, error) -> cleaning.clean());
  }

  /** The end of a block: as {@link #release}, but finished work is a success. A release that fails is only reported. */
  @Override
  public void close() {
    try {
      release();
    } catch (SlockException.Lost e) {
      throw e;
    } catch (RuntimeException e) {
      if (kept.check() instanceof SlockException.Lost loss) {
        throw loss;
      } // a release that failed has been reported, and a hold that was released before is no error of the block
    }
  }

  /** Lets the hold last for at least the ttl from now on. It never shortens: for that, release. */
  public void extend(Duration ttl) {
    long nanos = checked(ttl);
    Caller.join(() -> kept.extend(nanos));
  }

  /** As {@link #extend}. */
  public CompletableFuture<Void> extendAsync(Duration ttl) {
    return told(kept.extend(checked(ttl)));
  }

  private long checked(Duration ttl) {
    Settings.checkTtl(Clock.nanos(ttl));
    kept.locks.checkOpen(keys());
    return Clock.nanos(ttl);
  }

  /** As {@link #upgrade(Duration)}, without a limit. */
  public void upgrade() throws InterruptedException {
    upgrade(null);
  }

  /**
   * Makes a reader the writer, in one step, with a new fence, and waits until the other readers have gone. It works for one
   * key on one server, and not while another change of mode is open. If it ends without a reply, the hold is still valid, and
   * its mode is found out in the background.
   *
   * @param wait null: without a limit
   */
  public void upgrade(Duration wait) throws InterruptedException {
    Caller.begin(() -> upgrading(wait)).await();
  }

  /** As {@link #upgrade(Duration)}. Cancelling the future gives the upgrade up. */
  public CompletableFuture<Void> upgradeAsync(Duration wait) {
    return upgrading(wait).async(done -> {});
  }

  private Acquisition.Running<Void> upgrading(Duration wait) {
    Settings.require(wait == null || !wait.isNegative(), "the wait must not be negative, not %s", wait);
    return kept.change(Mode.WRITE, wait == null ? Clock.NEVER : Clock.nanos(wait));
  }

  /** Makes the writer a reader, in one step, with a new fence. Without a reply it goes on in the background. */
  public void downgrade() {
    Caller.join(() -> kept.change(Mode.READ, 0).result());
  }

  /** As {@link #downgrade}. */
  public CompletableFuture<Void> downgradeAsync() {
    return told(kept.change(Mode.READ, 0).result());
  }

  private <T> CompletableFuture<T> told(CompletableFuture<T> result) {
    return kept.locks.told(result, value -> {});
  }

  /** Ends the hold here without releasing it, for another process that adopts it by its token. It sends nothing. */
  public void detach() {
    SlockException problem = kept.finish();
    if (problem != null) {
      throw problem;
    }
    cleaning.clean();
  }

  /** Runs work under the hold, and releases. The thread is interrupted if the hold is lost meanwhile. */
  <T, E extends Exception> T run(Request.Work<T, E> work) throws E, InterruptedException {
    Thread thread = Thread.currentThread();
    AtomicBoolean isAtWork = new AtomicBoolean(true);
    boolean[] wasInterrupted = {false};
    kept.onEnd(problem -> {
      synchronized (isAtWork) {
        if (isAtWork.get() && problem instanceof SlockException.Lost) {
          wasInterrupted[0] = true;
          thread.interrupt();
        }
      }
    });
    Throwable failure = null;
    try {
      return work.apply(this);
    } catch (Throwable e) {
      failure = e;
      throw e;
    } finally {
      synchronized (isAtWork) {
        isAtWork.set(false);
      }
      if (wasInterrupted[0]) {
        Thread.interrupted(); // it was for the work
      }
      try {
        close();
      } catch (SlockException.Lost loss) {
        if (failure != null && !(failure instanceof InterruptedException) && failure.getClass() != SlockException.Lost.class) {
          loss.addSuppressed(failure);
        }
        throw loss;
      }
    }
  }
}
