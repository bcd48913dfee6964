// SPDX-License-Identifier: MIT OR Apache-2.0

package example.slock;

import static example.slock.Protocol.unwrap;

import example.slock.Transport.Call;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.locks.LockSupport;
import java.util.function.Consumer;
import java.util.function.LongFunction;
import java.util.stream.Stream;

/**
 * What a program asks for locks. Make one for the program, from the client of a Redis client library that the program has:
 * {@code LettuceLocks.of}, {@code JedisLocks.of}. All methods may be called by several threads at once.
 */
public final class Locks implements AutoCloseable {
  final Settings settings;
  final Reporter report;
  final Backend backend;
  final List<Server> servers = new ArrayList<>();
  volatile boolean isClosing;
  volatile boolean isClosed;
  private final Set<Acquisition> running = ConcurrentHashMap.newKeySet();
  final Set<Kept> holds = ConcurrentHashMap.newKeySet();
  /** What a thread has locked by views, by keys. */
  final ThreadLocal<Map<List<String>, LockView.Held>> owned = ThreadLocal.withInitial(ConcurrentHashMap::new);

  /** On the server or cluster of a transport. It sends nothing. */
  public Locks(Transport transport, Options options) {
    this(List.of(transport), options, false);
  }

  private Locks(List<Transport> transports, Options options, boolean isQuorum) {
    settings = options.settings;
    report = new Reporter(settings.hooks);
    transports.forEach(transport -> servers.add(new Server(transport, this)));
    backend = isQuorum ? new Quorum(this) : servers.get(0);
  }

  /**
   * On several independent servers: not replicas or nodes of one another. Their number should be odd. A hold counts while a
   * majority of the servers has it, so that it outlives the loss of a minority. A quorum polls.
   */
  public static Locks quorum(List<Transport> transports, Options options) {
    Settings.require(!transports.isEmpty(), "a quorum needs servers");
    return new Locks(transports, options, true);
  }

  /** A request for the lock of all keys, or of none, as the one writer. It sends nothing. */
  public Request write(String... keys) {
    Settings own = settings.limit == null ? settings : settings.with(s -> s.limit = null); // a default is for readers
    return new Request(this, List.of(keys), Mode.WRITE, own);
  }

  /** A request for the lock of all keys, or of none, as a reader. It sends nothing. */
  public Request read(String... keys) {
    return new Request(this, List.of(keys), Mode.READ, settings);
  }

  /**
   * The lock of a key, or of all keys at once, as {@link java.util.concurrent.locks.Lock}: its owner is a thread. The order of
   * the keys does not matter.
   */
  public LockView lock(String... keys) {
    return new LockView(this, Stream.of(keys).sorted().toList(), Mode.WRITE);
  }

  /** The lock of a key as {@link java.util.concurrent.locks.ReadWriteLock}: its owners are threads. */
  public ReadWriteLockView readWriteLock(String key) {
    return new ReadWriteLockView(new LockView(this, List.of(key), Mode.READ),
        new LockView(this, List.of(key), Mode.WRITE));
  }

  /**
   * Releases what an owner token holds of the keys, in whichever mode, and tells on how many keys it did, or on how many nodes
   * of a quorum. It is for a token that another process took; a {@link Hold} has {@link Hold#release}.
   */
  public int release(List<String> keys, String token) {
    Request request = new Request(this, List.copyOf(keys), Mode.READ, settings).token(token);
    request.check();
    return Caller.join(() -> backend.release(request));
  }

  /** Tells who holds the lock of the key and who waits for it, all of them. */
  public Info info(String key) {
    Settings.require(!key.isEmpty(), "a key must not be empty");
    String name = settings.prefix + key;
    return Info.of(query(List.of(key), name, List.of("SLOCK.INFO", name, "FULL", "COUNT", 0L)));
  }

  /** Tells which locks are waited for whose names begin with the prefix, on all nodes, the longest wait first. */
  public List<Info.Queue> queues() {
    List<Object> pages = new ArrayList<>();
    for (long cursor = 0; cursor >= 0;) {
      List<Object> words = List.of("SLOCK.QUEUES", "COUNT", 0L, "CURSOR", cursor);
      List<?> replies = (List<?>) query(List.of(), "", words);
      pages.addAll(replies);
      // All nodes are asked from the least of their cursors on, so some may tell the same again.
      cursor = replies.stream().mapToLong(Info::cursor).filter(next -> next > 0).min().orElse(-1);
    }
    return Info.queues(pages, settings.prefix);
  }

