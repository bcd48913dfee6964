package example.slock.agent;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTimeoutPreemptively;
import static org.junit.jupiter.api.Assertions.assertTrue;

import example.slock.Hold;
import example.slock.Hooks;
import example.slock.Info;
import example.slock.LockView;
import example.slock.Locks;
import example.slock.Options;
import example.slock.Request;
import example.slock.SlockException;
import example.slock.Transport;
import example.slock.jedis.JedisLocks;
import example.slock.lettuce.LettuceLocks;
import example.slock.testing.MemoryServer;
import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisURI;
import io.lettuce.core.cluster.RedisClusterClient;
import io.lettuce.core.metrics.CommandLatencyRecorder;
import io.lettuce.core.resource.ClientResources;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.ObjectInputStream;
import java.io.ObjectOutputStream;
import java.lang.reflect.Proxy;
import java.nio.charset.Charset;
import java.time.Duration;
import java.util.List;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.function.Consumer;
import java.util.function.Supplier;
import java.util.jar.JarFile;
import java.util.stream.Stream;
import org.apache.commons.pool2.impl.GenericObjectPoolConfig;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.function.Executable;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;
import redis.clients.jedis.Connection;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.JedisClientConfig;
import redis.clients.jedis.UnifiedJedis;

/** What the scenarios that all languages share cannot say of Java. */
@Timeout(60)
class PromisesTest {
  private final MemoryServer memory = new MemoryServer();
  private final Locks locks = memory.locks();

  private static void until(String what, CheckedCondition is) throws Exception {
    for (long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(30); !is.isTrue();) {
      assertTrue(System.nanoTime() < end, "waited for " + what);
      Thread.sleep(2);
    }
  }

  private interface CheckedCondition {
    boolean isTrue() throws Exception;
  }

  @Test
  void optionsAndRequestsAreNeverChanged() throws Exception {
    Options options = new Options();
    options.ttl(Duration.ofMillis(5)).prefix("other:");
    try (Locks same = new Locks(memory, options.limit(1))) { // a limit by default is for readers
      Hold hold = same.write("a").acquire();
      assertTrue(hold.remaining().toMillis() > 5000);
      assertEquals(1, memory.holders("a").size());
    }
  }

  /** A server whose client library is of a version that does not fit. */
  private record Unlinked(Transport of, Error error) implements Transport {
    @Override
    public CompletionStage<Reply> call(Call call, long limit, boolean mayBlock) {
      throw error;
    }

    @Override
    public Runnable listen(String channel, Consumer<String> heard, Runnable changed) {
      throw error;
    }

    @Override
    public Topology topology() {
      return of.topology();
    }

    @Override
    public void close() {}
  }

  @Test
  void anErrorOfLinkageIsItselfAtOnce() {
    Error error = new NoSuchMethodError("Builder.from");
    try (Locks unlinked = new Locks(new Unlinked(memory, error), new Options())) {
      long began = System.nanoTime();
      assertSame(error, assertThrows(NoSuchMethodError.class, () -> unlinked.write("a").acquire()));
      assertSame(error, assertThrows(NoSuchMethodError.class, () -> unlinked.write("a").tryAcquire()));
      assertTrue(System.nanoTime() - began < TimeUnit.SECONDS.toNanos(2));
    }
  }

  @Test
  void aViewWhoseThreadHasDiedIsNotRenewed() throws Exception {
    try (Locks brief = new Locks(memory, new Options().ttl(Duration.ofSeconds(3)))) {
      CompletableFuture<Boolean> isHeld = new CompletableFuture<>();
      Thread thread = new Thread(() -> {
        brief.lock("a").lock();
        isHeld.complete(brief.lock("a").isHeldByCurrentThread());
      });
      thread.start();
      assertTrue(isHeld.get());
      thread.join();
      until("the lock to end", () -> memory.holders("a").isEmpty());
    }
  }

