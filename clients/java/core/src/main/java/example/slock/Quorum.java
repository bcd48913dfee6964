// SPDX-License-Identifier: MIT OR Apache-2.0

package example.slock;

import static example.slock.Protocol.unwrap;

import example.slock.Acquisition.Grant;
import example.slock.Protocol.Owner;
import example.slock.SlockException.NodeReply;
import example.slock.Transport.Call;
import java.util.List;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.Predicate;
import java.util.stream.IntStream;

/** Several independent servers, and arithmetic. The algorithm is that of redsync and of the Redis documentation. */
final class Quorum implements Backend {
  private final Locks locks;
  private final Settings settings;

  Quorum(Locks locks) {
    this.locks = locks;
    this.settings = locks.settings;
  }

  @Override
  public long counted(long ttl) {
    return ttl - (long) (ttl * settings.driftFactor) - 2 * Clock.MS;
  }

  /** Each attempt has an owner token of its own, and ends what it got in vain. */
  @Override
  public Acquisition acquisition(Request request, boolean isTry) {
    return new Acquisition(locks, request.keys, request.settings, isTry) {
      private Tally tally;
      /** What a majority has to take before the lock is asked for; null from then on. */
      private Call question = Owner.of(request).question(request.settings);

      @Override
      CompletableFuture<Grant> failed(boolean isPastDeadline) {
        return tally == null ? super.failed(isPastDeadline)
            : CompletableFuture.failedFuture(tally.missed(names, Clock.now() - began));
      }

      private CompletableFuture<Grant> ask() {
        return pend(new Votes(request).ask(wanted.ttl, Tally::isGranted, Vote.question(question))).thenCompose(got -> {
          if (got.isGranted()) {
            question = null;
            last = null;
            polls = 0;
            return attempt();
          }
          tally = got;
          last = new TimeoutException("too few nodes replied");
          return again();
        });
      }

      private CompletableFuture<Grant> again() {
        long pause = isOnce || tally.isFinal() ? -1 : Quorum.this.settings.polling.pause(polls++);
        return pause < 0 ? failed(false) : pause(pause);
      }

      @Override
      CompletableFuture<Grant> attempt() {
        if (question != null) {
          return ask();
        }
        Votes votes = new Votes(request);
        return votes.attempt(this).thenCompose(got -> {
          tally = got;
          last = null;
          if (tally.isGranted()) {
            return CompletableFuture.completedFuture(votes.grant());
          } else if (tally.isRefused() && isTry) {
            return CompletableFuture.completedFuture(null);
          } else if (tally.isRefused()) {
            noteReply();
          } else {
            last = new TimeoutException("too few nodes replied");
          }
          return again();
        });
      }
    };
  }

  @Override
  public CompletableFuture<Grant> adopt(Request r) {
    Call question = Owner.of(r).question(r.settings);
    CompletableFuture<?> asked = question == null ? CompletableFuture.completedFuture(null)
        : new Votes(r).decide(r.settings.ttl, Vote.question(question));
    return asked.thenCompose(yes -> {
      Votes votes = new Votes(r);
      Call call = votes.owner.adopt(r.mode, r.settings.ttl, r.settings.metadata());
      return votes.decide(r.settings.ttl, (node, until) -> node.take(call, until, false)).thenApply(isHeld -> isHeld ? votes.grant() : null);
    });
  }

  @Override
  public CompletableFuture<Integer> release(Request r) {
    return new Votes(r).releaseAll().thenApply(tally -> tally.count(NodeReply::granted));
  }

  /** The replies of all nodes. Those that have not replied have an error that says that nothing came. */
  private record Tally(List<NodeReply> replies) {
    int count(Predicate<NodeReply> is) {
      return (int) replies.stream().filter(is).count();
    }

    boolean isGranted() {
      return count(NodeReply::granted) > replies.size() / 2;
    }

    /** Others have the lock at so many nodes that there can be no majority, whatever the others say. */
    boolean isRefused() {
      return count(r -> !r.granted() && r.error() == null) > (replies.size() - 1) / 2;
    }

    /** A majority is out of reach. */
    boolean isOutOfReach() {
      return count(r -> !r.granted() && !Server.isSilent(r.error())) > (replies.size() - 1) / 2;
    }

