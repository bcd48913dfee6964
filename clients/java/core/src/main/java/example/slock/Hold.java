package example.slock;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.Consumer;
import java.util.function.Function;
import java.util.stream.Stream;

/**
 * A lock that was granted. All methods may be called by several threads at once; extensions and changes of mode run one
 * after another. Those that ask the server end after {@link Options#retryFor} with {@link SlockException.TimedOut} when no
 * answer comes.
 */
public class Hold implements AutoCloseable {
  final Commands owner;
  final Request request;
  private final Locker by;
  private final long began = Clock.now();

  private final Mutex mutex = new Mutex();
  private final Lease lease;
  private Future<?> nextLook;
  private long nextLookAt = Clock.NONE;
  /** Somebody wants to know of the end. */
  private boolean isWatched;
  /** What {@link #check} says after the end. */
  private final CompletableFuture<SlockException> end = new CompletableFuture<>();
  /** The change of mode that is under way, or was the last. */
  private volatile Acquisition changing;
  private final AtomicReference<CompletableFuture<Void>> lastChange =
      new AtomicReference<>(CompletableFuture.completedFuture(null));

  Hold(Request request, Commands owner, Lease.Grant grant) {
    this.request = request;
    this.owner = owner;
    by = request.by;
    Options wanted = request.options;
    lease = new Lease(grant, wanted.ttl, by.drift(), wanted.renew);
    if (wanted.longestLease > 0) {
      lease.leaseEnd = Clock.in(wanted.longestLease);
    }
  }

  /** The watchdog looks after it from now on. */
  Hold begin() {
    mutex.run(this::schedule);
    return this;
  }

  /** The owner's identity. Another process may adopt or release the lock by it. */
  public String token() {
    return owner.token();
  }

  /** The keys of the hold. */
  public List<String> keys() {
    return owner.keys();
  }

  /** The text that the request gave. */
  public String metadata() {
    return request.options.metadata;
  }

  /**
   * The number of the hold. Each new hold has a greater one than all before on its server: send it with all that is
   * written, and refuse lesser ones where it is stored. It is 0 for a hold of a quorum.
   */
  public long fence() {
    return snapshot().fence;
  }

  /** The fence that each node of a quorum gave, and 0 for a node that gave none. Without a quorum it is the one. */
  public List<Long> fences() {
    return List.of(fence());
  }

  /** How the lock is held. */
  public Mode mode() {
    return snapshot().mode;
  }

  /** How long the hold is certainly still there, if nobody deletes its keys and the machine does not sleep. */
  public Duration timeLeft() {
    Lease is = snapshot();
    return Duration.ofNanos(is.state == Lease.State.LIVE ? Math.max(0, Clock.until(Math.min(is.until, is.leaseEnd))) : 0);
  }

  /** Until when the hold is certainly there, as {@link System#nanoTime} counts. A renewal moves it. */
  public long validUntilNanoTime() {
    return System.nanoTime() + timeLeft().toNanos();
  }

  Lease snapshot() {
    return mutex.get(lease::copy);
  }

  /** Changes the lease of a live hold, and gives what is wrong with the hold after that. */
  SlockException update(Consumer<Lease> change) {
    return inAnyState(l -> {
      if (l.state == Lease.State.LIVE) {
        change.accept(l);
      }
      return l.problem(owner.keys());
    });
  }

  /** What is wrong with the hold; null while it is live. */
  SlockException problem() {
    return update(l -> {});
  }

  /** Gives what the change of the lease gives; null when the hold has ended. */
  private <T> T ifLive(Function<Lease, T> change) {
    return inAnyState(l -> l.state == Lease.State.LIVE ? change.apply(l) : null);
  }

