package example.slock.agent;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import example.slock.LockView;
import example.slock.Locks;
import example.slock.Options;
import example.slock.ReadWriteLockView;
import example.slock.SlockException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Stream;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;
import org.junit.jupiter.params.provider.ValueSource;

/**
 * What Redisson's tests of RLock and RReadWriteLock show, against the views. Each row has the name of theirs; REDISSON.md
 * says which are not here. Times are shorter, and conditions are waited for.
 */
@Timeout(120)
class RedissonTest {
  /**
   * A row is the name of a test, and its steps. A step is a thread, and what it does with its view of the lock, or of the lock
   * for reading or writing; times are in ms. What follows {@code =} is the result, or between which numbers it is. What follows
   * {@code in} is how long it takes. {@code …} begins a step, and {@code ends} waits for its end. J uses Jedis, the others
   * Lettuce.
   */
  private static final String ROWS = """
      testLockIsNotRenewedAfterInterruptedTryLock:
        B tryLockInterrupted = true, B unlock, A isLocked = false
      testRemainTimeToLive:
        A lock(3600000), A ttl = 3540000..3600000, A unlock, A ttl = -2, A lock, A ttl = 1..2000, A unlock
      testRemainTimeToLive2:
        A lock(10000), A lock(10000), A lock(10000), A unlock, A unlock, A ttl = 5001..10000, A isHeld = true
      testTryLockWait:
        J lock, A tryLock(500) = false in 490..1500, J unlock, A tryLock(500) = true
      testLockUninterruptibly:
        A lock, B lock…, server waiters = 1, B interrupt, A pause(300), A unlock, B ends = interrupted, B unlock
      testForceUnlock:
        A lock, A forceUnlock = true, A isLocked = false, A isHeld = false, B forceUnlock = false, A unlock = fails
      testForceUnlock of another:
        J lock, A forceUnlock = true, A lock, A unlock
      testExpire:
        A lock(1000), B lock in 800..3000, B unlock, A unlock = fails
      testAutoExpire:
        J lock, A isLocked = true, J close, A lock in 500..5000, A unlock
      testGetHoldCount:
        A count = 0, A lock, A lock, A count = 2, A unlock, A count = 1, A unlock, A count = 0
      testIsHeldByCurrentThread, …OtherThread:
        A isHeld = false, A lock, A isHeld = true, B isHeld = false, J isHeld = false, A unlock, A isHeld = false
      testIsLocked, …OtherThread:
        A isLocked = false, A lock, A isLocked = true, J isLocked = true, A unlock, A isLocked = false, J isLocked = false
      testUnlockFail:
        A unlock = fails, B lock, A unlock = fails, B unlock, A lock, A unlock
      testLockUnlock:
        A lock, A unlock, A lock, A unlock, A hold = null, A newCondition = unsupported
      testReentrancy:
        A tryLock = true, A tryLock = true, A unlock, A unlock, A tryLock(9223372036854775807,-1) = true, A lock(-1),
        A unlock
      testReentrancy renewed:
        A lock, A lock, A unlock, A pause(2500), B tryLock = false, J tryLock = false, A unlock, J tryLock = true
      testReadLockExpiration:
        A read.lock(1500), B read.lock(400), C write.lock in 800..5000, C write.unlock
      testReadLockIsLocked:
        A write.lock, A read.isLocked = false, A read.tryLock(10000) = true, A read.isLocked = true
      testReadLockExpirationRenewal:
        A read.lock, B read.lock, J read.lock, A pause(3000), A read.unlock, B read.unlock, J read.unlock
      testName:
        A read.name = lock, A write.name = lock
      testReadLockLeaseTimeoutDiffThreadsWRR:
        A write.tryLock(1000,700) = true, B read.lock…, C read.lock…, B ends, C ends
      testReadLockLeaseTimeoutDiffThreadsRRW:
        A read.tryLock(1000,2000) = true, B read.tryLock(1000,10000) = true, B read.unlock,
        C write.tryLock(10000,1000) = true
      testWR:
        A write.lock, A read.lock, A write.isLocked = true, A read.unlock, A write.isLocked = true, A write.unlock,
        A write.isLocked = false
      testWriteRead:
        A write.lock, B read.lock…, C read.lock…, J read.lock…, server waiters = 3, A write.unlock, B ends, C ends, J ends
      testWriteReadReentrancy:
        A write.lock, A read.tryLock = true, B read.tryLock = false, A write.unlock, B read.tryLock(5000,1000) = true,
        A write.tryLock = false, A read.unlock, A write.tryLock(5000) = true
      testWriteLock:
        A write.lock, A write.tryLock = true, B write.isHeld = false, B write.isLocked = true, B read.tryLock = false,
        A write.unlock, A read.tryLock = true, A write.isHeld = true, A write.unlock, A write.isHeld = false,
        A write.isLocked = false, B read.tryLock = true, B read.unlock, A write.tryLock = false, A write.lock = fails
      testMultiRead:
        A read.forceUnlock = false, A read.lock, A write.tryLock = false, B read.isHeld = false, B read.lock,
        A read.unlock, A read.isLocked = true, A write.tryLock = false, B read.unlock, A read.isLocked = false,
        A write.tryLock = true, A write.isLocked = true
      testForceUnlock of readers:
        A read.lock, A write.forceUnlock = false, A read.isLocked = true, server readers(250), A read.forceUnlock = true,
        A read.isLocked = false
      testForceUnlock of the writer:
        A write.lock, A read.forceUnlock = false, A write.isLocked = true, A write.forceUnlock = true,
        A write.isLocked = false
      testReadWriteTTL:
        A write.lock, A read.lock, A pause(2000), A read.ttl = 667..2000, A write.ttl = 667..2000, A write.unlock,
        A pause(2000), A read.ttl = 667..2000
      testExpireRead:
        A read.lock(700), B write.lock, B write.unlock, A read.unlock = fails
      testExpireWrite:
        A write.lock(700), B write.lock, B write.unlock, A write.unlock = fails
      testHoldCount:
        A read.count = 0, A read.lock, A read.lock, A read.count = 2, A read.unlock, A read.unlock, A read.count = 0,
        A read.unlock = fails
      testHoldCount of writers:
        A write.lock, A write.lock, A write.count = 2, A write.unlock, A write.unlock, A write.count = 0,
        A write.unlock = fails
      """;
  private static final Pattern STEP = Pattern.compile("(?<who>\\w+) (?:(?<mode>read|write)\\.)?(?<what>\\w+)"
      + "(?:\\((?<args>\\S*)\\))?(?<begins>…)?(?: = (?<result>\\S+))?(?: in (?<time>\\S+))?");
  private static final Duration TTL = Duration.ofSeconds(2);

