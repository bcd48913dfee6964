package example.slock;

import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.Function;

/**
 * What a program makes once, by {@code LettuceLocks} or {@code JedisLocks}: it gives requests, and carries them out on one
 * server or cluster. All methods may be called by several threads at once.
 */
public final class Locks extends Locker {
  final Servers servers;
  final Listener listener;
  final Set<String> permitted = ConcurrentHashMap.newKeySet();
  private final Single single = new Single(this);
  private final Map<LockView.Owner, LockView.Held> views = new ConcurrentHashMap<>();
  volatile boolean isClosed;

  /** A program makes its locks by {@code LettuceLocks} or {@code JedisLocks}. */
  public Locks(Transport transport, Options options) {
    this(transport, options, false);
  }

  /** Those of a node of a quorum, which tells what there is to tell. */
  Locks(Transport transport, Options options, boolean isSilent) {
    super(options, isSilent);
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
    return ask("release", owner, retryEnd(), retryEnd(), limit -> send(owner, owner.releaseInAnyMode(), limit))
        .forCaller.thenApply(reply -> ((Long) reply.get()).intValue());
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
    Repetition repetition = new Repetition(this, what, owner.keys(), callerEnd, end, send);
    running.addBackground(repetition.whole);
    repetition.attempt();
    return repetition;
  }

  @Override
  Lease.Drift drift() {
    return Lease.Drift.ONE_SERVER;
  }

  @Override
  Pending<Hold> begin(Request request, boolean once) {
    Commands owner = request.owner();
    Acquisition acquisition = new Acquisition(this, owner, request.mode, request.settings,
        owner.lock(request.mode, request.settings), once, null);
    Pending<Hold> pending = running.add(new Pending<>(
        acquisition.result.thenApply(grant -> new Hold(single, request, owner, grant)), acquisition::cancel));
    acquisition.start();
    return pending;
  }

  @Override
  CompletableFuture<Hold> adopt(Request request) {
    Commands owner = request.owner();
    Repetition asked = ask("adoption", owner, retryEnd(), retryEnd(),
        limit -> send(owner, owner.refresh(request.mode, request.settings.ttl), limit));
    return asked.forCaller.thenApply(reply -> {
      if (reply.error() instanceof SlockException.WrongMode || reply.error() == null && reply.number() == 0) {
        throw new SlockException.NotHeld("not all keys, for " + request.mode, reply.error());
      }
      return new Hold(single, request, owner, new Lease.Grant(request.mode, (Long) reply.get(), asked.sent, false));
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
    return query(new Commands(List.of("the queues"), "", true), limit -> servers.all().thenCompose(nodes -> {
      List<CompletableFuture<Reply>> asked = nodes.stream().map(node -> servers.pipeline(
          CompletableFuture.completedFuture(node), command, Call.Use.COMMANDS, limit, new CompletableFuture<>())).toList();
      return CompletableFuture.allOf(asked.toArray(CompletableFuture[]::new))
          .thenApply(done -> Reply.firsts(asked.stream().map(CompletableFuture::join).toList()));
    }).exceptionally(error -> Reply.failed(new Answers.Unanswered(Answers.unwrapped(error), false))), Status::queues);
  }

  /** Asks for no longer than {@link Options#retryFor}. */
  private <T> CompletableFuture<T> query(Commands about, Repetition.Try send, Function<Object, T> read) {
    return Hold.unwrapped(ask("answer", about, retryEnd(), retryEnd(), send).forCaller
        .thenApply(reply -> read.apply(reply.get())));
  }

  @Override
  void disconnect(long end) {
    isClosed = true;
    listener.close();
    servers.close();
  }
}