  /** Changes the lease, and does what follows when that ends the hold. */
  private <T> T inAnyState(Function<Lease, T> change) {
    List<Runnable> follows = new ArrayList<>();
    T given = mutex.get(() -> {
      Lease.State before = lease.state;
      lease.look(Clock.now());
      T result = change.apply(lease);
      if (lease.state == Lease.State.LIVE) {
        schedule();
      } else {
        lookAt(Clock.NONE);
      }
      if (lease.state != before) {
        ended(follows);
      }
      return result;
    });
    follows.forEach(Runnable::run);
    return given;
  }

  /** Notes that the hold ends, and what follows. */
  private void ended(List<Runnable> follows) {
    SlockException is = lease.problem(owner.keys());
    if (is instanceof SlockException.Lost loss) {
      follows.add(() -> by.report.lost(request.label(), loss));
    }
    if (changing != null) {
      follows.add(() -> changing.cancel(is));
    }
    if (lease.state != Lease.State.RELEASING) {
      follows.add(() -> by.report.held(request.label(), began));
      follows.add(() -> end.complete(is));
    }
  }

  /** Has the hold looked at when that is due, if somebody would notice. */
  private void schedule() {
    if ((lease.renews || isWatched) && lease.due() < nextLookAt) {
      lookAt(lease.due());
    }
  }

  private void lookAt(long moment) {
    if (nextLook != null) {
      nextLook.cancel(false);
    }
    nextLookAt = moment;
    nextLook = moment == Clock.NONE ? null : Timers.at(moment, this::look);
  }

  /** In the timer thread: ends a hold whose time is over, or renews it. */
  private void look() {
    mutex.run(() -> lookAt(Clock.NONE));
    Lease.Renewal due = ifLive(l -> {
      l.renewAt = by.isClosing() ? Clock.NONE : l.renewAt;
      return l.begin(Clock.now());
    });
    if (due != null) {
      renewAtServer(due);
    }
  }

  /** Notes the answer to a renewal. */
  void renewed(Lease.Renewal renewal, boolean isHeld, Throwable error) {
    Boolean counts = ifLive(l -> l.renewed(Clock.now(), renewal, isHeld, error));
    if (error != null && Boolean.TRUE.equals(counts)) {
      by.report.renewalFailed(request.label(), Answers.named(Answers.cause(error)));
    }
  }

  /** Calls when the hold has ended, with what {@link #check} says then; at once if it has. */
  void onEnd(Consumer<SlockException> ending) {
    end.thenAccept(ending);
    update(l -> isWatched = true);
  }

  /** Calls when the hold is lost, also if that was before, by {@link Options#executor}. */
  public void onLost(Consumer<SlockException.Lost> told) {
    onEnd(is -> {
      if (is instanceof SlockException.Lost loss) {
        by.options.executor.execute(() -> told.accept(loss));
      }
    });
  }

  /** Why the hold was lost, or null. */
  public SlockException.Reason lostReason() {
    return problem() instanceof SlockException.Lost loss ? loss.reason() : null;
  }

  /**
   * Does nothing while the hold is valid. It sends nothing: call it before each step that matters.
   *
   * @throws SlockException.Lost if it is lost
   * @throws SlockException.NotHeld if it has been released or handed over
   */
  public void check() {
    SlockException is = problem();
    if (is != null) {
      throw is;
    }
  }

  /**
   * Runs a change when no other goes on. It is given the future of its caller, which it may complete before its end, and
   * gives one that is done when the next may begin.
   */
  private CompletableFuture<Void> change(String what, Function<CompletableFuture<Void>, CompletableFuture<Void>> change) {
    CompletableFuture<Void> own = new CompletableFuture<>();
    CompletableFuture<Void> result = new CompletableFuture<>();
    CompletableFuture<Void> before = lastChange.getAndSet(own);
    if (!before.isDone()) {
      Timers.at(Clock.in(by.options.retryFor),
          () -> result.completeExceptionally(new SlockException.TimedOut(what, owner.keys(), null)));
    }
    before.thenCompose(done -> {
      check();
      return result.isDone() ? result : change.apply(result);
    }).whenComplete((done, error) -> {
      Pending.pass(null, error, result);
      own.complete(null);
    });
    return result;
  }

