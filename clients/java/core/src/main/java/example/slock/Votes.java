package example.slock;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.function.Function;
import java.util.function.Predicate;

/** What the nodes of a quorum gave one owner: where a hold of a quorum is kept. */
final class Votes implements Hold.Keeper {
  /** What one node gave. */
  static final class Vote {
    final Locks locks;
    private final AtomicBoolean isAsking = new AtomicBoolean();
    private volatile Hold hold; // the last that it gave, or null

    Vote(Locks locks) {
      this.locks = locks;
    }
  }

  final long sent = Clock.now();
  private final Quorum quorum;
  private final Request request;
  private final Commands owner;
  private final List<Vote> all;
  private final Mutex mutex = new Mutex();
  private final List<Pending<Hold>> asked = new ArrayList<>();
  private boolean isEnded; // what is granted from now on is released
  private final AtomicBoolean isReleasing = new AtomicBoolean();
  private final CompletableFuture<Tally> released = new CompletableFuture<>();

  Votes(Quorum quorum, Request request, Commands owner) {
    this.quorum = quorum;
    this.request = request;
    this.owner = owner;
    all = quorum.nodes.stream().map(Vote::new).toList();
  }

  Hold hold() {
    Lease.Grant grant = new Lease.Grant(request.mode, 0, sent, false);
    return new Hold(this, request, owner, grant);
  }

  @Override
  public Locks locks() {
    return null;
  }

  /**
   * Asks all nodes at once, in shuffled order. A node where the hold is gone has refused. The future has the answers that
   * came until they were enough, somebody left, or the timeout for nodes. What has no answer by then stays under way.
   */
  CompletableFuture<Tally> each(long ttl, Predicate<Tally> enough, Function<Vote, CompletableFuture<Boolean>> ask,
      CompletableFuture<?> leaving) {
    CompletableFuture<Tally> result = new CompletableFuture<>();
    Tally tally = new Tally(all.stream().map(vote -> vote.locks.servers.transport.name()).toList());
    Mutex counting = new Mutex();
    int[] answers = new int[1];
    Runnable stop = () -> result.complete(counting.get(tally::copy));
    List<Vote> order = new ArrayList<>(all);
    Collections.shuffle(order);
    for (Vote vote : order) {
      quorum.running.background.incrementAndGet();
      CompletableFuture.completedFuture(vote).thenCompose(ask).whenComplete((granted, failed) -> {
        quorum.running.background.decrementAndGet();
        Throwable error = of(failed);
        boolean isGone = error instanceof SlockException.Lost || error instanceof SlockException.NotHeld;
        boolean isEnough = counting.get(() -> {
          tally.note(all.indexOf(vote), error == null && granted, isGone ? null : error);
          boolean isCertain = !result.isDone() && enough.test(tally); // which may ask again, in here
          return ++answers[0] == all.size() || isCertain;
        });
        if (isEnough) {
          stop.run();
        }
      });
    }
    if (!result.isDone()) {
      long timeout = quorum.nodeTimeout(ttl);
      Timers.at(Clock.in(timeout + timeout / 10), stop); // a node may say itself that its time is over
      CompletableFuture.anyOf(leaving, result).thenRun(stop);
    }
    return result;
  }

  /** A time-out of a node is that of its command: that of the wait is another. */
  private static Throwable of(Throwable error) {
    Throwable inner = Answers.unwrapped(error);
    if (inner instanceof SlockException.TimedOut) {
      return inner.getCause() == null ? Answers.NO_ANSWER : new Answers.Unanswered(inner.getCause(), true);
    }
    return inner;
  }

  /** The hold of a node, or its refusal. What comes too late is released. */
  private boolean keep(Vote vote, Hold hold) {
    if (hold == null) {
      return false;
    }
    // The quorum knows until when it is valid: a node that was silent for long is asked whether it has it.
    hold.update(lease -> lease.until = Clock.in(Clock.LONGEST));
    boolean isLate = mutex.get(() -> {
      vote.hold = isEnded ? vote.hold : hold;
      return isEnded;
    });
    if (isLate) {
      hold.releaseAsync();
    }
    return true;
  }

  /** The request for one node: the quorum renews. */
  private Request ofNode(Vote vote, long ttl) {
    Settings s = request.settings.copy();
    s.ttl = ttl;
    s.minReplicas = 0;
    s.renew = false;
    s.token = owner.token();
    s.isFresh = !owner.given();
    s.retryFor = ttl;
    return new Request(vote.locks, owner.keys(), request.mode, s);
  }

