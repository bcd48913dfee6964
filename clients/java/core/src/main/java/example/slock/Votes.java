package example.slock;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.Function;
import java.util.function.Predicate;

/** What the nodes of a quorum gave one owner. */
final class Votes {
  /**
   * What one node gave. As long as the hold is wanted, what had no answer there is not given up: its late end could remove
   * what the node grants the same token after that, and the node would refuse the token.
   */
  final class Vote {
    final Locks locks;
    private final AtomicBoolean isAsking = new AtomicBoolean();
    private volatile Hold hold; // the last that it gave, or null
    private final AtomicReference<Runnable> open = new AtomicReference<>(); // gives up what had no answer; null: nothing

    Vote(Locks locks) {
      this.locks = locks;
    }

    void open(Runnable giveUp) {
      open.set(giveUp);
      giveUpUnlessWanted();
    }

    void giveUpUnlessWanted() {
      Runnable giveUp = asked.isEnding() ? open.getAndSet(null) : null;
      if (giveUp != null) {
        giveUp.run();
      }
    }
  }

  private static final Throwable NOT_ASKED = new Answers.Unanswered(null, false);

  final long sent = Clock.now();
  private final Quorum quorum;
  private final Request request;
  private final Commands owner;
  private final List<Vote> all;
  /** Until the release: what is granted later is released at once. */
  private final Running asked = new Running();
  private final CompletableFuture<Void> ending = new CompletableFuture<>();
  private final CompletableFuture<Tally> released;

  Votes(Quorum quorum, Request request, Commands owner) {
    this.quorum = quorum;
    this.request = request;
    this.owner = owner;
    all = quorum.nodes.stream().map(Vote::new).toList();
    released = ending.thenCompose(done -> releaseEach(request.options.ttl, tally -> false));
  }

  Hold hold() {
    return new Majority();
  }

  /**
   * Asks all nodes at once, in shuffled order. The future has the answers that came until they were enough, or the timeout
   * for nodes. What has no answer by then stays under way.
   */
  CompletableFuture<Tally> each(long ttl, Predicate<Tally> enough, Function<Vote, CompletableFuture<Boolean>> ask) {
    CompletableFuture<Tally> result = new CompletableFuture<>();
    AtomicReference<Tally> tally =
        new AtomicReference<>(Tally.ofNone(all.stream().map(vote -> vote.locks.servers.transport.name()).toList()));
    Pending.takeThread(); // it must not wait for one node before it asks the next
    List<Vote> order = new ArrayList<>(all);
    Collections.shuffle(order);
    for (Vote vote : order) {
      CompletableFuture<Boolean> asked = CompletableFuture.completedFuture(vote).thenCompose(ask);
      quorum.running.addBackground(asked);
      asked.whenComplete((granted, error) -> {
        Tally now = tally.updateAndGet(before ->
            before.with(all.indexOf(vote), error == null && granted, error == null ? null : meaning(error)));
        if (now.isComplete() || !result.isDone() && enough.test(now)) {
          result.complete(now);
        }
      });
    }
    if (!result.isDone()) {
      long timeout = quorum.nodeTimeout(ttl);
      // A node may say itself that its time is over.
      Timers.at(Clock.in(timeout + timeout / 10), () -> result.complete(tally.get()));
    }
    return result;
  }

  /** Of the error of a node; null where the hold is gone: it has refused. A time-out is that of a command, not of a wait. */
  private static Throwable meaning(Throwable error) {
    Throwable inner = Answers.unwrapped(error);
    return inner instanceof SlockException.TimedOut ? new Answers.Unanswered(inner.getCause(), true)
        : inner instanceof SlockException.Lost || inner instanceof SlockException.NotHeld ? null : inner;
  }

  /** The hold of a node, or its refusal. What comes too late is released. */
  private boolean keep(Vote vote, Hold hold) {
    if (hold == null) {
      return false;
    }
    // The quorum knows until when it is valid: a node that was silent for long is asked whether it has it.
    boolean inDoubt = vote.open.getAndSet(null) != null || vote.hold != null && vote.hold.snapshot().doubt;
    hold.update(lease -> {
      lease.until = Clock.in(Clock.LONGEST);
      lease.doubt |= inDoubt;
    });
    vote.hold = hold;
    if (asked.isEnding()) {
      hold.releaseAsync();
    }
    return true;
  }

