package example.slock;

import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.BooleanSupplier;
import java.util.function.Function;
import java.util.function.Supplier;
import java.util.stream.IntStream;

/**
 * What a program makes once, by {@code LettuceLocks} or {@code JedisLocks}: it gives requests, and carries them out on one
 * server or cluster. All methods may be called by several threads at once.
 */
public final class Locks extends Locker {
  final Servers servers;
  final Listener listener;
  private final Set<String> permitted = ConcurrentHashMap.newKeySet();
  private final Map<LockView.Owner, LockView.Held> views = new ConcurrentHashMap<>();

  /** A program makes its locks by {@code LettuceLocks} or {@code JedisLocks}. */
  public Locks(Transport transport, Options options) {
    super(options);
    servers = new Servers(transport, report);
    listener = new Listener(servers);
  }

  /** The lock of the key as {@link java.util.concurrent.locks.Lock}: the owner is a thread. */
  public LockView lock(String key) {
    return new LockView(this, key, Mode.WRITE, views);
  }

  /** The lock of the key as {@link java.util.concurrent.locks.ReadWriteLock}: the owner is a thread. */
  public ReadWriteLockView readWriteLock(String key) {
    return new ReadWriteLockView(new LockView(this, key, Mode.READ, views), lock(key));
  }

  @Override
  CompletableFuture<Integer> releaseToken(Commands owner) {
    return ask("release", owner, retryEnd(), limit -> send(owner, owner.releaseInAnyMode(), limit))
        .result.thenApply(reply -> ((Long) reply.get()).intValue());
  }

  long retryEnd() {
    return Clock.in(options.retryFor);
  }

  /** Sends one command, and gives its answer by the limit. */
  CompletableFuture<Reply> send(Commands owner, List<String> command, long limit) {
    return pipeline(owner, List.of(command), limit).thenApply(all -> all.at(0));
  }

  /** Sends commands that go together, and gives the list of their answers. */
  CompletableFuture<Reply> pipeline(Commands owner, List<List<String>> commands, long limit) {
    return call(owner, commands, Call.Use.COMMANDS, limit, () -> false).answer;
  }

  /** Sends commands that go together, unless they are given up before. */
  Call call(Commands owner, List<List<String>> commands, Call.Use use, long limit, BooleanSupplier isGivenUp) {
    return new Call(servers, commands, use, limit, isGivenUp).start(servers.find(owner.key()));
  }

  /**
   * Asks, before anything is held, whether the user may release what is asked for: a token that nobody has asks for the
   * end of a hold that nobody has. After any answer but NOPERM it does not ask again, and asks what follows.
   */
  CompletableFuture<Reply> ifPermitted(Commands owner, Mode mode, long limit, BooleanSupplier isGivenUp,
      Supplier<CompletableFuture<Reply>> ask) {
    List<String> release = owner.release(mode, Commands.NO_FENCE);
    if (permitted.contains(release.get(0))) {
      return ask.get();
    }
    Commands nobody = new Commands(owner.keys(), Commands.newToken(), true);
    List<List<String>> commands = nobody.cancel();
    commands.add(nobody.release(mode, Commands.NO_FENCE));
    commands.add(nobody.releaseInAnyMode("FENCE", Commands.NO_FENCE));
    return call(owner, commands, Call.Use.COMMANDS, limit, isGivenUp).answer.thenCompose(all -> {
      Reply refusal = IntStream.range(0, commands.size()).mapToObj(all::at)
          .filter(reply -> Answers.hasCode(reply.error(), "NOPERM")).findFirst().orElse(all);
      if (refusal.error() != null) {
        return CompletableFuture.completedFuture(refusal);
      }
      permitted.add(release.get(0));
      return ask.get();
    });
  }

  /** Repeats for a caller. After {@link #close} this is an error, where it is not the end of a hold. */
  Repetition ask(String what, Commands owner, long end, Repetition.Try send) {
    return repeat(what, owner, end,
        isClosing() ? limit -> CompletableFuture.completedFuture(Reply.failed(new SlockException.Closed())) : send);
  }

  Repetition repeat(String what, Commands owner, long end, Repetition.Try send) {
    Repetition repetition = new Repetition(this, what, owner.keys(), end, send);
    noted(new Pending<>(repetition.result, why -> {})); // it is not given up, but waited for
    repetition.attempt();
    return repetition;
  }

  // --- the end of an acquisition in doubt