  /** Else a lock and its unlock inside that work would take and release another lock, and the work go on without one. */
  @Test
  void aThreadIsToldThatItsLockIsLostBeforeItLocksAgain() throws Exception {
    try (Locks brief = new Locks(memory, new Options().ttl(Duration.ofMillis(600)))) {
      LockView lock = brief.lock("a");
      lock.lock();
      memory.lose("a");
      until("the loss", () -> !lock.isHeldByCurrentThread());
      for (Executable call : List.<Executable>of(lock::tryLock, lock::unlock)) {
        assertSame(SlockException.Lost.class, assertThrows(IllegalMonitorStateException.class, call).getCause().getClass());
      }
      lock.lock(100, TimeUnit.MILLISECONDS);
      until("the end of the lease", () -> !lock.isHeldByCurrentThread());
      assertTrue(lock.tryLock());
      lock.unlock();
      assertThrows(IllegalMonitorStateException.class, lock::unlock);
    }
  }

  @Test
  void theKeysOfAViewHaveNoOrder() {
    locks.lock("a", "b").lock();
    assertTrue(locks.lock("b", "a").isHeldByCurrentThread());
  }

  /** Whatever a hook, a callback or an executor throws, also an error of linkage. */
  @Test
  void whatFailsInTheProgramChangesNothing() throws Exception {
    Error error = new NoClassDefFoundError("io/micrometer/Timer");
    Hooks hooks = (Hooks) Proxy.newProxyInstance(getClass().getClassLoader(), new Class<?>[] {Hooks.class},
        (proxy, method, arguments) -> {
          throw error;
        });
    Options options = new Options().ttl(Duration.ofSeconds(1)).hooks(hooks).executor(task -> {
      throw error;
    });
    try (Locks own = new Locks(memory, options)) {
      assertThrows(SlockException.Lost.class, () -> own.write("a").execute(hold -> {
        hold.onLost(loss -> {
          throw error;
        });
        memory.lose("a");
        Thread.sleep(60_000);
      }));
      own.write("a").acquireAsync().get(30, TimeUnit.SECONDS).release();
    }
  }

  @Test
  void aHoldThatNobodyRefersToIsReleased() throws Exception {
    locks.write("a").acquire();
    until("the lock to end", () -> {
      System.gc();
      return memory.holders("a").isEmpty();
    });
  }

  @Test
  void anInterruptOfTheProgramIsKept() throws Exception {
    boolean is = locks.write("a").run(hold -> {
      Thread.currentThread().interrupt();
      return true;
    });
    assertTrue(is && Thread.interrupted());
    CountDownLatch inside = new CountDownLatch(1);
    CompletableFuture<String> end = new CompletableFuture<>();
    Thread thread = new Thread(() -> {
      try {
        locks.write("b").execute(hold -> {
          inside.countDown();
          Thread.sleep(60_000);
        });
      } catch (SlockException.Lost | InterruptedException e) {
        end.complete(e.getClass().getSimpleName() + Thread.currentThread().isInterrupted());
      }
    });
    thread.start();
    inside.await();
    memory.lose("b");
    assertEquals("Lostfalse", end.get(30, TimeUnit.SECONDS));
  }

  @Test
  void futuresAreCompletedByTheExecutor() throws Exception {
    ExecutorService executor = Executors.newSingleThreadExecutor(task -> new Thread(task, "mine"));
    try (Locks own = new Locks(memory, new Options().executor(executor))) {
      CompletableFuture<String> lost = new CompletableFuture<>();
      Hold hold = own.write("a").acquireAsync().get();
      hold.onLost(loss -> lost.complete(Thread.currentThread().getName()));
      CountDownLatch asked = new CountDownLatch(1);
      executor.execute(() -> { // so that the future below is not complete yet
        try {
          asked.await();
        } catch (InterruptedException e) {
          Thread.currentThread().interrupt();
        }
      });
      CompletableFuture<String> extended =
          hold.extendAsync(Duration.ofSeconds(20)).thenApply(done -> Thread.currentThread().getName());
      asked.countDown();
      assertEquals("mine", extended.get(30, TimeUnit.SECONDS));
      memory.lose("a");
      assertEquals("mine", lost.get(30, TimeUnit.SECONDS));
    } finally {
      executor.shutdown();
    }
  }

