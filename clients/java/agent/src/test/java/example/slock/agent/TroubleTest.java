package example.slock.agent;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTimeout;
import static org.junit.jupiter.api.Assertions.assertTrue;

import example.slock.Hold;
import example.slock.Locks;
import example.slock.Options;
import example.slock.SlockException;
import example.slock.jedis.JedisLocks;
import example.slock.lettuce.LettuceLocks;
import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisURI;
import java.io.BufferedReader;
import java.io.Closeable;
import java.io.IOException;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Arrays;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.LongStream;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.JedisClientConfig;

/** Servers that are slow or silent, an executor that takes nothing, and the end of the locks meanwhile. */
@Timeout(120)
class TroubleTest {
  private static final RedisClient LETTUCE = RedisClient.create();
  private static final ThreadMXBean THREADS = ManagementFactory.getThreadMXBean();
  private static TestServer server;

  @BeforeAll
  static void start() throws Exception {
    server = new TestServer();
  }

  @AfterAll
  static void stop() throws Exception {
    server.close();
    LETTUCE.shutdown();
  }

  private static Locks open(String base, int port, int database, Options options) {
    return base.equals("jedis")
        ? JedisLocks.of(at(port), DefaultJedisClientConfig.builder().database(database).build(), options)
        : LettuceLocks.of(LETTUCE, RedisURI.builder().withHost("127.0.0.1").withPort(port).withDatabase(database).build(),
            options);
  }

  private static HostAndPort at(int port) {
    return new HostAndPort("127.0.0.1", port);
  }

  private static Options retrying(int ms) {
    return new Options().retryFor(Duration.ofMillis(ms));
  }

  private static ServerSocket listening() throws IOException {
    return new ServerSocket(0, 50, InetAddress.getLoopbackAddress());
  }

  private static void thread(Work work) {
    Thread thread = new Thread(() -> {
      try {
        work.run();
      } catch (IOException e) {
        // it is over
      }
    }, "test-server");
    thread.setDaemon(true);
    thread.start();
  }

  private interface Work {
    void run() throws IOException;
  }

  private static long cpuMillis(LongStream threads) {
    return threads.map(THREADS::getThreadCpuTime).sum() / 1_000_000;
  }

  private static long cpuMillisOfTimers() {
    return cpuMillis(Thread.getAllStackTraces().keySet().stream().filter(thread -> thread.getName().equals("slock-timers"))
        .mapToLong(Thread::getId));
  }

  /** Forwards to the server, and may take long for each answer. */
  private static final class SlowProxy implements Closeable {
    private final ServerSocket socket = listening();
    final AtomicInteger open = new AtomicInteger();
    volatile int delayMs;

    SlowProxy() throws IOException {
      thread(() -> {
        while (true) {
          Socket client = socket.accept();
          Socket to = new Socket("127.0.0.1", server.port);
          open.incrementAndGet();
          thread(() -> pump(client, to, false));
          thread(() -> {
            pump(to, client, true);
            open.decrementAndGet();
          });
        }
      });
    }

    private void pump(Socket from, Socket to, boolean isSlow) {
      try (from; to) {
        InputStream in = from.getInputStream();
        byte[] bytes = new byte[1 << 16];
        for (int n = in.read(bytes); n > 0; n = in.read(bytes)) {
          Thread.sleep(isSlow ? delayMs : 0);
          to.getOutputStream().write(bytes, 0, n);
        }
      } catch (IOException | InterruptedException e) {
        // one of them has gone
      }
    }

    @Override
    public void close() throws IOException {
      socket.close();
    }
  }

  @ParameterizedTest
  @ValueSource(strings = {"lettuce", "jedis"})
  void aConnectionThatOpensTooLateIsClosedAndNotUsed(String base) throws Exception {
    try (SlowProxy proxy = new SlowProxy()) {
      Locks locks = open(base, proxy.socket.getLocalPort(), 5, retrying(300));
      proxy.delayMs = 450; // each answer comes in time, and all together too late
      for (int n = 0; n < 2; n++) {
        assertThrows(SlockException.TimedOut.class, () -> locks.write("late").tryAcquire());
      }
      proxy.delayMs = 0;
      Hold hold = locks.write("late").acquire();
      assertEquals(0L, server.plain.call(0, "EXISTS", "late"), "of the database 0");
      assertTrue(hold.release());
      locks.close();
      server.until("no connection to be left", () -> proxy.open.get() == 0);
    }
  }

