package example.slock;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.Function;
import java.util.function.Predicate;

/** What the nodes of a quorum gave one token: a hold, once a majority has given it. */
final class QuorumHold extends Hold {
  /** What one node gave. */
  static final class Vote {
    final Locks locks;
    /** 0: it has given nothing, as far as is known, or it has lost it. */
    private volatile long fence;
    private volatile boolean isGone;
    /** A command that may give something had no answer. */
    private volatile boolean doubt;
    private final AtomicBoolean isAsked = new AtomicBoolean();
    private volatile CompletableFuture<Boolean> extension;

    Vote(Locks locks) {
      this.locks = locks;
    }
  }

  private final Quorum quorum;
  private final List<Vote> votes;
  /** Nothing is wanted any more: what is granted later is released. */
  private volatile boolean isEnding;
  private final CompletableFuture<Void> ending = new CompletableFuture<>();
  private final CompletableFuture<Tally> released;

  QuorumHold(Quorum quorum, Request request) {
    super(request, request.owner(), new Lease.Grant(request.mode, 0, Clock.now(), false));
    this.quorum = quorum;
    votes = quorum.nodes.stream().map(Vote::new).toList();
    released = ending.thenCompose(done -> releaseEach(tally -> false));
  }

  /**
   * Asks all nodes at once, in shuffled order. The future has the answers that came until they were enough, or the timeout
   * for nodes. What has no answer by then stays under way.
   */
  CompletableFuture<Tally> each(long ttl, Predicate<Tally> enough, Function<Vote, CompletableFuture<Boolean>> ask) {
    CompletableFuture<Tally> result = new CompletableFuture<>();
    AtomicReference<Tally> tally =
        new AtomicReference<>(Tally.ofNone(votes.stream().map(vote -> vote.locks.servers.transport.name()).toList()));
    Pending.takeThread(); // it must not wait for one node before it asks the next
    List<Vote> order = new ArrayList<>(votes);
    Collections.shuffle(order);
    for (Vote vote : order) {
      CompletableFuture.completedFuture(vote).thenCompose(ask).whenComplete((granted, error) -> {
        Tally now = tally.updateAndGet(before ->
            before.with(votes.indexOf(vote), error == null && granted, error == null ? null : meaning(error)));
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

  /** Of the error of a node. A time-out is that of a command, not of a wait. */
  private static Throwable meaning(Throwable error) {
    Throwable inner = Answers.unwrapped(error);
    return inner instanceof SlockException.TimedOut ? new Answers.Unanswered(inner.getCause(), true) : inner;
  }

  /**
   * Asks a node for the lock, unless it has given it. A node that is slow may follow for at most the ttl; when the hold is
   * extended, it is asked again.
   */
  CompletableFuture<Boolean> acquire(Vote vote, long ttl) {
    Options wanted = request.options.copy();
    wanted.ttl = ttl;
    return get(vote, Clock.in(ttl), limit -> vote.locks.ifPermitted(owner, request.mode, limit, () -> isEnding,
        () -> ask(vote, owner.lock(request.mode, wanted), limit)));
  }

  CompletableFuture<Boolean> adopt(Vote vote) {
    long ttl = request.options.ttl;
    return get(vote, Clock.in(quorum.nodeTimeout(ttl)), limit -> ask(vote, owner.refresh(request.mode, ttl), limit)
        .thenApply(reply -> Answers.hasCode(reply.error(), "WRONGMODE") ? new Reply(0L, null) : reply));
  }

  private CompletableFuture<Reply> ask(Vote vote, List<String> command, long limit) {
    return vote.locks.call(owner, List.of(command), Call.Use.COMMANDS, limit, () -> isEnding).answer
        .thenApply(all -> all.at(0));
  }

  /** Gets the hold of a node, by a command that is sent until it is answered, and tells whether the node has it. */
  private CompletableFuture<Boolean> get(Vote vote, long end, Repetition.Try send) {
    if (vote.fence > 0) {
      return CompletableFuture.completedFuture(true);
    } else if (!vote.isAsked.compareAndSet(false, true)) {
      return CompletableFuture.failedFuture(Answers.NOT_SENT); // but before
    }
    Repetition asked = new Repetition(vote.locks, "lock", owner.keys(), end, limit -> isEnding || quorum.isClosing()
        ? CompletableFuture.completedFuture(Reply.failed(new SlockException.Closed())) : send.send(limit));
    asked.attempt();
    return asked.result.thenApply(reply -> {
      vote.doubt |= asked.isUnanswered;
      vote.fence = reply.number();
      vote.isAsked.set(false);
      if (isEnding && owner.given() && reply.number() > 0) {
        release(vote); // a fresh token has had its end
      }
      return (Long) reply.get() > 0;
    });
  }

  /** Extends the hold of a node, and tells whether it was there. */
  private CompletableFuture<Boolean> extend(Vote vote, long ttl) {
    long fence = vote.fence;
    if (fence == 0) {
      return vote.isGone ? CompletableFuture.completedFuture(false) : CompletableFuture.failedFuture(Answers.NOT_SENT);
    }
    return vote.locks.ask("extension", owner, Clock.in(quorum.nodeTimeout(ttl)),
        limit -> vote.locks.send(owner, owner.extend(ttl, fence), limit)).result.thenApply(reply -> {
          boolean isGone =
              reply.error() == null ? reply.number() == 0 : Answers.hasCode(reply.error(), "WRONGTYPE");
          if (isGone && vote.fence == fence) {
            vote.isGone = true;
            vote.fence = 0;
          }
          return !isGone && (Long) reply.get() > 0;
        });
  }

  /**
   * Releases what a node has, until it answers. What had no answer there is given up only now: its late end could remove
   * what the node grants the same token after that, and the node would refuse the token.
   */
  private CompletableFuture<Boolean> release(Vote vote) {
    long ttl = snapshot().ttl;
    boolean inDoubt = vote.isAsked.get() || vote.doubt;
    long fence = vote.fence;
    if (fence == 0 && !inDoubt) {
      return CompletableFuture.completedFuture(false);
    }
    Repetition asked = inDoubt ? vote.locks.giveUp(owner, ttl, null) : vote.locks.repeat("release", owner, Clock.in(ttl),
        limit -> vote.locks.send(owner, owner.release(request.mode, fence), limit));
    return asked.result.thenApply(reply -> (Long) reply.get() == owner.keys().size() || asked.isUnanswered);
  }

  /** The end of an attempt, once. */
  CompletableFuture<Tally> releaseAll() {
    ending.complete(null);
    return released;
  }

  private CompletableFuture<Tally> releaseEach(Predicate<Tally> enough) {
    isEnding = true;
    return each(snapshot().ttl, enough, this::release);
  }

  @Override
  public List<Long> fences() {
    return votes.stream().map(vote -> vote.fence).toList();
  }

  /**
   * Counts the nodes that still have the hold. Where it is gone, or never was, it is asked for anew after that, with the
   * same token, because a majority has it.
   */
  @Override
  CompletableFuture<Reply> extendAtServer(Lease is, long ttl) {
    long before = Clock.now();
    return each(ttl, Tally::isCertain, vote -> vote.extension = extend(vote, ttl)).thenApply(tally -> {
      if (!tally.isCertain()) {
        return Reply.failed(tally.over(owner.keys()));
      }
      if (tally.isGranted()) {
        votes.forEach(vote -> vote.extension.whenComplete((held, error) -> acquire(vote, ttl)));
      }
      return new Reply(tally.isGranted() ? (Object) before : null, null);
    });
  }

  @Override
  void renewAtServer(Lease.Renewal renewal) {
    extendAtServer(null, renewal.ttl()).thenAccept(reply -> renewed(renewal, reply.value() != null, reply.error()));
  }

  /** Releases on all nodes. Those that do not answer in time are asked again in the background. */
  @Override
  CompletableFuture<Boolean> releaseAtServer(Lease was) {
    boolean isLost = was.state == Lease.State.LOST;
    if (isLost && owner.given()) {
      isEnding = true;
      return CompletableFuture.completedFuture(false);
    }
    return releaseEach(Tally::isCertain).thenApply(tally -> {
      if (!isLost && !tally.isCertain()) {
        throw tally.over(owner.keys());
      }
      return !isLost && tally.isGranted();
    });
  }
}
