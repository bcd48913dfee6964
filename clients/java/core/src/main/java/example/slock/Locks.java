package example.slock;

import java.util.List;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;

/**
 * What a program makes once, by {@code LettuceLocks} or {@code JedisLocks}: it gives requests, and carries them out on one
 * server or cluster. All methods may be called by several threads at once.
 */
public final class Locks implements Locker {
  final Options options;
  final Servers servers;
  final Listener listener;
  final Reporter report;
  final Watchdog watchdog = new Watchdog();
  final Set<String> permitted = ConcurrentHashMap.newKeySet();
  final Running running = new Running();
  private final ConcurrentHashMap<Object, Object> views = new ConcurrentHashMap<>();
  final Inside inside = new Inside();
  volatile boolean isClosed;

  /** A program makes its locks by {@code LettuceLocks} or {@code JedisLocks}. */
  public Locks(Transport transport, Options options) {
    this(transport, options, false);
  }

  Locks(Transport transport, Options options, boolean isSilent) {
    this.options = options.copy();
    report = new Reporter(this.options.hooks, isSilent);
    servers = new Servers(transport, report, !isSilent);
    listener = new Listener(servers);
  }

  @Override
  public Request write(String... keys) {
    return new Request(inside, List.of(keys), Mode.WRITE, options.request.copy());
  }

  @Override
  public Request read(String... keys) {
    return new Request(inside, List.of(keys), Mode.READ, options.request.copy());
  }

  /** The lock of the key as {@link java.util.concurrent.locks.Lock}: the owner is a thread. */
  public LockView lock(String key) {
    return new LockView(new ThreadHolds(this, key, views), Mode.WRITE);
  }

  /** The lock of the key as {@link java.util.concurrent.locks.ReadWriteLock}: the owner is a thread. */
  public ReadWriteLockView readWriteLock(String key) {
    return new ReadWriteLockView(new ThreadHolds(this, key, views));
  }

  @Override
  public int release(List<String> keys, String token) {
    Settings.require(!keys.isEmpty() && !token.isEmpty(), "a release needs a token and keys");
    return Pending.join(() -> releaseToken(keys, token));
  }

  CompletableFuture<Integer> releaseToken(List<String> keys, String token) {
    Commands owner = new Commands(List.copyOf(keys), token, true);
    long end = retryEnd();
    return ask("release", owner, end, end, limit -> send(owner, owner.release(Mode.WRITE), limit)).forCaller
        .thenCompose(reply -> reply.error() != null || reply.number() > 0 || keys.size() > 1
            ? CompletableFuture.completedFuture(reply)
            : ask("release", owner, end, end, limit -> send(owner, owner.release(Mode.READ), limit)).forCaller)
        .thenApply(reply -> ((Long) reply.get()).intValue());
  }

  long retryEnd() {
    return Clock.in(options.retryFor);
  }

  CompletableFuture<Reply> send(Commands owner, List<String> command, long limit) {
    return servers.send(owner.key(), command, Call.Use.COMMANDS, limit, new CompletableFuture<>(), late -> {});
  }

  CompletableFuture<Reply> pipeline(Commands owner, List<List<String>> commands, long limit) {
    return servers.pipeline(servers.find(owner.key()), commands, Call.Use.COMMANDS, limit, new CompletableFuture<>());
  }

  /** Repeats for a caller. After {@link #close} this is an error, where it is not the end of a hold. */
  Repetition ask(String what, Commands owner, long callerEnd, long end, Repetition.Try send) {
    return repeat(what, owner, callerEnd, end,
        running.isEnding() ? limit -> CompletableFuture.completedFuture(Reply.failed(new SlockException.Closed())) : send);
  }

  /** Repeats, in the background after the end for the caller. */
  Repetition repeat(String what, Commands owner, long callerEnd, long end, Repetition.Try send) {
    running.background.incrementAndGet();
    Repetition repetition = new Repetition(this, what, owner.keys(), callerEnd, end, send);
    repetition.whole.thenRun(running.background::decrementAndGet);
    repetition.attempt();
    return repetition;
  }

