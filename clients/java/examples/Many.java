import example.slock.Locks;
import example.slock.jedis.JedisLocks;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicInteger;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.RedisClient;

/**
 * A hundred tasks work, and as many at once as there are locks: three. The others wait, in order. With Java 21 the threads
 * may be virtual ones. {@code ./run examples/Many.java localhost:6379} starts it.
 */
public class Many {
  private static final AtomicInteger atWork = new AtomicInteger();
  private static final AtomicInteger most = new AtomicInteger();

  public static void main(String[] arguments) throws Exception {
    ExecutorService threads = Executors.newCachedThreadPool();
    List<Future<?>> tasks = new ArrayList<>();
    HostAndPort address = HostAndPort.from(arguments.length > 0 ? arguments[0] : "localhost:6379");
    try (RedisClient client = RedisClient.builder().hostAndPort(address).build(); Locks locks = JedisLocks.of(client)) {
      for (int n = 0; n < 100; n++) {
        String lock = "example:many:" + n % 3;
        tasks.add(threads.submit(() -> locks.write(lock).execute(hold -> work())));
      }
      for (Future<?> task : tasks) {
        task.get();
      }
    }
    threads.shutdown();
    System.out.println(tasks.size() + " tasks, at most " + most + " at once");
  }

  private static int work() throws InterruptedException {
    int now = most.accumulateAndGet(atWork.incrementAndGet(), Math::max);
    Thread.sleep(5);
    atWork.decrementAndGet();
    return now;
  }
}
