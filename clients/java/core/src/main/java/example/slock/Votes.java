package example.slock;

import static example.slock.Protocol.unwrap;

import example.slock.Acquisition.Grant;
import example.slock.Protocol.Owner;
import example.slock.Protocol.Signal;
import example.slock.Quorum.Tally;
import example.slock.SlockException.NodeReply;
import example.slock.Transport.Call;
import java.util.List;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.Predicate;
import java.util.stream.IntStream;

/** What the nodes of a quorum gave one owner. */
final class Votes implements Keeper {
  /** A question to one node, whose answer is whether it granted. */
  interface Question {
    CompletableFuture<Boolean> ask(Vote node, long until);
  }

  private final Quorum quorum;
  private final Request request;
  final Owner owner;
  /** Before the first command was sent. */
  final long sent = Clock.now();
  private final List<Vote> nodes;

  Votes(Quorum quorum, Request request) {
    this.quorum = quorum;
    this.request = request;
    owner = Owner.of(request.keys, request.settings);
    nodes = quorum.nodes.stream().map(server -> new Vote(server, new AtomicBoolean(), new AtomicLong())).toList();
  }

  /**
   * What one node gave.
   *
   * @param isAsked a command that asks for the lock is on its way
   * @param fence 0: none
   */
  record Vote(Server server, AtomicBoolean isAsked, AtomicLong fence) {
    /** Sends a command that gives a fence or 0. */
    CompletableFuture<Boolean> take(Call call, long until) {
      if (isAsked.getAndSet(true)) { // the command before has no reply yet
        return CompletableFuture.failedFuture(new TimeoutException("the connection is silent"));
      }
      return server.number(call, until).handle((answer, failure) -> {
        isAsked.set(false);
        if (failure == null) {
          fence.set(answer.number());
          return answer.number() > 0;
        } else if (Set.of("WRONGMODE", "NOTHELD", "WRONGTYPE").contains(Protocol.code(unwrap(failure)))) {
          fence.set(0);
          return false;
        }
        throw Protocol.failure(unwrap(failure));
      });
    }

    /** Ends the hold here, in the background if the node does not reply in time. */
    CompletableFuture<Boolean> release(Owner owner, long until) {
      Call call = owner.end(fence.getAndSet(0));
      return server.number(call, until).thenApply(answer -> answer.number() > 0).whenComplete((was, error) -> {
        if (Protocol.passes(unwrap(error))) {
          server.deliver(call, Protocol.REFUSE);
        }
      });
    }
  }

  Grant grant() {
    return new Grant(this, owner, 0, sent);
  }

  List<Long> fences() {
    return nodes.stream().map(node -> node.fence.get()).toList();
  }

  /**
   * Asks all nodes at once. It gives the replies that came until they were enough, or the time for nodes was over: a node that
   * has not replied by then may still do so. A connection is not silent because a reply takes longer than that time.
   */
  CompletableFuture<Tally> ask(long ttl, Predicate<Tally> isEnough, Question question) {
    Settings s = quorum.settings;
    long byDefault = Math.min(Math.max(ttl / 20, 50 * Clock.MS), s.retryFor);
    long timeout = Math.min(s.nodeTimeout > 0 ? s.nodeTimeout : byDefault, ttl / 10 * 9);
    long until = Clock.now() + Math.max(timeout, Server.TRY);
    NodeReply[] came = nodes.stream().map(node -> new NodeReply(node.server.topology.name(), false,
        new TimeoutException("the node is silent"))).toArray(NodeReply[]::new);
    CompletableFuture<Tally> result = new CompletableFuture<>();
    CompletableFuture<?>[] asked = IntStream.range(0, came.length).mapToObj(
        n -> question.ask(nodes.get(n), until).handle((granted, error) -> {
          Tally tally;
          synchronized (came) {
            came[n] = new NodeReply(came[n].node(), error == null && granted, unwrap(error));
            tally = new Tally(List.of(came));
          }
          return isEnough.test(tally) && result.complete(tally);
        })).toArray(CompletableFuture[]::new);
    Runnable end = () -> {
      synchronized (came) {
        result.complete(new Tally(List.of(came)));
      }
    };
    CompletableFuture.allOf(asked).thenRun(end);
    var timer = Clock.after(timeout, end);
    result.whenComplete((tally, error) -> timer.cancel(false));
    return result;
  }

  /** Asks all nodes once for the lock. Without a majority in time it ends what they gave. */
  CompletableFuture<Tally> attempt(Acquisition acquisition) {
    long ttl = request.settings.ttl;
    Call call = owner.lock(request.mode, request.settings);
    Predicate<Tally> isEnough = tally -> tally.isGranted() || quorum.settings.failFast && tally.isOutOfReach();
    CompletableFuture<Tally> asked = acquisition.pend(ask(ttl, isEnough, (node, until) -> node.take(call, until)));
    return asked.handle((tally, failure) -> {
      boolean isInTime = failure == null && Clock.now() - sent < quorum.counted(ttl) && !acquisition.isLeft();
      if (isInTime && tally.isGranted()) {
        return CompletableFuture.completedFuture(tally); // the other nodes may still grant
      }
      // It waits, because the next attempt would find what this one holds.
      return releaseAll().thenApply(ended -> {
        if (failure != null || acquisition.isLeft()) {
          throw Signal.LEFT;
        }
        return tally.inVain();
      });
    }).thenCompose(done -> done);
  }

  CompletableFuture<Tally> releaseAll() {
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
    return certainly(ttl, (node, until) -> {
      long before = node.fence.get();
      return node.take(call, until).handle((granted, failure) -> {
        if (failure == null || Protocol.code(unwrap(failure)).equals("GRACE")) { // it gives no new hold: it has not got this one
          return failure == null && before != 0 && node.fence.get() == before;
        }
        throw Protocol.failure(unwrap(failure));
      });
    }).thenApply(isHeld -> new Server.Answer(isHeld ? 1 : 0, now, true));
  }

  @Override
  public CompletableFuture<Boolean> end(Owner owner, long fence, long after) {
    return certainly(request.settings.ttl, (node, until) -> after > 0
        ? node.server.end(owner, node.fence.get(), after) : node.release(owner, until));
  }

  @Override
  public void endLater(Owner owner, long fence, long after) {
    end(owner, fence, after);
  }

  /** Whether a majority says so. It fails if there is none for either. */
  private CompletableFuture<Boolean> certainly(long ttl, Question question) {
    long began = Clock.now();
    return ask(ttl, Tally::isCertain, question).thenApply(tally -> {
      if (!tally.isCertain()) {
        throw tally.missed(owner.names(), Clock.now() - began);
      }
      return tally.isGranted();
    });
  }
}