  @Test
  void aNodeThatTellsNoHostIsAtTheAddressThatWasAsked() throws Exception {
    try (TestServer node = new TestServer("--cluster-enabled", "yes",
            "--cluster-preferred-endpoint-type", "unknown-endpoint");
        Locks locks = JedisLocks.cluster(Set.of(at(node.port)), DefaultJedisClientConfig.builder().build(),
            retrying(30_000))) {
      node.plain.call(0, "CLUSTER", "ADDSLOTSRANGE", "0", "16383");
      assertTrue(locks.write("cluster").acquire().release());
    }
  }

  private static long locksSent() {
    return Arrays.stream(server.plain.call(0, "INFO", "commandstats").toString().split("[:,=]"))
        .dropWhile(word -> !word.endsWith("cmdstat_slock.lock")).skip(2).findFirst().map(Long::parseLong).orElse(0L);
  }

  @Test
  void aCallThatExpiresLeavesItsConnectionToOthers() throws Exception {
    try (SlowProxy proxy = new SlowProxy();
        Locks locks = open("lettuce", proxy.socket.getLocalPort(), 0, retrying(10_000))) {
      locks.write("warm").acquire().release();
      long before = locksSent();
      proxy.delayMs = 1500;
      CompletableFuture<Hold> patient = locks.write("patient").acquireAsync();
      assertThrows(SlockException.TimedOut.class, () -> locks.write("hasty").waitFor(Duration.ofMillis(100)).acquire());
      Hold hold = patient.get(60, TimeUnit.SECONDS);
      assertEquals(2, locksSent() - before);
      proxy.delayMs = 0;
      assertTrue(hold.release());
    }
  }

  @Test
  void aCallThatExpiresLeavesThoseOfItsPipelineTheirAnswers() throws Exception {
    try (SlowProxy proxy = new SlowProxy();
        Locks locks = JedisLocks.of(at(proxy.socket.getLocalPort()), DefaultJedisClientConfig.builder().build(), 1,
            retrying(10_000))) {
      locks.write("warm").acquire().release();
      long before = locksSent();
      proxy.delayMs = 1500;
      CompletableFuture<Hold> first = locks.write("pipeline").acquireAsync();
      server.until("the first to be sent", () -> locksSent() > before);
      CompletableFuture<Hold> patient = locks.write("second").acquireAsync(); // it has to wait for the connection
      CompletableFuture<Hold> hasty = locks.write("third").waitFor(Duration.ofMillis(1600)).acquireAsync();
      first.get(60, TimeUnit.SECONDS);
      patient.get(60, TimeUnit.SECONDS);
      assertThrows(ExecutionException.class, hasty::get);
      assertEquals(3, locksSent() - before);
      proxy.delayMs = 0;
    }
  }

  @ParameterizedTest
  @ValueSource(strings = {"lettuce", "jedis"})
  void aWaitOnAConnectionThatEndedWhileItWasIdleHasNoAnswer(String base) throws Exception {
    TestServer gone = new TestServer();
    try (Locks locks = open(base, gone.port, 0, new Options().waitByBlocking())) {
      assertTrue(locks.write("idle").acquire().release());
      gone.close();
      assertTimeout(Duration.ofSeconds(30),
          () -> assertThrows(SlockException.TimedOut.class, () -> locks.write("idle").acquire()));
    }
  }

  /** Says to each of its clients which server is the primary. */
  private static void beSentinel(Socket client) throws IOException {
    BufferedReader in = new BufferedReader(new InputStreamReader(client.getInputStream(), StandardCharsets.UTF_8));
    OutputStream out = client.getOutputStream();
    String port = Integer.toString(server.port);
    for (String line = in.readLine(); line != null; line = in.readLine()) {
      String answer = switch (line) {
        case "HELLO" -> "-ERR unknown command 'HELLO'\r\n";
        case "CLIENT", "PING" -> "+OK\r\n";
        case "SENTINEL" -> "*2\r\n$9\r\n127.0.0.1\r\n$" + port.length() + "\r\n" + port + "\r\n";
        default -> ""; // not the name of a command
      };
      out.write(answer.getBytes(StandardCharsets.UTF_8));
    }
  }