  @Test
  void aCancelledFutureLeavesNothing() throws Exception {
    Runnable release = memory.hold("a");
    CompletableFuture<Hold> waiting = locks.write("a").acquireAsync();
    until("it to wait", () -> locks.info("a").waiters() == 1);
    waiting.cancel(true);
    until("it to leave", () -> locks.info("a").waiters() == 0);
    release.run();
    assertTrue(memory.holders("a").isEmpty());
  }

  @Test
  void errorsCanBeMadeAndSerialized() throws Exception {
    SlockException.TimedOut busy = new SlockException.TimedOut(List.of("a"), "timed out",
        List.of(new Info.Holder("t", 1, Duration.ZERO, Duration.ZERO, "web-1")), new IOException("x"));
    SlockException.Lost lost = new SlockException.Lost(List.of("a"), SlockException.Reason.GONE, null);
    SlockException.QuorumMissed missed = new SlockException.QuorumMissed(List.of("a"), "no majority",
        List.of(new SlockException.NodeReply("n", false, new IOException("y"))));
    for (SlockException error : List.of(busy, lost, missed, new SlockException.Closed(List.of()))) {
      ByteArrayOutputStream bytes = new ByteArrayOutputStream();
      new ObjectOutputStream(bytes).writeObject(error);
      Object back = new ObjectInputStream(new ByteArrayInputStream(bytes.toByteArray())).readObject();
      assertEquals(error.getMessage(), ((SlockException) back).getMessage());
      assertEquals(error.keys(), ((SlockException) back).keys());
    }
    assertEquals("timed out (lock a), held by web-1 t: x", busy.getMessage());
  }

  @Test
  void busyIsNotDown() throws Exception {
    memory.hold("a");
    Request request = locks.write("a").waitFor(Duration.ofMillis(50));
    assertEquals(1, assertThrows(SlockException.TimedOut.class, request::acquire).holders().size());
    memory.fail(new IOException("refused"));
    assertThrows(SlockException.NoAnswer.class, request::acquire);
    CompletionException wrapped =
        assertThrows(CompletionException.class, () -> request.acquireAsync().thenApply(Hold::fence).join());
    assertEquals(SlockException.NoAnswer.class, wrapped.getCause().getClass());
  }

  /** And spans and metrics of Lettuce have the names of the commands. */
  @Test
  void closeEndsAllThatWasMadeOfTheProgramsClient() throws Exception {
    Set<String> names = ConcurrentHashMap.newKeySet();
    CommandLatencyRecorder recorder = (local, remote, name, first, completion) -> names.add(name.toString());
    ClientResources resources = ClientResources.builder().commandLatencyRecorder(recorder).build();
    RedisClient client = RedisClient.create(resources);
    try (TestServer server = new TestServer()) {
      long before = server.connections("normal");
      try (Locks over = LettuceLocks.of(client, RedisURI.create("127.0.0.1", server.port))) {
        over.write("a").acquire().release();
      }
      server.until("the connections to end", () -> server.connections("normal") == before);
      assertTrue(names.contains("SLOCK.LOCK"), names::toString);
      assertFalse(client.connect(RedisURI.create("127.0.0.1", server.port)).sync().ping().isEmpty());
    } finally {
      client.shutdown();
      resources.shutdown();
    }
  }