  /**
   * Asks a node for the lock, unless it has given it. A node that is slow may follow as long as the hold is wanted, for at
   * most the ttl; then it is given up.
   */
  CompletableFuture<Boolean> acquire(Vote vote, long ttl) {
    if (!vote.isAsking.compareAndSet(false, true)) {
      return CompletableFuture.failedFuture(Answers.NO_ANSWER); // to the one before
    }
    Hold known = vote.hold;
    // An extension may be under way, that tells whether the hold is gone.
    CompletableFuture<Boolean> granted = known == null ? ask(vote, ttl) : known.quiet().handle((is, isGone) -> isGone)
        .thenCompose(isGone -> isGone == null ? CompletableFuture.completedFuture(true) : ask(vote, ttl));
    return granted.whenComplete((is, error) -> vote.isAsking.set(false));
  }

  private CompletableFuture<Boolean> ask(Vote vote, long ttl) {
    Pending<Hold> pending = vote.locks.acquire(ofNode(vote, ttl), true);
    boolean isOver = mutex.get(() -> asked.add(pending) && isEnded);
    if (isOver) {
      pending.cancel().accept(new SlockException.Closed());
    }
    return pending.result().whenComplete((hold, error) -> mutex.run(() -> asked.remove(pending)))
        .thenApply(hold -> keep(vote, hold));
  }

  CompletableFuture<Boolean> adopt(Vote vote, long ttl) {
    return vote.locks.adopt(ofNode(vote, ttl)).thenApply(hold -> keep(vote, hold));
  }

  @Override
  public List<Long> fences(Hold hold) {
    return all.stream().map(vote -> {
      Hold of = vote.hold;
      return of != null && of.update(lease -> {}) == null ? of.fence() : 0L;
    }).toList();
  }

  /**
   * Counts the nodes that still have the hold. Where it is gone, or never was, it is asked for anew after that, with the
   * same token, because a majority has it.
   */
  @Override
  public CompletableFuture<Reply> extend(Hold hold, Lease is, long ttl, long within) {
    long before = Clock.now();
    return each(ttl, Tally::isCertain, vote -> {
      Hold of = vote.hold;
      return of == null ? CompletableFuture.failedFuture(Answers.NO_ANSWER)
          : of.extend(ttl, quorum.nodeTimeout(ttl)).thenApply(done -> true);
    }, quorum.ending).thenApply(tally -> {
      if (!tally.isCertain()) {
        return Reply.failed(tally.over(owner.keys()));
      }
      if (tally.isGranted()) {
        each(ttl, any -> false, vote -> acquire(vote, ttl), quorum.ending);
      }
      return new Reply(tally.isGranted() ? (Object) before : null, null);
    });
  }

  @Override
  public void renew(List<Watchdog.Due> due) {
    for (Watchdog.Due one : due) {
      extend(one.hold(), null, one.renewal().ttl(), 0).thenAccept(
          reply -> one.hold().renewed(one.renewal(), reply.value() != null, reply.error()));
    }
  }

  /** Releases on all nodes. Those that do not answer in time are asked again in the background. */
  @Override
  public CompletableFuture<Boolean> release(Hold hold, Lease ending) {
    boolean isLost = ending.state == Lease.State.LOST;
    end();
    if (isLost && owner.given()) {
      return CompletableFuture.completedFuture(false);
    }
    return each(ending.ttl, Tally::isCertain, this::releaseOne, quorum.ending).thenApply(tally -> {
      if (!isLost && !tally.isCertain()) {
        throw tally.over(owner.keys());
      }
      return !isLost && tally.isGranted();
    });
  }

  /** The end of an attempt, once. */
  CompletableFuture<Tally> releaseAll() {
    if (isReleasing.compareAndSet(false, true)) {
      end();
      each(request.settings.ttl, tally -> false, this::releaseOne, quorum.ending).thenAccept(released::complete);
    }
    return released;
  }

  private void end() {
    List<Pending<Hold>> left = mutex.get(() -> {
      isEnded = true;
      return List.copyOf(asked);
    });
    left.forEach(pending -> pending.cancel().accept(new SlockException.Closed()));
  }

  private CompletableFuture<Boolean> releaseOne(Vote vote) {
    Hold of = vote.hold;
    return of == null ? CompletableFuture.completedFuture(false) : of.releaseAsync();
  }
}