  @ParameterizedTest
  @ValueSource(strings = {"lettuce", "jedis"})
  void aSilentSentinelIsPassedOver(String base) throws Exception {
    try (ServerSocket silent = listening(); ServerSocket sentinel = listening()) {
      thread(() -> {
        while (true) {
          Socket socket = sentinel.accept();
          thread(() -> beSentinel(socket));
        }
      });
      List<Integer> ports = List.of(silent.getLocalPort(), sentinel.getLocalPort());
      RedisURI.Builder uri = RedisURI.builder().withSentinelMasterId("main");
      ports.forEach(port -> uri.withSentinel("127.0.0.1", port));
      JedisClientConfig config = DefaultJedisClientConfig.builder().build();
      try (Locks locks = base.equals("jedis")
          ? JedisLocks.sentinel("main", new LinkedHashSet<>(ports.stream().map(TroubleTest::at).toList()), config, config,
              retrying(15_000))
          : LettuceLocks.of(LETTUCE, uri.build(), retrying(15_000))) {
        assertTrue(locks.write("sentinel").acquire().release());
      }
    }
  }

  @Test
  void anExecutorThatRefusesIsReplaced() throws Exception {
    ExecutorService executor = Executors.newSingleThreadExecutor();
    try (Locks locks = open("jedis", server.port, 0, new Options().executor(executor))) {
      Hold first = locks.write("executor").acquire();
      CompletableFuture<Hold> next = locks.write("executor").acquireAsync();
      executor.shutdown();
      first.release();
      Hold hold = next.get(30, TimeUnit.SECONDS);
      CompletableFuture<SlockException.Lost> lost = new CompletableFuture<>();
      hold.onLost(lost::complete);
      server.plain.call(0, "DEL", "executor");
      assertThrows(SlockException.Lost.class, () -> hold.close());
      assertEquals(SlockException.Reason.GONE, lost.get(30, TimeUnit.SECONDS).reason());
    }
  }

  @Test
  void theTimeLeftEndsWithTheHold() throws Exception {
    try (Locks locks = open("jedis", server.port, 0, new Options())) {
      Hold hold = locks.write("left").longestLease(Duration.ofSeconds(1)).acquire();
      assertTrue(hold.timeLeft().toMillis() <= 1000, hold.timeLeft().toString());
      hold.release();
      assertTrue(hold.validUntilNanoTime() <= System.nanoTime());
    }
  }

  @Test
  void aTimeBelowZeroIsRefused() {
    assertThrows(IllegalArgumentException.class, () -> retrying(-1));
    assertThrows(IllegalArgumentException.class, () -> new Options().retryWaitFor(Duration.ofMillis(-1)));
  }

  @Test
  void aHoldThatIsNotRenewedAnyMoreCostsNothing() throws Exception {
    Locks locks = open("jedis", server.port, 0, new Options());
    CompletableFuture<SlockException.Lost> lost = new CompletableFuture<>();
    Hold hold = locks.write("closed").ttl(Duration.ofSeconds(3)).acquire();
    hold.onLost(lost::complete);
    locks.close();
    long before = cpuMillisOfTimers();
    assertEquals(SlockException.Reason.EXPIRED, lost.get(30, TimeUnit.SECONDS).reason());
    long cost = cpuMillisOfTimers() - before;
    assertTrue(cost < 100, cost + " ms");
    StackTraceElement[] stack = assertThrows(SlockException.Lost.class, hold::check).getStackTrace();
    assertTrue(Arrays.stream(stack).anyMatch(at -> at.getClassName().equals(getClass().getName())), "it is of this thread");
  }

  @Test
  void anInterruptedThreadWaitsInCloseWithoutWork() throws Exception {
    try (ServerSocket silent = listening()) {
      Locks locks = open("jedis", silent.getLocalPort(), 0, retrying(2000));
      CompletableFuture.runAsync(() -> locks.release(List.of("silent"), "token"));
      silent.accept();
      long own = Thread.currentThread().getId();
      long before = cpuMillis(LongStream.of(own));
      Thread.currentThread().interrupt();
      locks.close();
      assertTrue(Thread.interrupted());
      long cost = cpuMillis(LongStream.of(own)) - before;
      assertTrue(cost < 100, cost + " ms");
    }
  }
}