  /**
   * Gives an acquisition up in the background: withdraws what waits, refuses what comes later, and releases what was given.
   * It is sent whole until it is answered. The request may wait by the channel (null: by none).
   */
  Repetition giveUp(Commands owner, long ttl, Listener.Channel waitsBy) {
    // After the ttl nothing is left of a grant anyway.
    long end = Clock.now() + Math.min(ttl + options.retryFor, Commands.REFUSE_MS * Clock.MS);
    Repetition asked = repeat("end", owner, end, limit -> endOnce(owner, Commands.NO_FENCE, limit));
    asked.result.thenAccept(reply -> {
      // The server forgets the request when nobody listens to its channel.
      if (reply.error() instanceof SlockException.TimedOut && waitsBy != null) {
        listener.close(waitsBy, reply.error());
      }
    });
    return asked;
  }

  /**
   * Gives how many keys that released. A given token is released by its fence; when that is not the one that is known, it
   * is asked again.
   */
  CompletableFuture<Reply> endOnce(Commands owner, long fence, long limit) {
    List<List<String>> commands = owner.end(fence);
    int last = commands.size() - 1;
    return pipeline(owner, commands, limit).thenCompose(all -> {
      Reply released = all.at(last);
      boolean isLast = !owner.given() || released.error() != null || released.number() > 0;
      long found = isLast ? 0 : Math.max(all.at(last - 2).number(), all.at(last - 1).number());
      return found > 0 ? endOnce(owner, found, limit) : CompletableFuture.completedFuture(released);
    });
  }

  @Override
  Lease.Drift drift() {
    return Lease.Drift.ONE_SERVER;
  }

  @Override
  Pending<Hold> begin(Request request, boolean once) {
    Commands owner = request.owner();
    Acquisition acquisition =
        new Acquisition(this, owner, request, owner.lock(request.mode, request.options), once, false);
    Pending<Hold> pending = noted(new Pending<>(acquisition.result.thenApply(
        grant -> grant == null ? null : new Hold(request, owner, grant).begin()), acquisition::cancel));
    acquisition.attempt();
    return pending;
  }

  @Override
  CompletableFuture<Hold> adopt(Request request) {
    Commands owner = request.owner();
    Repetition asked = ask("adoption", owner, retryEnd(),
        limit -> send(owner, owner.refresh(request.mode, request.options.ttl), limit));
    return asked.result.thenApply(reply -> {
      if (reply.error() instanceof SlockException.WrongMode || reply.error() == null && reply.number() == 0) {
        throw new SlockException.NotHeld("not all keys, for " + request.mode, reply.error());
      }
      return new Hold(request, owner, new Lease.Grant(request.mode, (Long) reply.get(), asked.sent, false)).begin();
    });
  }

  /** Who holds the lock of the key and who waits for it, at most 100 each. */
  public Status.Info info(String key) {
    return Pending.join(() -> infoAsync(key));
  }

  /** As {@link #info}, without a thread that waits. */
  public CompletableFuture<Status.Info> infoAsync(String key) {
    Commands about = new Commands(List.of(key), "", true);
    return query(about, limit -> send(about, List.of("SLOCK.INFO", key, "FULL"), limit), Status::info);
  }

  /** Which locks are waited for, on all nodes of a cluster, the longest wait first. */
  public List<Status.Queue> queues() {
    return Pending.join(this::queuesAsync);
  }

  /** As {@link #queues}, without a thread that waits. */
  public CompletableFuture<List<Status.Queue>> queuesAsync() {
    List<List<String>> command = List.of(List.of("SLOCK.QUEUES", "COUNT", "0"));
    CompletableFuture<Reply> none = CompletableFuture.completedFuture(new Reply(List.of(), null));
    return query(new Commands(List.of("the queues"), "", true), limit -> servers.all().thenCompose(nodes -> nodes.stream()
        .map(node -> new Call(servers, command, Call.Use.COMMANDS, limit, () -> false)
            .start(CompletableFuture.completedFuture(node)).answer.thenApply(all -> all.at(0)))
        .reduce(none, (some, more) -> some.thenCombine(more, Reply::and))), Status::queues);
  }

  /** Asks for no longer than {@link Options#retryFor}. */
  private <T> CompletableFuture<T> query(Commands about, Repetition.Try send, Function<Object, T> read) {
    return Pending.unwrapped(ask("answer", about, retryEnd(), send).result
        .thenApply(reply -> read.apply(reply.get())));
  }

  @Override
  void disconnect(long end) {
    servers.close();
    listener.close();
  }
}