  private Object query(List<String> names, String key, List<Object> words) {
    checkOpen(names);
    Call call = new Call(key, words, List.of());
    return Caller.join(() -> repeat(names, until -> servers.get(0).send(call, until).thenApply(reply -> {
      Server.number(reply.value());
      if (reply.value() instanceof List<?> replies) { // of all nodes
        replies.forEach(Server::number);
      }
      return reply.value();
    })));
  }

  /**
   * Ends the waits and the renewals. Waits, and all later calls except the release of a hold, end with
   * {@link SlockException.Closed}. It waits until that is done, for at most {@link Options#retryFor}. It releases nothing:
   * holds that are still there are lost at the end of their ttl. The program's client stays open.
   */
  @Override
  public void close() {
    endRequests();
    long end = Clock.now() + settings.retryFor;
    while ((!running.isEmpty() || !servers.stream().allMatch(Server::isIdle)) && Clock.now() < end) {
      LockSupport.parkNanos(Clock.MS);
    }
    isClosed = true;
    servers.forEach(server -> {
      server.listener.close();
      server.transport.close();
    });
  }

  private void endRequests() {
    isClosing = true;
    running.forEach(acquisition -> acquisition.leave(new SlockException.Closed(acquisition.names)));
  }

  /** Releases all holds, and closes. */
  public void closeAndRelease() {
    endRequests(); // a release would grant to them
    CompletableFuture.allOf(holds.stream().map(kept -> kept.release().exceptionally(error -> null))
        .toArray(CompletableFuture[]::new)).join();
    close();
  }

  // --- for the package

  void checkOpen(List<String> keys) {
    if (isClosing) {
      throw new SlockException.Closed(keys);
    }
  }

  /** On the executor of the options, or on the default one if that fails. */
  void execute(Runnable task) {
    try {
      settings.executor.execute(task);
    } catch (RuntimeException | Error e) {
      Settings.POOL.execute(task);
    }
  }

  /** A future that is completed by the executor of the options. A value that comes too late is given back. */
  <T> CompletableFuture<T> told(CompletableFuture<T> result, Consumer<T> giveBack) {
    CompletableFuture<T> future = new CompletableFuture<>();
    result.whenComplete((value, error) -> execute(() -> {
      if (error != null) {
        future.completeExceptionally(unwrap(error));
      } else if (!future.complete(value)) {
        giveBack.accept(value);
      }
    }));
    return future;
  }

  <T> CompletableFuture<T> repeat(List<String> names, LongFunction<CompletableFuture<T>> attempt) {
    return servers.get(0).repeat(names, settings.retryFor, attempt);
  }

  /** Runs an acquisition, which {@link #close} ends. */
  CompletableFuture<Acquisition.Grant> run(Acquisition acquisition) {
    running.add(acquisition);
    if (isClosing) {
      acquisition.leave(new SlockException.Closed(acquisition.names));
    }
    return acquisition.start().whenComplete((grant, error) -> running.remove(acquisition));
  }

  /** Without a hold, a try was refused. */
  Acquisition.Running<Hold> acquire(Request wanted, boolean isTry) {
    wanted.check();
    Request request = wanted.metadata(wanted.settings.metadata()); // of this thread
    Acquisition acquisition = backend.acquisition(request, isTry);
    return new Acquisition.Running<>(acquisition, run(acquisition).handle((grant, failure) -> {
      Throwable error = unwrap(failure);
      if (grant == null) {
        acquisition.abandon();
      }
      report.waited(request.label(), acquisition.began, error == null && grant == null, error);
      if (error != null) {
        throw Protocol.failure(error);
      }
      return grant == null ? null : new Hold(new Kept(request, grant));
    }));
  }

  CompletableFuture<Hold> adopt(Request request) {
    return backend.adopt(request).thenApply(grant -> {
      if (grant == null) {
        throw new SlockException.NotHeld(request.keys, request.mode);
      }
      return new Hold(new Kept(request, grant));
    });
  }

  /** Extends all holds that are renewed: the primary may be another one, which has not all of them. */
  void confirm() {
    holds.stream().filter(Kept::isRenewed).forEach(kept -> kept.extend(0));
  }
}