  /** The request for one node: the quorum renews. */
  private Request ofNode(Vote vote, long ttl) {
    Options each = request.options.copy();
    each.ttl = ttl;
    each.minReplicas = 0;
    each.renew = false;
    each.token = owner.token();
    each.isFresh = !owner.given();
    each.retryFor = ttl;
    each.open = vote::open;
    return new Request(vote.locks, owner.keys(), request.mode, each);
  }

  /**
   * Asks a node for the lock, unless it has given it. A node that is slow may follow for at most the ttl; when the hold is
   * extended, it is asked again.
   */
  CompletableFuture<Boolean> acquire(Vote vote, long ttl) {
    if (!vote.isAsking.compareAndSet(false, true)) {
      return CompletableFuture.failedFuture(NOT_ASKED); // but before
    }
    Hold known = vote.hold;
    // An extension may be under way, that tells whether the hold is gone.
    CompletableFuture<Boolean> granted = known == null ? ask(vote, ttl) : known.quiet().handle((is, isGone) -> isGone)
        .thenCompose(isGone -> isGone == null ? CompletableFuture.completedFuture(true) : ask(vote, ttl));
    return granted.whenComplete((is, error) -> vote.isAsking.set(false));
  }

  private CompletableFuture<Boolean> ask(Vote vote, long ttl) {
    return asked.add(vote.locks.acquire(ofNode(vote, ttl), true)).result().thenApply(hold -> keep(vote, hold));
  }

  CompletableFuture<Boolean> adopt(Vote vote, long ttl) {
    return vote.locks.adopt(ofNode(vote, ttl)).thenApply(hold -> keep(vote, hold));
  }

  /** The end of an attempt, once. */
  CompletableFuture<Tally> releaseAll() {
    ending.complete(null);
    return released;
  }

  private CompletableFuture<Tally> releaseEach(long ttl, Predicate<Tally> enough) {
    asked.end(0);
    return each(ttl, enough, vote -> {
      Hold of = vote.hold;
      vote.giveUpUnlessWanted();
      return of == null ? CompletableFuture.completedFuture(false) : of.releaseAsync();
    });
  }

  /** The hold of a majority. */
  private final class Majority extends Hold {
    Majority() {
      super(request, Votes.this.owner, new Lease.Grant(request.mode, 0, sent, false));
    }

    @Override
    public List<Long> fences() {
      return all.stream().map(vote -> {
        Hold of = vote.hold;
        return of != null && of.problem() == null ? of.fence() : 0L;
      }).toList();
    }

    /**
     * Counts the nodes that still have the hold. Where it is gone, or never was, it is asked for anew after that, with the
     * same token, because a majority has it.
     */
    @Override
    CompletableFuture<Reply> extendAtServer(Lease is, long ttl, long within) {
      long before = Clock.now();
      return each(ttl, Tally::isCertain, vote -> {
        Hold of = vote.hold;
        return of == null ? CompletableFuture.failedFuture(NOT_ASKED)
            : of.extend(ttl, quorum.nodeTimeout(ttl)).thenApply(done -> true);
      }).thenApply(tally -> {
        if (!tally.isCertain()) {
          return Reply.failed(tally.over(owner.keys()));
        }
        if (tally.isGranted()) {
          each(ttl, any -> false, vote -> acquire(vote, ttl));
        }
        return new Reply(tally.isGranted() ? (Object) before : null, null);
      });
    }

    @Override
    void renewAtServer(Lease.Renewal renewal) {
      extendAtServer(null, renewal.ttl(), 0).thenAccept(reply -> renewed(renewal, reply.value() != null, reply.error()));
    }

    /** Releases on all nodes. Those that do not answer in time are asked again in the background. */
    @Override
    CompletableFuture<Boolean> releaseAtServer(Lease ending) {
      boolean isLost = ending.state == Lease.State.LOST;
      if (isLost && owner.given()) {
        asked.end(0);
        return CompletableFuture.completedFuture(false);
      }
      return releaseEach(ending.ttl, Tally::isCertain).thenApply(tally -> {
        if (!isLost && !tally.isCertain()) {
          throw tally.over(owner.keys());
        }
        return !isLost && tally.isGranted();
      });
    }
  }
}