  /** The end of an acquisition, without a reply, is sent for two minutes, however short ttl and limits are. */
  @Test
  void anEndIsSentForLongerThanTheTtl() throws Exception {
    List<Long> ends = new CopyOnWriteArrayList<>();
    Transport silent = (Transport) Proxy.newProxyInstance(getClass().getClassLoader(), new Class<?>[] {Transport.class},
        (proxy, method, arguments) -> {
          if (method.getName().equals("call")) {
            if (((Transport.Call) arguments[0]).words().get(0).equals("SLOCK.MUNLOCK")) {
              ends.add(System.nanoTime());
            }
            return CompletableFuture.failedFuture(new IOException("refused"));
          }
          return method.invoke(memory, arguments);
        });
    Options brief = new Options().ttl(Duration.ofMillis(50)).retryFor(Duration.ofMillis(50));
    try (Locks lost = new Locks(silent, brief)) {
      long began = System.nanoTime();
      assertThrows(SlockException.NoAnswer.class, () -> lost.write("a").acquire());
      until("an end long after the ttl", () -> !ends.isEmpty() && ends.get(ends.size() - 1) - began > 1_000_000_000L);
    }
  }

  /** A client of Jedis whose commands have no time limit, and whose pool tests each connection that it hands out. */
  private static UnifiedJedis withoutLimits(TestServer server) {
    GenericObjectPoolConfig<Connection> pool = new GenericObjectPoolConfig<>();
    pool.setTestOnBorrow(true);
    HostAndPort address = new HostAndPort("127.0.0.1", server.port);
    JedisClientConfig config = DefaultJedisClientConfig.builder().socketTimeoutMillis(0).build();
    return JedisBase.single(address, config, pool);
  }

  @ParameterizedTest
  @ValueSource(strings = {"lettuce", "jedis"})
  void aServerThatIsSilentKeepsNoCallPastItsLimit(String base) throws Exception {
    Options brief = new Options().retryFor(Duration.ofMillis(300));
    try (TestServer server = new TestServer()) {
      UnifiedJedis jedis = withoutLimits(server);
      RedisClient lettuce = RedisClient.create();
      Supplier<Locks> open = () -> base.equals("jedis") ? JedisLocks.of(jedis, brief)
          : LettuceLocks.of(lettuce, RedisURI.create("127.0.0.1", server.port), brief);
      try (Locks used = open.get(); Locks unused = open.get()) {
        Hold hold = used.write("a").acquire();
        server.signal("STOP");
        List<Executable> calls = List.of(() -> used.write("b").tryAcquire(), () -> unused.write("b").acquire(),
            () -> used.info("a"), () -> hold.extend(Duration.ofSeconds(20)), hold::release);
        for (Executable call : calls) {
          assertTimeoutPreemptively(Duration.ofMillis(3300), () -> assertThrows(SlockException.NoAnswer.class, call));
        }
        server.signal("CONT");
        server.until("what was begun to end", () -> used.info("a").holders().isEmpty());
      } finally {
        server.signal("CONT");
        jedis.close();
        lettuce.shutdown();
      }
    }
  }

  @Test
  void durationsThatAreTooShort() throws Exception {
    Request request = locks.write("a").waitFor(Duration.ofNanos(1));
    Hold hold = request.acquire();
    assertThrows(SlockException.TimedOut.class, request::acquire);
    hold.release();
    assertEquals(Duration.ZERO, hold.remaining());
    hold = request.acquire();
    hold.detach();
    assertEquals(Duration.ZERO, hold.remaining());
    for (Duration most : List.of(Duration.ZERO, Duration.ofNanos(-1))) {
      assertThrows(IllegalArgumentException.class, () -> locks.write("b").maxHold(most).acquire());
    }
    assertTrue(memory.holders("b").isEmpty());
  }

  /** While the first connection is in use, a renewal finds another one. */
  @Test
  void anotherConnectionIsReady() throws Exception {
    try (TestServer server = new TestServer(); UnifiedJedis jedis = withoutLimits(server)) {
      long before = server.connections("normal");
      try (Locks used = JedisLocks.of(jedis)) {
        used.write("a").acquire().release();
        server.until("two connections", () -> server.connections("normal") == before + 2);
      }
    }
  }

