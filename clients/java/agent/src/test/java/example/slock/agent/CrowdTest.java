package example.slock.agent;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import example.slock.Hold;
import example.slock.Locks;
import example.slock.Options;
import example.slock.SlockException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** Many that wait at once, and many that are given up. */
@Timeout(300)
class CrowdTest {
  private static TestServer server;

  @BeforeAll
  static void start() throws Exception {
    server = new TestServer();
  }

  @AfterAll
  static void stop() throws Exception {
    server.close();
    LETTUCE.close();
  }

  private static Locks open(String name, Options options) {
    Request r = new Request();
    r.op = "open";
    r.nodes = List.of("127.0.0.1:" + server.port);
    return (name.equals("jedis") ? new JedisBase() : LETTUCE).open(r, options);
  }

  private static final LettuceBase LETTUCE = new LettuceBase();

  private static long threads() {
    return Thread.getAllStackTraces().keySet().stream()
        .filter(thread -> thread.getName().startsWith("slock") || thread.getName().startsWith("test-")).count();
  }

  private static Thread thread(Runnable work) {
    Thread thread = new Thread(work, "test-waiter");
    thread.start();
    return thread;
  }

  @ParameterizedTest
  @ValueSource(strings = {"lettuce", "jedis"})
  void aThousandTasksWaitForFiftyLocksOverOneConnection(String base) throws Exception {
    try (Locks locks = open(base, new Options())) {
      List<Hold> held = new ArrayList<>();
      for (int n = 0; n < 50; n++) {
        held.add(locks.write("crowd:" + n).acquire());
      }
      List<CompletableFuture<Void>> tasks = new ArrayList<>();
      AtomicInteger inside = new AtomicInteger();
      for (int n = 0; n < 1000; n++) {
        tasks.add(locks.write("crowd:" + n % 50).acquireAsync().thenCompose(hold -> {
          inside.incrementAndGet();
          return hold.releaseAsync();
        }).thenAccept(released -> assertTrue(released)));
      }
      server.until("all to wait", () -> server.slock("slock_waiters") == 1000);
      assertEquals(1, server.connections("pubsub"));
      assertEquals(0, inside.get());
      held.forEach(Hold::release);
      for (CompletableFuture<Void> task : tasks) {
        task.get(60, TimeUnit.SECONDS);
      }
      assertEquals(1000, inside.get());
    }
  }

  @ParameterizedTest
  @ValueSource(strings = {"lettuce", "jedis"})
  void tenThousandCancelledAcquisitionsLeaveNothing(String base) throws Exception {
    Random dice = new Random(1);
    AtomicInteger granted = new AtomicInteger();
    AtomicInteger cancelled = new AtomicInteger();
    long before = threads();
    Locks locks = open(base, new Options());
    Hold blocker = locks.write("cancelled").ttl(Duration.ofMinutes(5)).acquire();
    for (int batch = 0; batch < 100; batch++) {
      List<CompletableFuture<Hold>> futures = new ArrayList<>();
      List<Thread> interrupted = new ArrayList<>();
      CountDownLatch started = new CountDownLatch(10);
      for (int n = 0; n < 90; n++) {
        futures.add(locks.write(dice.nextInt(8) == 0 ? "free:" + dice.nextInt(100) : "cancelled").acquireAsync());
      }
      for (int n = 0; n < 10; n++) {
        interrupted.add(thread(() -> {
          started.countDown();
          try {
            locks.write("cancelled").acquire().release();
          } catch (InterruptedException e) {
            cancelled.incrementAndGet();
          }
        }));
      }
      assertTrue(started.await(30, TimeUnit.SECONDS));
      if (dice.nextInt(3) == 0) {
        Thread.sleep(dice.nextInt(5));
      }
      if (dice.nextInt(10) == 0) { // connections are lost, too
        server.plain.call(0, "CLIENT", "KILL", "TYPE", dice.nextBoolean() ? "PUBSUB" : "NORMAL", "SKIPME", "YES");
      }
      for (CompletableFuture<Hold> future : futures) {
        future.cancel(true);
        try {
          future.get().release();
          granted.incrementAndGet();
        } catch (CancellationException e) {
          cancelled.incrementAndGet();
        } catch (ExecutionException e) {
          throw new AssertionError(e);
        }
      }
      for (Thread thread : interrupted) {
        thread.interrupt();
        thread.join(30_000);
        assertTrue(!thread.isAlive(), "an interrupted thread ends");
      }
    }
    assertEquals(10_000, granted.get() + cancelled.get());
    assertTrue(cancelled.get() > 5000, "cancelled: " + cancelled.get());
    assertTrue(blocker.release());
    long ended = System.nanoTime();
    server.until("nothing to be held or queued",
        () -> server.slock("slock_locks") == 0 && server.slock("slock_waiters") == 0);
    System.out.printf("%s: %d cancelled, %d granted; %d ms until nothing was left%n", base, cancelled.get(), granted.get(),
        (System.nanoTime() - ended) / 1_000_000);
    locks.close();
    server.until("no connection to listen", () -> server.connections("pubsub") == 0);
    server.until("threads to end: " + before, () -> threads() <= before);
  }

  @ParameterizedTest
  @ValueSource(strings = {"lettuce", "jedis"})
  void workIsInterruptedWhenTheHoldIsLost(String base) throws Exception {
    try (Locks locks = open(base, new Options())) {
      CountDownLatch inside = new CountDownLatch(1);
      CompletableFuture<Throwable> end = new CompletableFuture<>();
      thread(() -> {
        try {
          locks.write("work").ttl(Duration.ofMillis(600)).run(hold -> {
            inside.countDown();
            Thread.sleep(60_000);
            return null;
          });
          end.complete(null);
        } catch (Throwable e) {
          end.complete(e);
        }
        if (Thread.currentThread().isInterrupted()) {
          end.complete(new AssertionError("the interrupt was for the work"));
        }
      });
      assertTrue(inside.await(30, TimeUnit.SECONDS));
      server.plain.call(0, "DEL", "work");
      Throwable error = end.get(30, TimeUnit.SECONDS);
      assertEquals(SlockException.Lost.class, error.getClass());
      assertEquals(SlockException.Reason.GONE, ((SlockException.Lost) error).reason());
    }
  }
}
