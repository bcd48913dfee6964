package example.slock;

import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.function.Consumer;

/**
 * Locks on several independent servers: N {@link Locks}, and arithmetic. A hold counts while a majority of the servers
 * has it, so that it outlives the loss of a minority. It polls, because no server knows of the others.
 */
public final class Quorum extends Locker {
  final List<Locks> nodes;

  /** Not from replicas or nodes of one another. Their number should be odd. Nothing is sent. */
  public Quorum(List<? extends Transport> transports, Options options) {
    super(options);
    Options.require(!transports.isEmpty(), "a quorum needs servers");
    Options each = options.copy().hooks(Reporter.SILENT); // a loss at one node is no loss
    nodes = transports.stream().map(transport -> new Locks(transport, each)).toList();
  }

  @Override
  CompletableFuture<Integer> releaseToken(Commands owner) {
    Votes votes = new Votes(this, null, owner);
    return votes.each(options.ttl, tally -> false, vote -> vote.locks.releaseToken(owner).thenApply(n -> n > 0))
        .thenApply(Tally::granted);
  }

  @Override
  Lease.Drift drift() {
    return new Lease.Drift(options.driftFactor, 2 * Clock.MS);
  }

  /** How long to wait for one node. */
  long nodeTimeout(long ttl) {
    long timeout = options.nodeTimeout > 0 ? options.nodeTimeout : Math.max(ttl / 20, 50 * Clock.MS);
    return Math.min(timeout, ttl * 9 / 10);
  }

  @Override
  void disconnect(long end) {
    nodes.forEach(node -> node.close(end));
  }

  @Override
  Pending<Hold> begin(Request request, boolean once) {
    Attempts attempts = new Attempts(request, once);
    Pending<Hold> pending = running.add(new Pending<>(attempts.result, attempts.leaving::complete));
    attempts.attemptAfter(0);
    return pending;
  }

  @Override
  CompletableFuture<Hold> adopt(Request request) {
    Votes votes = new Votes(this, request, request.owner());
    long ttl = request.options.ttl;
    return votes.each(ttl, tally -> false, vote -> votes.adopt(vote, ttl)).thenApply(tally -> {
      if (tally.isGranted()) {
        return votes.hold();
      }
      throw tally.isRefusal() ? new SlockException.NotHeld("not all keys, for " + request.mode, null)
          : tally.over(request.keys);
    });
  }

  /** One use of a request: attempts until a majority has granted. */
  private final class Attempts {
    final CompletableFuture<Hold> result = new CompletableFuture<>();
    /** Why it is given up. */
    final CompletableFuture<Throwable> leaving = new CompletableFuture<>();
    private final Request request;
    private final boolean isTry;
    private final long deadline;
    private final Polling polling = options.waiting == Options.Waiting.POLL ? options.polling : Polling.OF_QUORUM;
    private volatile Votes votes;
    private int count;

    Attempts(Request request, boolean isTry) {
      this.request = request;
      this.isTry = isTry;
      deadline = Clock.in(request.options.wait);
    }

    /** Goes on with what is asked for, or ends when somebody leaves. */
    private <T> void then(CompletableFuture<T> asked, Consumer<T> next) {
      CompletableFuture.anyOf(asked, leaving).thenRun(() -> {
        if (!leaving.isDone()) {
          next.accept(asked.join());
          return;
        }
        if (votes != null) {
          votes.releaseAll();
        }
        result.completeExceptionally(leaving.join());
      });
    }

    void attemptAfter(long pause) {
      CompletableFuture<Void> pausing = new CompletableFuture<>();
      Timers.at(Clock.in(pause), () -> pausing.complete(null));
      then(pausing, done -> attempt());
    }

    /**
     * Asks all nodes once, with a token of its own. When the majority is out of reach it releases, so that others may have
     * it, and waits for the other answers only to tell them; with failFast it does not.
     */
    private void attempt() {
      Votes asked = new Votes(Quorum.this, request, request.owner());
      votes = asked;
      long ttl = request.options.ttl;
      then(asked.each(ttl, tally -> {
        if (tally.isOutOfReach()) {
          asked.releaseAll();
        }
        return tally.isGranted() || tally.isOutOfReach() && options.failFast;
      }, vote -> asked.acquire(vote, ttl)), tally -> {
        if (tally.isGranted() && Clock.now() - asked.sent < drift().counted(ttl)) {
          result.complete(asked.hold()); // the other nodes may still grant
        } else {
          then(asked.releaseAll(), released -> judge(tally)); // else the next attempt would find what this one holds
        }
      });
    }

    private void judge(Tally tally) {
      boolean isOnce = isTry || request.options.wait == 0;
      long pause = polling.pause(count);
      boolean hasMore = polling.hasMore(count++) && Clock.until(deadline) >= pause;
      if (isTry && tally.isRefusal()) {
        result.complete(null);
      } else if (isOnce || !tally.mayHelp() || !hasMore) {
        result.completeExceptionally(tally.over(request.keys));
      } else {
        attemptAfter(pause);
      }
    }
  }
}
