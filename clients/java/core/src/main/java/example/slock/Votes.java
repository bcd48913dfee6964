package example.slock;

import static example.slock.Protocol.unwrap;

import example.slock.Protocol.Owner;
import example.slock.Protocol.Signal;
import example.slock.Quorum.Tally;
import example.slock.SlockException.NodeReply;
import example.slock.Transport.Call;
import java.util.List;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executor;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReferenceArray;
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
    nodes = quorum.nodes.stream().map(Vote::new).toList();
  }

  /** What one node gave. */
  static final class Vote {
    private final Server server;
    /** A command that asks for the lock is on its way. */
    private final AtomicBoolean isAsked = new AtomicBoolean();
    /** 0: none. */
    private final AtomicLong fence = new AtomicLong();

    Vote(Server server) {
      this.server = server;
    }

    /** Sends a command that gives a fence or 0. */
    CompletableFuture<Boolean> take(Call call, long until) {
      if (isAsked.getAndSet(true)) { // the command before has no reply yet
        return CompletableFuture.failedFuture(new TimeoutException("the connection is silent"));
      }
      return server.number(call, until, Runnable::run).handle((answer, failure) -> {
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
      return server.number(call, until, Runnable::run).thenApply(answer -> answer.number() > 0)
          .whenComplete((was, error) -> {
            if (Protocol.passes(unwrap(error))) {
              server.deliver(call, Protocol.REFUSE);
            }
          });
    }
  }

  List<Long> fences() {
    return nodes.stream().map(node -> node.fence.get()).toList();
  }

  /**
   * Asks all nodes at once. It gives the replies that came until they were enough, or the time for nodes was over: a node that
   * has not replied by then may still do so.
   */
  CompletableFuture<Tally> ask(long ttl, Predicate<Tally> isEnough, Question question) {
    Settings s = quorum.settings;
    long byDefault = Math.min(Math.max(ttl / 20, 50 * Clock.MS), s.retryFor);
    long timeout = Math.min(s.nodeTimeout > 0 ? s.nodeTimeout : byDefault, ttl / 10 * 9);
    long until = Clock.now() + timeout;
    AtomicReferenceArray<NodeReply> came = new AtomicReferenceArray<>(nodes.size());
    for (int i = 0; i < nodes.size(); i++) {
      String name = nodes.get(i).server.transport.topology().name();
      came.set(i, new NodeReply(name, false, new TimeoutException("the node is silent")));
    }
    CompletableFuture<Tally> result = new CompletableFuture<>();
    AtomicLong missing = new AtomicLong(nodes.size());
    for (int i = 0; i < nodes.size(); i++) {
      int n = i;
      question.ask(nodes.get(n), until).whenComplete((granted, error) -> {
        came.set(n, new NodeReply(came.get(n).node(), error == null && granted, unwrap(error)));
        Tally tally = tally(came);
        if (missing.decrementAndGet() == 0 || isEnough.test(tally)) {
          result.complete(tally);
        }
      });
    }
    var timer = Clock.after(timeout, () -> result.complete(tally(came)));
    result.whenComplete((tally, error) -> timer.cancel(false));
    return result;
  }

  private static Tally tally(AtomicReferenceArray<NodeReply> came) {
    return new Tally(IntStream.range(0, came.length()).mapToObj(came::get).toList());
  }

  /** Asks all nodes once for the lock. Without a majority in time it ends what they gave. */
  CompletableFuture<Tally> attempt(Acquisition acquisition) {
    long ttl = request.settings.ttl;
    Call call = owner.lock(request.mode, request.settings);
    Predicate<Tally> isEnough = tally -> tally.isGranted() || quorum.settings.failFast && tally.isOutOfReach();
    CompletableFuture<Tally> asked = acquisition.pend(ask(ttl, isEnough, (node, until) -> node.take(call, until)));
    return asked.handle((tally, failure) -> {
      boolean isGranted = failure == null && tally.isGranted() && Clock.now() - sent < quorum.counted(ttl);
      if (isGranted && !acquisition.isLeft()) {
        return CompletableFuture.completedFuture(tally); // the other nodes may still grant
      }
      // It waits, because the next attempt would find what this one holds.
      return ask(ttl, none -> false, (node, until) -> node.release(owner, until)).thenCompose(ended -> failure == null
          ? CompletableFuture.completedFuture(tally.inVain()) : CompletableFuture.<Tally>failedFuture(Signal.LEFT));
    }).thenCompose(done -> done);
  }

  /**
   * Counts the nodes that still have the hold with the fence that they gave. All are sent the command that asks for the lock:
   * for the same owner token it extends the hold, and it brings a node back that has lost it.
   */
  @Override
  public CompletableFuture<Server.Answer> extend(Owner owner, Extension e, long until, Executor on) {
    Call call = owner.lock(request.mode, e.wanted().with(s -> s.ttl = e.ttl()));
    long now = Clock.now();
    return ask(e.ttl(), Tally::isCertain, (node, end) -> {
      long before = node.fence.get();
      return node.take(call, end).handle((granted, failure) -> {
        if (failure == null || Protocol.code(unwrap(failure)).equals("GRACE")) { // it gives no new hold: it has not got this one
          return failure == null && before != 0 && node.fence.get() == before;
        }
        throw Protocol.failure(unwrap(failure));
      });
    }).thenApply(tally -> new Server.Answer(certainly(tally, Clock.now() - now) ? 1 : 0, now, true));
  }

  @Override
  public CompletableFuture<Boolean> end(Owner owner, long fence, long after, boolean isWaitedFor, Executor on) {
    return ask(request.settings.ttl, Tally::isCertain, (node, until) -> after > 0
        ? node.server.end(owner, node.fence.get(), after, true, on) : node.release(owner, until))
            .thenApply(tally -> certainly(tally, 0));
  }

  private boolean certainly(Tally tally, long waited) {
    if (!tally.isCertain()) {
      throw tally.missed(owner.names(), waited);
    }
    return tally.isGranted();
  }
}