    /** A majority of nodes gives errors that last. */
    boolean isFinal() {
      return count(r -> r.error() != null && !Protocol.passes(r.error())) > replies.size() / 2;
    }

    boolean isCertain() {
      return isGranted() || isRefused();
    }

    /** The error of a call that got no majority. */
    SlockException missed(List<String> keys, long waited) {
      String text = "no majority of " + replies.size() + " nodes after " + Clock.text(waited);
      SlockException missed = new SlockException.QuorumMissed(keys, text, replies);
      return isRefused() ? new SlockException.TimedOut(keys, text, List.of(), missed) : missed;
    }

    /** The same without grants: they came too late, or were too few. */
    Tally inVain() {
      Throwable error = new RuntimeException("granted, and released since there was no majority");
      return new Tally(replies.stream().map(r -> r.granted() ? new NodeReply(r.node(), false, error) : r).toList());
    }
  }

  /** A question to one node, whose answer is whether it granted. */
  private interface Question {
    CompletableFuture<Boolean> ask(Vote node, long until);
  }

  /**
   * What one node gave.
   *
   * @param fence 0: none
   * @param asked complete when the last command that asks for the lock has its reply
   * @param isEnded no such command is sent any more: a node that has restarted does not know of the end, and would grant the lock
   */
  private record Vote(Server server, AtomicLong fence, AtomicReference<CompletableFuture<?>> asked, AtomicBoolean isEnded) {
    Vote(Server server) {
      this(server, new AtomicLong(), new AtomicReference<>(CompletableFuture.completedFuture(null)), new AtomicBoolean());
    }

    /** Asks whether the node takes {@code atLeast} as a ttl. */
    static Question question(Call call) {
      return (node, until) -> node.server.question(call, until).thenApply(answer -> true);
    }

    /** Sends a command that gives a fence or 0, when the one before has its reply. An extension is of the hold that is here. */
    CompletableFuture<Boolean> take(Call call, long until, boolean isExtension) {
      CompletableFuture<Void> done = new CompletableFuture<>();
      return asked.getAndSet(done).thenCompose(none -> {
        long before = fence.get();
        return (isEnded.get() || Clock.now() >= until
            ? CompletableFuture.<Server.Answer>failedFuture(new TimeoutException("the connection is silent"))
            : server.number(call, until)).handle((answer, failure) -> {
              String code = Protocol.code(unwrap(failure));
              if (code.equals("GRACE") && isExtension) { // it gives no new hold, so it has not got this one
                return false;
              }
              boolean isGone = Set.of("WRONGMODE", "NOTHELD", "WRONGTYPE").contains(code);
              if (failure != null && !isGone) {
                throw Protocol.failure(unwrap(failure));
              }
              fence.set(isGone ? 0 : answer.number());
              return fence.get() > 0 && (!isExtension || fence.get() == before);
            });
      }).whenComplete((granted, failure) -> done.complete(null));
    }

    /** Ends the hold here, in the background if the node does not reply in time. */
    CompletableFuture<Boolean> release(Owner owner, long until) {
      isEnded.set(true);
      Call call = owner.end(fence.getAndSet(0));
      return server.number(call, until).thenApply(answer -> answer.number() > 0).whenComplete((was, error) -> {
        if (Protocol.passes(unwrap(error))) {
          server.deliver(Protocol.REFUSE, List.of(call));
        }
      });
    }
  }

  /** What the nodes gave one owner: where a hold is kept. */
  final class Votes implements Keeper {
    private final Request request;
    private final Owner owner;
    /** Before the first command was sent. */
    private final long sent = Clock.now();
    private final List<Vote> nodes = locks.servers.stream().map(Vote::new).toList();

    private Votes(Request request) {
      this.request = request;
      this.owner = Owner.of(request);
    }

    private Grant grant() {
      return new Grant(this, owner, 0, sent);
    }

    List<Long> fences() {
      return nodes.stream().map(node -> node.fence.get()).toList();
    }