  /**
   * Lets the hold last for at least the ttl from now on. It never shortens: for that, release. Later renewals use the
   * longest ttl that was asked for. After an error nothing has changed for this library.
   */
  public void extend(Duration ttl) {
    Pending.join(() -> extendAsync(ttl));
  }

  /** As {@link #extend}, without a thread that waits. */
  public CompletableFuture<Void> extendAsync(Duration ttl) {
    long nanos = Clock.nanos(ttl);
    Options.checkTtl(nanos);
    Options.require(lease.drift.counted(nanos) > 0, "nothing is left of this ttl after the drift");
    return change("extension", result -> extendAtServer(snapshot(), nanos).thenAccept(reply -> {
      if (reply.error() != null) {
        throw lossOr(reply.error());
      }
      update(l -> {
        if (reply.value() == null) {
          l.lose(SlockException.Reason.GONE);
        } else {
          l.ttl = Math.max(l.ttl, nanos);
          l.lengthen((Long) reply.value(), nanos);
        }
      });
      check();
    }));
  }

  /** The loss if the hold is lost by now, else the error. */
  private RuntimeException lossOr(Throwable error) {
    if (error instanceof SlockException.NotHeld || Answers.hasCode(error, "WRONGTYPE")) {
      update(l -> l.lose(SlockException.Reason.GONE));
    }
    SlockException is = problem();
    return is != null ? is : Answers.named(error);
  }

  /**
   * Ends the hold here without releasing it, for another process that adopts it by its token. From now on it is no longer
   * renewed. It sends nothing.
   */
  public void handOver() {
    if (ifLive(l -> l.state = Lease.State.ENDED) == null) {
      throw problem();
    }
  }

  /**
   * Ends the hold, and tells whether it was still there. A hold that was lost, released or handed over before gives false.
   * After an error nobody knows whether the hold is there; the release goes on in the background while it may be. It is
   * not ended by an interrupt.
   */
  public boolean release() {
    return Pending.join(this::releaseAsync);
  }

  /** As {@link #release}, without a thread that waits. */
  public CompletableFuture<Boolean> releaseAsync() {
    Lease ending = ifLive(l -> {
      Lease was = l.copy();
      l.state = Lease.State.RELEASING;
      return was;
    });
    if (ending == null) {
      Lease is = snapshot();
      if (is.state == Lease.State.LOST) {
        releaseAtServer(is); // what it may have left, in the background
      }
      return CompletableFuture.completedFuture(false);
    }
    return Pending.unwrapped(releaseAtServer(ending).whenComplete((released, error) -> {
      inAnyState(l -> {
        l.state = Lease.State.ENDED;
        if (error == null && !released) {
          l.lose(SlockException.Reason.GONE);
        }
        return null;
      });
      if (error != null) {
        by.report.releaseFailed(request.label(), Answers.unwrapped(error));
      }
    }));
  }

  /**
   * The end of a block: releases. A release that fails is no error of finished work.
   *
   * @throws SlockException.Lost if the hold was lost before
   */
  @Override
  public void close() {
    try {
      release();
    } catch (RuntimeException e) {
      // it has been told
    }
    if (problem() instanceof SlockException.Lost loss) {
      throw loss;
    }
  }

