package example.slock;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;

/**
 * Locks on several independent servers: N {@link Locks}, and arithmetic. A hold counts while a majority of the servers
 * has it, so that it outlives the loss of a minority. It polls, because no server knows of the others.
 */
public final class Quorum implements Locker {
  final List<Locks> nodes = new ArrayList<>();
  final Options options;
  final Reporter report;
  final Watchdog watchdog = new Watchdog();
  final Running running = new Running();
  final CompletableFuture<Void> ending = new CompletableFuture<>();
  private final Inside inside = new Inside();
  private final boolean polls;

  /** Not from replicas or nodes of one another. Their number should be odd. Nothing is sent. */
  public Quorum(List<? extends Transport> transports, Options options) {
    this.options = options.copy();
    polls = options.waiting == Options.Waiting.POLL;
    report = new Reporter(options.hooks, false);
    Options each = options.copy().hooks(new Hooks() {});
    transports.forEach(transport -> nodes.add(new Locks(transport, each, true))); // a loss at one node is no loss
  }

  @Override
  public Request write(String... keys) {
    return new Request(inside, List.of(keys), Mode.WRITE, options.request.copy());
  }

  @Override
  public Request read(String... keys) {
    return new Request(inside, List.of(keys), Mode.READ, options.request.copy());
  }

  @Override
  public int release(List<String> keys, String token) {
    Settings.require(!keys.isEmpty() && !token.isEmpty(), "a release needs a token and keys");
    List<String> all = List.copyOf(keys);
    Votes votes = new Votes(this, null, new Commands(all, token, true));
    return Pending.join(() -> votes.each(options.request.ttl, tally -> false,
        vote -> vote.locks.releaseToken(all, token).thenApply(n -> n > 0), ending)).granted();
  }

  Lease.Drift drift() {
    return new Lease.Drift(options.driftFactor, 2 * Clock.MS);
  }

  /** How long to wait for one node. */
  long nodeTimeout(long ttl) {
    long timeout = options.nodeTimeout > 0 ? options.nodeTimeout : Math.max(ttl / 20, 50 * Clock.MS);
    return Math.min(timeout, ttl * 9 / 10);
  }

  /** Lets what was given up and the releases get to the servers first, for at most {@link Options#retryFor}. */
  @Override
  public void close() {
    watchdog.close();
    running.end(options.retryFor);
    ending.complete(null);
    List<Thread> closing = nodes.stream().map(node -> new Thread(node::close, "slock-close")).toList();
    closing.forEach(Thread::start);
    for (Thread thread : closing) {
      try {
        thread.join();
      } catch (InterruptedException e) {
        Thread.currentThread().interrupt();
        return;
      }
    }
  }

  private final class Inside implements Request.By {
    @Override
    public Options options() {
      return options;
    }

    @Override
    public void check(Request request) {
      Settings.require(!nodes.isEmpty(), "a quorum needs servers");
      Settings.require(drift().counted(request.settings.ttl) > 0, "the ttl must be more than 2 ms and the drift");
    }

    @Override
    public Pending<Hold> acquire(Request request, boolean once) {
      long began = Clock.now();
      CompletableFuture<Hold> result = new CompletableFuture<>();
      Attempts attempts = new Attempts(request, once);
      attempts.result.whenComplete((votes, error) -> {
        running.remove(attempts);
        report.waited(request.label(), began, error == null && votes == null ? "refused" : Answers.outcome(error));
        Pending.pass(votes == null ? null : votes.hold(), error, result);
      });
      running.add(attempts);
      attempts.attempt();
      return new Pending<>(result, attempts::cancel);
    }

    @Override
    public CompletableFuture<Hold> adopt(Request request) {
      Votes votes = new Votes(Quorum.this, request, request.owner());
      long ttl = request.settings.ttl;
      return votes.each(ttl, tally -> false, vote -> votes.adopt(vote, ttl), ending).thenApply(tally -> {
        if (tally.isGranted()) {
          return votes.hold();
        }
        throw tally.isRefusal() ? new SlockException.NotHeld("not all keys, for " + request.mode, null)
            : tally.over(request.keys);
      });
    }
  }

  /** One use of a request: attempts until a majority has granted. */
  private final class Attempts implements Running.One {
    /** Null when a request that tries once is refused. */
    final CompletableFuture<Votes> result = new CompletableFuture<>();
    private final Request request;
    private final boolean isTry;
    private final long deadline;
    private final Polling polling = polls ? options.polling : Polling.OF_QUORUM;
    private final CompletableFuture<Void> leaving = new CompletableFuture<>();
    private volatile Throwable left;
    private int count;

    Attempts(Request request, boolean isTry) {
      this.request = request;
      this.isTry = isTry;
      deadline = Clock.in(request.settings.wait);
    }

    @Override
    public void cancel(Throwable why) {
      if (left == null) {
        left = why;
      }
      leaving.complete(null);
    }

    /**
     * Asks all nodes once, with a token of its own. When the majority is out of reach it releases, so that others may have
     * it, and waits for the other answers only to tell them; with failFast it does not.
     */
    void attempt() {
      if (left != null) {
        result.completeExceptionally(left);
        return;
      }
      Votes votes = new Votes(Quorum.this, request, request.owner());
      long ttl = request.settings.ttl;
      votes.each(ttl, tally -> {
        if (tally.isOutOfReach()) {
          votes.releaseAll();
        }
        return tally.isGranted() || tally.isOutOfReach() && options.failFast;
      }, vote -> votes.acquire(vote, ttl), leaving).thenAccept(tally -> {
        if (tally.isGranted() && Clock.now() - votes.sent < drift().counted(ttl)) {
          result.complete(votes); // the other nodes may still grant
          return;
        }
        // Else the next attempt would find what this one holds.
        CompletableFuture.anyOf(votes.releaseAll(), leaving).thenRun(() -> judge(tally));
      });
    }

    private void judge(Tally tally) {
      boolean isOnce = isTry || request.settings.wait == 0;
      long pause = polling.pause(count);
      boolean hasMore = polling.hasMore(count++) && Clock.until(deadline) >= pause;
      if (left != null) {
        result.completeExceptionally(left);
      } else if (isTry && tally.isRefusal()) {
        result.complete(null);
      } else if (isOnce || !tally.mayHelp() || !hasMore) {
        result.completeExceptionally(tally.over(request.keys));
      } else {
        CompletableFuture<Void> pausing = new CompletableFuture<>();
        Timers.at(Clock.in(pause), () -> pausing.complete(null));
        CompletableFuture.anyOf(pausing, leaving).thenRun(this::attempt);
      }
    }
  }
}
