package example.slock.agent;

import static org.junit.jupiter.api.Assertions.assertEquals;

import example.slock.Locks;
import example.slock.Options;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.condition.EnabledForJreRange;
import org.junit.jupiter.api.condition.JRE;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** Virtual threads, with Java 21 and later. The library is compiled for 17, so they are asked for by name. */
@Timeout(120)
class VirtualThreadTest {
  private static final int TASKS = 1000;

  /** More wait than there are threads that carry them: who waits does not keep its carrier. */
  @ParameterizedTest
  @ValueSource(strings = {"lettuce", "jedis"})
  @EnabledForJreRange(min = JRE.JAVA_21)
  void aThousandWaitForThreeLocks(String base) throws Exception {
    ExecutorService threads =
        (ExecutorService) Executors.class.getMethod("newVirtualThreadPerTaskExecutor").invoke(null);
    try (TestServer server = new TestServer()) {
      Request r = new Request();
      r.op = "open";
      r.nodes = List.of("127.0.0.1:" + server.port);
      AtomicInteger done = new AtomicInteger();
      Base of = base.equals("jedis") ? new JedisBase() : new LettuceBase();
      try (Locks locks = of.open(r, new Options()).locks()) {
        for (int n = 0; n < 3; n++) {
          server.plain.call(0, "SLOCK.LOCK", "virtual:" + n, "other", "600000");
        }
        List<Future<?>> tasks = new ArrayList<>();
        for (int n = 0; n < TASKS; n++) {
          String lock = "virtual:" + n % 3;
          tasks.add(threads.submit(() -> locks.write(lock).execute(hold -> done.incrementAndGet())));
        }
        server.until("all to wait", () -> server.slock("slock_waiters") == TASKS);
        for (int n = 0; n < 3; n++) {
          server.plain.call(0, "SLOCK.UNLOCK", "virtual:" + n, "other");
        }
        for (Future<?> task : tasks) {
          task.get(60, TimeUnit.SECONDS);
        }
        assertEquals(TASKS, done.get());
      }
    } finally {
      threads.shutdownNow();
    }
  }
}