  private TestServer server;
  private Locks locks;
  private Locks others;
  private final Map<String, ExecutorService> executors = new HashMap<>();
  private final Map<String, Thread> threads = new ConcurrentHashMap<>();
  private final Map<String, Future<Object>> begun = new HashMap<>();

  @BeforeEach
  void start() throws Exception {
    server = new TestServer();
    locks = open(new LettuceBase());
    others = open(new JedisBase());
    server.until("the classes to be loaded", () -> locks.info("lock").waiters() + others.info("lock").waiters() == 0);
  }

  @AfterEach
  void stop() throws Exception {
    executors.values().forEach(ExecutorService::shutdownNow);
    locks.close();
    others.close();
    server.close();
  }

  private Locks open(Base base) {
    Request r = new Request();
    r.op = "open";
    r.nodes = List.of("127.0.0.1:" + server.port);
    return base.open(r, new Options().ttl(TTL)).locks();
  }

  static Stream<String> rows() {
    return Stream.of(ROWS.split("\n(?! )"));
  }

  @ParameterizedTest
  @MethodSource("rows")
  void redissonsCase(String row) throws Exception {
    for (String step : row.substring(row.indexOf(":\n") + 2).strip().split(",\\s+")) {
      Matcher m = STEP.matcher(step);
      assertTrue(m.matches(), step);
      long began = System.nanoTime();
      Object result = m.group("who").equals("server") ? ofServer(m) : ofThread(m);
      long ms = (System.nanoTime() - began) / 1_000_000;
      assertTrue(m.group("result") == null || is(m.group("result"), result), step + " was " + result + " in: " + row);
      assertTrue(m.group("time") == null || is(m.group("time"), ms), step + " took " + ms + " ms in: " + row);
    }
  }

  private static boolean is(String expected, Object result) {
    String[] range = expected.split("\\.\\.");
    return range.length == 1 ? expected.equals(String.valueOf(result))
        : Long.parseLong(range[0]) <= (Long) result && (Long) result <= Long.parseLong(range[1]);
  }

  private Object ofServer(Matcher m) throws Exception {
    if (m.group("what").equals("waiters")) {
      server.until("so many to wait", () -> server.slock("slock_waiters") == Long.parseLong(m.group("result")));
      return m.group("result");
    }
    for (int n = 0; n < Integer.parseInt(m.group("args")); n++) {
      server.plain.call(0, "SLOCK.RLOCK", "lock", "reader" + n, "60000");
    }
    return null;
  }

