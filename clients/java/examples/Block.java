import example.slock.Hold;
import example.slock.Locks;
import example.slock.Options;
import example.slock.SlockException;
import example.slock.lettuce.LettuceLocks;
import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisURI;
import java.time.Duration;

/** A lock around work, with a fence, and what to do when it is lost. {@code ./run examples/Block.java} starts it. */
public class Block {
  public static void main(String[] arguments) throws InterruptedException {
    RedisURI uri = RedisURI.create(arguments.length > 0 ? arguments[0] : "redis://localhost:6379");
    RedisClient client = RedisClient.create();
    Options options = new Options().ttl(Duration.ofSeconds(5)).waitFor(Duration.ofSeconds(30));
    try (Locks locks = LettuceLocks.of(client, uri, options)) {
      try (Hold hold = locks.write("job:42").acquire()) {
        System.out.println("the fence is " + hold.fence());
        hold.check(); // before each step that matters
      } catch (SlockException.TimedOut e) {
        System.out.println("somebody else works on it");
      } catch (SlockException.Lost e) {
        System.out.println("the hold was lost: " + e.reason());
      }
      // The work is interrupted when the hold is lost.
      String done = locks.write("job:43").run(hold -> "worked under " + hold.keys());
      System.out.println(done);
    } finally {
      client.shutdown();
    }
  }
}
