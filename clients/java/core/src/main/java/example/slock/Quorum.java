package example.slock;

import java.util.List;
import java.util.concurrent.CompletableFuture;

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
    return new QuorumHold(this, write(owner.keys().toArray(String[]::new)))
        .each(options.ttl, tally -> false, vote -> vote.locks.releaseToken(owner).thenApply(n -> n > 0))
        .thenApply(Tally::granted);
  }

  @Override
  Lease.Drift drift() {
    return new Lease.Drift(options.driftFactor, 2 * Clock.MS);
  }

  /** How long to wait for one node. */
  long nodeTimeout(long ttl) {
    long timeout = options.nodeTimeout > 0 ? options.nodeTimeout
        : Math.min(Math.max(ttl / 20, 50 * Clock.MS), options.retryFor);
    return Math.min(timeout, ttl * 9 / 10);
  }

  @Override
  void disconnect(long end) {
    nodes.forEach(node -> node.close(end));
  }

  @Override
  Pending<Hold> begin(Request request, boolean once) {
    Attempts attempts = new Attempts(request, once);
    Pending<Hold> pending = noted(new Pending<>(attempts.result, attempts::cancel));
    attempts.attempt();
    return pending;
  }

  @Override
  CompletableFuture<Hold> adopt(Request request) {
    QuorumHold hold = new QuorumHold(this, request);
    return hold.each(request.options.ttl, tally -> false, hold::adopt).thenApply(tally -> {
      if (tally.isGranted()) {
        return hold.begin();
      }
      throw tally.isRefusal() ? new SlockException.NotHeld("not all keys, for " + request.mode, null)
          : tally.over(request.keys);
    });
  }

  /** One use of a request: attempts until a majority has granted. A step that comes after the end leads to nothing. */
  private final class Attempts {
    final CompletableFuture<Hold> result = new CompletableFuture<>();
    private final Request request;
    private final boolean isTry;
    private final long deadline;
    /** Until when it is asked again while no majority answers. */
    private long limit;
    private final Polling polling = options.waiting == Options.Waiting.POLL ? options.polling : Polling.OF_QUORUM;
    private volatile QuorumHold asked;
    private int count;

    Attempts(Request request, boolean isTry) {
      this.request = request;
      this.isTry = isTry;
      deadline = Clock.in(request.options.wait);
      limit = Clock.in(options.retryFor);
    }

    void cancel(Throwable why) {
      if (result.completeExceptionally(why) && asked != null) {
        asked.releaseAll();
      }
    }

    /**
     * Asks all nodes once, with a token of its own. When the majority is out of reach it releases, so that others may have
     * it, and waits for the other answers only to tell them; with failFast it does not.
     */
    void attempt() {
      QuorumHold hold = new QuorumHold(Quorum.this, request);
      asked = hold;
      if (result.isDone()) {
        return;
      }
      hold.each(request.options.ttl, tally -> {
        if (tally.isOutOfReach()) {
          hold.releaseAll();
        }
        return tally.isGranted() || tally.isOutOfReach() && options.failFast;
      }, vote -> hold.acquire(vote, request.options.ttl)).thenAccept(tally -> {
        if (tally.isGranted() && !hold.timeLeft().isZero() && result.complete(hold)) {
          hold.begin(); // the other nodes may still grant
        } else {
          hold.releaseAll().thenRun(() -> judge(tally)); // else the next attempt would find what this one holds
        }
      });
    }

    private void judge(Tally tally) {
      boolean isOnce = isTry || request.options.wait == 0;
      long pause = polling.pause(count);
      limit = tally.isRefusal() ? Clock.in(options.retryWaitFor) : limit;
      boolean hasMore = polling.hasMore(count++) && Clock.until(Math.min(deadline, limit)) >= pause;
      if (isTry && tally.isRefusal()) {
        result.complete(null);
      } else if (isOnce || !tally.mayHelp() || !hasMore) {
        result.completeExceptionally(tally.over(request.keys));
      } else {
        Timers.at(Clock.in(pause), this::attempt);
      }
    }
  }
}