    /**
     * Asks all nodes at once. It gives the replies that came until they were enough, or the time for nodes was over: a node that
     * has not replied by then may still do so. A connection is not silent because a reply takes longer than that time.
     */
    private CompletableFuture<Tally> ask(long ttl, Predicate<Tally> isEnough, Question question) {
      long byDefault = Math.min(Math.max(ttl / 20, 50 * Clock.MS), settings.retryFor);
      long timeout = Math.min(settings.nodeTimeout > 0 ? settings.nodeTimeout : byDefault, ttl / 10 * 9);
      long until = Clock.now() + Math.max(timeout, Server.TRY);
      List<NodeReply> came = new CopyOnWriteArrayList<>(nodes.stream().map(node ->
          new NodeReply(node.server.topology.name(), false, new TimeoutException("the node is silent"))).toList());
      CompletableFuture<Void> enough = new CompletableFuture<>();
      CompletableFuture<?>[] asked = IntStream.range(0, came.size()).mapToObj(
          // A connection that ended while nobody used it says nothing of its node.
          n -> question.ask(nodes.get(n), until).exceptionallyCompose(error -> Server.isBroken(unwrap(error))
              ? question.ask(nodes.get(n), until) : CompletableFuture.failedFuture(error)).handle((granted, error) -> {
                came.set(n, new NodeReply(came.get(n).node(), error == null && granted, unwrap(error)));
                return isEnough.test(new Tally(List.copyOf(came))) && enough.complete(null);
              })).toArray(CompletableFuture[]::new);
      return CompletableFuture.anyOf(enough, CompletableFuture.allOf(asked)).orTimeout(timeout, TimeUnit.NANOSECONDS)
          .handle((done, late) -> new Tally(List.copyOf(came)));
    }

    /** Asks all nodes at once, and tells whether a majority says so. It fails if there is none for either. */
    private CompletableFuture<Boolean> decide(long ttl, Question question) {
      long began = Clock.now();
      return ask(ttl, Tally::isCertain, question).thenApply(tally -> {
        if (!tally.isCertain()) {
          throw tally.missed(owner.names(), Clock.now() - began);
        }
        return tally.isGranted();
      });
    }

    /** Asks all nodes once for the lock. Without a majority in time it ends what they gave. */
    private CompletableFuture<Tally> attempt(Acquisition acquisition) {
      long ttl = request.settings.ttl;
      Call call = owner.lock(request.mode, request.settings);
      Predicate<Tally> isEnough = tally -> tally.isGranted() || settings.failFast && tally.isOutOfReach();
      return acquisition.pend(ask(ttl, isEnough, (node, until) -> node.take(call, until, false))).handle((tally, left) -> {
        boolean isInTime = left == null && Clock.now() - sent < counted(ttl);
        return isInTime && tally.isGranted() ? CompletableFuture.completedFuture(tally) // the other nodes may still grant
            // It waits, because the next attempt would find what this one holds.
            : releaseAll().thenCompose(ended -> left == null ? CompletableFuture.completedFuture(tally.inVain())
                : CompletableFuture.<Tally>failedFuture(left));
      }).thenCompose(done -> done);
    }

    private CompletableFuture<Tally> releaseAll() {
      return ask(request.settings.ttl, tally -> false, (node, until) -> node.release(owner, until));
    }

    /**
     * Counts the nodes that still have the hold with the fence that they gave. All are sent the command that asks for the lock:
     * for the same owner token it extends the hold, and it brings a node back that has lost it.
     */
    @Override
    public CompletableFuture<Server.Answer> extend(Owner owner, long ttl, long fence, Settings wanted, long end) {
      Call call = owner.lock(request.mode, wanted.with(s -> s.ttl = ttl));
      long now = Clock.now();
      return decide(ttl, (node, until) -> node.take(call, until, true))
          .thenApply(isHeld -> new Server.Answer(isHeld ? 1 : 0, now, true));
    }

    @Override
    public CompletableFuture<Boolean> end(Owner owner, long fence, long after) {
      nodes.forEach(node -> node.isEnded.set(true));
      return decide(request.settings.ttl, (node, until) -> after > 0
          ? node.server.end(owner, node.fence.get(), after) : node.release(owner, until));
    }

    @Override
    public void endLater(Owner owner, long fence, long after) {
      end(owner, fence, after);
    }
  }
}