  /** However short the time is in which the votes are counted: a connection that is slow is not lost. */
  @Test
  void aNodeOfAQuorumHasTimeForItsReply() throws Exception {
    List<Long> limits = new CopyOnWriteArrayList<>();
    List<Transport> nodes = Stream.generate(MemoryServer::new).limit(3).map(node -> (Transport) Proxy.newProxyInstance(
        getClass().getClassLoader(), new Class<?>[] {Transport.class}, (proxy, method, arguments) -> {
          if (method.getName().equals("call")) {
            limits.add((Long) arguments[1]);
          }
          return method.invoke(node, arguments);
        })).toList();
    try (Locks quorum = Locks.quorum(nodes, new Options().nodeTimeout(Duration.ofMillis(50)))) {
      quorum.write("a").acquire().release();
    }
    assertTrue(limits.size() >= 6 && limits.stream().allMatch(limit -> limit > 500_000_000L), limits::toString);
  }

  /** If a request is refused because of its channel, what waits by that channel is sent again at once, by another one. */
  @Test
  void aChannelThatEndsHasItsRequestsSentAgain() throws Exception {
    AtomicBoolean isRefused = new AtomicBoolean();
    Transport refusing = (Transport) Proxy.newProxyInstance(getClass().getClassLoader(), new Class<?>[] {Transport.class},
        (proxy, method, arguments) -> method.getName().equals("call")
            && ((Transport.Call) arguments[0]).words().contains("NOTIFY") && isRefused.compareAndSet(true, false)
                ? CompletableFuture.completedFuture(
                    new Transport.Reply(new Transport.ErrorReply("NOSUBSCRIBER nobody", null), null, true))
                : method.invoke(memory, arguments));
    memory.hold("a");
    try (Locks own = new Locks(refusing, new Options())) {
      own.write("a").acquireAsync();
      until("it to wait", () -> own.info("a").waiters() == 1);
      String channel = own.info("a").queue().get(0).channel();
      isRefused.set(true);
      own.write("a").acquireAsync();
      long began = System.nanoTime();
      until("both to wait by another channel",
          () -> own.info("a").queue().stream().filter(waiter -> !waiter.channel().equals(channel)).count() == 2);
      assertTrue(System.nanoTime() - began < 3_500_000_000L); // a request that waits is sent again after 4 s anyway
    }
  }

  /** The tests run with US-ASCII as the default charset. */
  @Test
  void aKeyIsInUtf8WhateverTheDefaultCharset() throws Exception {
    assertEquals("US-ASCII", Charset.defaultCharset().name());
    try (TestServer server = new TestServer("--cluster-enabled", "yes")) {
      server.plain.call(0, "CLUSTER", "ADDSLOTSRANGE", "0", "16383");
      server.until("the cluster", () -> server.plain.call(0, "CLUSTER", "INFO").toString().contains("state:ok"));
      RedisClusterClient lettuce = RedisClusterClient.create(RedisURI.create("127.0.0.1", server.port));
      try (Locks over = LettuceLocks.of(lettuce, new Options().retryFor(Duration.ofSeconds(30)))) {
        Hold hold = over.write("b\u00fcro").acquire();
        CompletableFuture<Hold> next = over.write("b\u00fcro").acquireAsync();
        server.until("it to wait", () -> next.isDone() || over.info("b\u00fcro").waiters() == 1);
        hold.release();
        next.get(30, TimeUnit.SECONDS).release();
      } finally {
        lettuce.shutdown();
      }
    }
  }

  @Test
  void namesOnTheModulePathAreThoseOfThePackages() throws Exception {
    for (String jar : List.of("core/target/slock-client", "lettuce/target/slock-client-lettuce",
        "jedis/target/slock-client-jedis")) {
      try (JarFile file = new JarFile("../" + jar + "-0.1.0.jar")) {
        assertEquals("example.slock" + jar.replaceAll("core.*|/.*", "").replaceAll("(.+)", ".$1"),
            file.getManifest().getMainAttributes().getValue("Automatic-Module-Name"));
      }
    }
  }
}