  /**
   * Runs work and releases. When the hold is lost, this thread is interrupted, and the end is {@link SlockException.Lost},
   * with the error of the work as a suppressed one.
   */
  public <T, E extends Exception> T run(Request.Work<T, E> work) throws E, InterruptedException {
    Thread worker = Thread.currentThread();
    Mutex interrupting = new Mutex();
    boolean[] state = new boolean[2]; // whether the work is done, and whether it was interrupted by us
    onEnd(is -> {
      interrupting.run(() -> {
        if (!state[0] && is instanceof SlockException.Lost) {
          state[1] = true;
          worker.interrupt();
        }
      });
    });
    Throwable failed = null;
    try {
      return work.apply(this);
    } catch (Throwable e) {
      failed = e;
      throw e;
    } finally {
      interrupting.run(() -> state[0] = true);
      if (state[1]) {
        Thread.interrupted(); // it was for the work
      }
      try {
        close();
      } catch (SlockException.Lost loss) {
        if (failed != null && !(failed instanceof InterruptedException) && !(failed instanceof SlockException.Lost)) {
          loss.addSuppressed(failed);
        }
        throw loss;
      }
    }
  }

  // --- what is asked of the server; a quorum asks its nodes

  /** The reply has the moment before the extension was sent, or null when the hold is gone. */
  CompletableFuture<Reply> extendAtServer(Lease is, long ttl) {
    Locks locks = (Locks) by;
    long end = Math.min(is.until, locks.retryEnd());
    Repetition asked =
        locks.ask("extension", owner, end, limit -> locks.send(owner, owner.extend(ttl, is.fence), limit));
    return asked.result.thenApply(reply -> reply.error() != null ? reply
        : new Reply(reply.number() == 1 ? (Object) asked.sent : null, null));
  }

  /** Sends a renewal, whose answer goes to {@link #renewed}. */
  void renewAtServer(Lease.Renewal renewal) {
    ((Locks) by).send(owner, owner.extend(renewal.ttl(), renewal.fence()), Clock.in(renewal.ttl()))
        .thenAccept(reply -> renewed(renewal, reply.number() == 1, reply.error()));
  }

  /** Tells whether the hold was still there. */
  CompletableFuture<Boolean> releaseAtServer(Lease ending) {
    Locks locks = (Locks) by;
    boolean inDoubt = ending.doubt || ending.changing;
    boolean isWhole = ending.reason == SlockException.Reason.GONE && owner.keys().size() == 1 && !inDoubt;
    if (ending.state == Lease.State.LOST && (isWhole || owner.given() && inDoubt)) {
      return CompletableFuture.completedFuture(false); // nothing is left, or the token may have a later hold by now
    }
    Repetition.Try send = limit -> inDoubt ? locks.endOnce(owner, ending.fence, limit)
        : locks.send(owner, owner.release(ending.mode, ending.fence), limit);
    long end = Math.min(ending.until, Clock.in(ending.ttl));
    Repetition asked = locks.repeat("release", owner, locks.retryEnd(), send);
    return asked.result.thenApply(reply -> {
      if (reply.error() instanceof SlockException.TimedOut && Clock.now() < end) {
        locks.repeat("release", owner, end, send); // in the background
      }
      long released = (Long) reply.get();
      // A 0 after a copy without an answer means that this copy released the hold, if it was valid then.
      return released == owner.keys().size() || asked.isUnanswered && Clock.now() < ending.until;
    });
  }

  // --- changes of the mode

  /**
   * Makes a reader the writer, in one step, with a new fence, and waits until the other readers are gone. It works for one
   * key on one server. After an upgrade that was given up the server is asked in the background for the mode that the hold
   * has, which may be either, and refuses another upgrade of it for two minutes.
   */
  public void upgrade() throws InterruptedException {
    upgrade(null);
  }

  /** As {@link #upgrade()}, for at most the wait (null: without limit). */
  public void upgrade(Duration wait) throws InterruptedException {
    Pending.begin(() -> changeMode(Mode.WRITE, wait)).await();
  }

  /** As {@link #upgrade(Duration)}, without a thread that waits. Cancelling the future gives the upgrade up. */
  public CompletableFuture<Void> upgradeAsync(Duration wait) {
    return changeMode(Mode.WRITE, wait).told(by.options.executor, done -> done, done -> {});
  }