  /** How requests and holds reach this server. */
  final class Inside implements Request.By, Hold.Keeper {
    @Override
    public Locks locks() {
      return Locks.this;
    }

    @Override
    public Options options() {
      return options;
    }

    @Override
    public void check(Request request) {}

    @Override
    public Pending<Hold> acquire(Request request, boolean once) {
      long began = Clock.now();
      Commands owner = request.owner();
      CompletableFuture<Hold> result = new CompletableFuture<>();
      Acquisition acquisition = new Acquisition(Locks.this, owner, request.mode, request.settings,
          owner.lock(request.mode, request.settings), once, null);
      acquisition.result.whenComplete((grant, error) -> {
        boolean isRefused = error == Answers.TAKEN;
        report.waited(request.label(), began, isRefused ? once ? "refused" : "timed out" : Answers.outcome(error));
        Pending.pass(error != null ? null : new Hold(this, request, owner, grant, Lease.Drift.ONE_SERVER, report, watchdog),
            isRefused ? null : error, result);
      });
      acquisition.start();
      return new Pending<>(result, acquisition::cancel);
    }

    @Override
    public CompletableFuture<Hold> adopt(Request request) {
      Commands owner = request.owner();
      long[] sent = new long[1];
      return ask("adoption", owner, retryEnd(), retryEnd(), limit -> {
        sent[0] = Clock.now();
        return send(owner, owner.refresh(request.mode, request.settings.ttl), limit);
      }).forCaller.thenApply(reply -> {
        if (reply.error() instanceof SlockException.WrongMode || reply.error() == null && reply.number() == 0) {
          throw new SlockException.NotHeld("not all keys, for " + request.mode, reply.error());
        }
        Lease.Grant grant = new Lease.Grant(request.mode, (Long) reply.get(), sent[0], false);
        return new Hold(this, request, owner, grant, Lease.Drift.ONE_SERVER, report, watchdog);
      });
    }

    @Override
    public CompletableFuture<Boolean> release(Hold hold, Lease ending) {
      return GiveUp.release(Locks.this, hold.owner, ending);
    }

    @Override
    public CompletableFuture<Reply> extend(Hold hold, Lease is, long ttl, long within) {
      long end = Math.min(is.until, Clock.in(within));
      long[] sent = new long[1];
      return ask("extension", hold.owner, end, end, limit -> {
        sent[0] = Clock.now();
        return send(hold.owner, hold.owner.extend(ttl, is.fence), limit);
      }).forCaller.thenApply(reply -> reply.error() != null ? reply
          : new Reply(reply.number() == 1 ? (Object) sent[0] : null, null));
    }

    @Override
    public void renew(List<Watchdog.Due> due) {
      if (!running.isEnding()) {
        Renewals.send(Locks.this, due);
      }
    }

    @Override
    public List<Long> fences(Hold hold) {
      return List.of(hold.fence());
    }
  }

  /** Who holds the lock of the key and who waits for it, at most 100 each. */
  public Status.Info info(String key) {
    return Pending.join(() -> infoAsync(key));
  }

  /** As {@link #info}, without a thread that waits. */
  public CompletableFuture<Status.Info> infoAsync(String key) {
    return Status.query(this, () -> servers.find(key).thenApply(List::of),
        List.of("SLOCK.INFO", key, "FULL")).thenApply(all -> Status.info(all.get(0)));
  }

  /** Which locks are waited for, on all nodes of a cluster, the longest wait first. */
  public List<Status.Queue> queues() {
    return Pending.join(this::queuesAsync);
  }

  /** As {@link #queues}, without a thread that waits. */
  public CompletableFuture<List<Status.Queue>> queuesAsync() {
    return Status.query(this, servers::all, List.of("SLOCK.QUEUES", "COUNT", "0"))
        .thenApply(Status::queues);
  }

  /**
   * Ends renewals, waits and connections. It lets requests that were given up get off the server first, for at most the
   * time of {@link Options#retryFor}. It releases nothing: holds end by their ttl, and may still be released.
   */
  @Override
  public void close() {
    watchdog.close();
    running.end(options.retryFor);
    isClosed = true;
    listener.close();
    servers.close();
  }
}