  private Object ofThread(Matcher m) throws Exception {
    String who = m.group("who");
    if (m.group("what").equals("ends")) {
      return begun.remove(who).get(60, TimeUnit.SECONDS);
    } else if (m.group("what").equals("interrupt")) {
      threads.get(who).interrupt();
      return null;
    }
    ExecutorService executor = executors.computeIfAbsent(who, name -> Executors.newSingleThreadExecutor(
        task -> threads.compute(name, (same, none) -> new Thread(task, "test-" + name))));
    Future<Object> result = executor.submit(() -> perform(m));
    if (m.group("begins") != null) {
      begun.put(who, result);
      return null;
    }
    return result.get(60, TimeUnit.SECONDS);
  }

  private Object perform(Matcher m) throws Exception {
    Locks own = m.group("who").equals("J") ? others : locks;
    LockView lock = m.group("mode") == null ? own.lock("lock")
        : m.group("mode").equals("read") ? own.readWriteLock("lock").readLock() : own.readWriteLock("lock").writeLock();
    long[] ms = m.group("args") == null ? new long[0]
        : Arrays.stream(m.group("args").split(",")).mapToLong(Long::parseLong).toArray();
    try {
      switch (m.group("what")) {
        case "lock" -> lock.lock(ms.length == 0 ? -1 : ms[0], TimeUnit.MILLISECONDS);
        case "unlock" -> lock.unlock();
        case "pause" -> Thread.sleep(ms[0]); // as long as somebody works, or a lease lasts: there is nothing to wait for
        case "close" -> own.close(); // as if the process had ended
        default -> {
          return ask(lock, m.group("what"), ms);
        }
      }
      return Thread.interrupted() ? "interrupted" : null;
    } catch (IllegalMonitorStateException e) {
      return "fails";
    } catch (UnsupportedOperationException e) {
      return "unsupported";
    }
  }

  private static Object ask(LockView lock, String what, long[] ms) throws InterruptedException {
    switch (what) {
      case "tryLockInterrupted":
        Thread.currentThread().interrupt();
        return lock.tryLock() && Thread.interrupted();
      case "tryLock":
        return ms.length == 0 ? lock.tryLock() : ms.length == 1 ? lock.tryLock(ms[0], TimeUnit.MILLISECONDS)
            : lock.tryLock(ms[0], ms[1], TimeUnit.MILLISECONDS);
      default:
        return switch (what) {
          case "isLocked" -> lock.isLocked();
          case "isHeld" -> lock.isHeldByCurrentThread();
          case "count" -> lock.getHoldCount();
          case "ttl" -> lock.remainTimeToLive();
          case "forceUnlock" -> lock.forceUnlock();
          case "hold" -> lock.hold();
          case "name" -> lock.getName();
          case "newCondition" -> lock.newCondition();
          default -> throw new AssertionError("what is " + what);
        };
    }
  }

  @Test
  void testRedisFailed() throws Exception {
    server.close();
    SlockException.NoAnswer error =
        assertThrows(SlockException.NoAnswer.class, () -> locks.lock("lock").tryLock(5, 10, TimeUnit.SECONDS));
    assertTrue(error.getMessage().toLowerCase().contains("connect"), error.getMessage());
    server = new TestServer();
  }

  /** testConcurrency…, testSubscriptionsPerConnection, testSinglePubSub and testConcurrencyTryLockUnLock. */
  @ParameterizedTest
  @ValueSource(strings = {"lock", "tryLock", "write and read"})
  void testConcurrency(String kind) throws Exception {
    int[] counters = new int[3]; // plain: the locks protect them
    AtomicInteger done = new AtomicInteger();
    ExecutorService pool = Executors.newFixedThreadPool(16);
    List<Callable<Void>> work = new ArrayList<>();
    for (int n = 0; n < 16; n++) {
      Locks own = n % 2 == 0 ? locks : others;
      work.add(() -> {
        for (int time = 0; time < 30; time++) {
          int at = ThreadLocalRandom.current().nextInt(counters.length);
          ReadWriteLockView rw = own.readWriteLock("lock-" + at);
          LockView lock = kind.equals("write and read") ? rw.writeLock() : own.lock("lock-" + at);
          if (kind.equals("tryLock") ? lock.tryLock() : lock.tryLock(60, TimeUnit.SECONDS)) {
            counters[at]++;
            done.incrementAndGet();
            lock.unlock();
          }
          if (lock == rw.writeLock()) {
            rw.readLock().lock();
            rw.readLock().unlock();
          }
        }
        return null;
      });
    }
    for (Future<Void> one : pool.invokeAll(work)) {
      one.get();
    }
    pool.shutdown();
    assertEquals(done.get(), Arrays.stream(counters).sum());
    assertTrue(done.get() == 16 * 30 || kind.equals("tryLock"));
    assertTrue(server.connections("pubsub") <= 2);
  }
}