  /**
   * Makes the writer a reader, in one step, with a new fence and no writer in between. It works for one key on one server.
   * Without an answer it fails, and goes on in the background. The hold counts as a reader's from the first attempt on.
   */
  public void downgrade() {
    Pending.join(this::downgradeAsync);
  }

  /** As {@link #downgrade}, without a thread that waits. */
  public CompletableFuture<Void> downgradeAsync() {
    return changeMode(Mode.READ, null).result();
  }

  private Pending<Void> changeMode(Mode to, Duration wait) {
    if (!(by instanceof Locks locks) || owner.keys().size() > 1) {
      throw new IllegalArgumentException("a change of mode works for one key on one server");
    }
    Options wanted = new Options();
    wanted.wait = wait == null ? Clock.NONE : Clock.nanos(wait);
    wanted.retryFor = locks.options.retryFor;
    Options.require(wanted.wait >= 0, "the wait must not be negative, not %s", wait);
    CompletableFuture<Throwable> cancelled = new CompletableFuture<>();
    return new Pending<>(change("change of mode",
        told -> changeMode(locks, new Request(locks, keys(), to, wanted), cancelled, told)), cancelled::complete);
  }

  private CompletableFuture<Void> changeMode(Locks locks, Request change, CompletableFuture<Throwable> cancelled,
      CompletableFuture<Void> told) {
    boolean isUpgrade = change.mode == Mode.WRITE;
    Lease was = snapshot();
    change.options.ttl = was.ttl;
    List<String> command = owner.change(change.mode, was.ttl, was.fence);
    Acquisition acquisition = new Acquisition(locks, owner, change, command, !isUpgrade, true);
    changing = acquisition; // the wait ends with the hold
    SlockException over = update(l -> {
      isWatched = true;
      l.changing = true;
      l.mode = isUpgrade ? l.mode : Mode.READ;
    });
    if (over != null) {
      throw over;
    }
    cancelled.thenAccept(acquisition::cancel);
    locks.noted(new Pending<>(acquisition.result, acquisition::cancel));
    CompletableFuture<Void> settled = acquisition.result.handle((grant, error) -> {
      // A downgrade is not given up.
      boolean isOpen = error != null && (acquisition.isOpen() || !isUpgrade && error instanceof SlockException.TimedOut);
      SlockException is = update(l -> {
        l.doubt |= acquisition.doubt || isOpen;
        l.changing = isOpen;
        if (error == null) {
          l.granted(grant.mode(), grant.fence(), grant.sent());
        } else if (!isOpen) {
          l.mode = was.mode;
        }
      });
      CompletableFuture<Void> settling =
          isOpen ? settle(locks, isUpgrade ? owner.cancel() : List.of(command)) : CompletableFuture.completedFuture(null);
      Pending.pass(null, error == null ? is : lossOr(error), told);
      return settling;
    }).thenCompose(settling -> settling);
    acquisition.attempt();
    return settled;
  }

  /**
   * Withdraws an upgrade that was given up, or sends a downgrade again, and learns the mode that the hold has then. It is
   * repeated until it is answered, or the hold is over.
   */
  private CompletableFuture<Void> settle(Locks locks, List<List<String>> first) {
    List<List<String>> commands = Stream.concat(first.stream(), owner.lookAtModes(snapshot().ttl).stream()).toList();
    Repetition asked = locks.repeat("change of mode", owner, Clock.NONE, limit -> {
      SlockException is = problem();
      return is == null ? locks.pipeline(owner, commands, limit) : CompletableFuture.completedFuture(Reply.failed(is));
    });
    return asked.result.thenAccept(all -> update(l -> {
      Reply write = all.at(first.size()); // an error says that the mode is the other
      Reply read = all.at(first.size() + 1);
      if (write.number() + read.number() > 0) {
        l.granted(write.number() > 0 ? Mode.WRITE : Mode.READ, write.number() + read.number(), asked.sent);
      } else if (write.error() == null && read.error() == null) {
        l.lose(SlockException.Reason.GONE);
      }
    }));
  }
}
