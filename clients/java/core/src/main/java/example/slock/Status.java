package example.slock;

import java.time.Duration;
import java.util.Comparator;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/** What the server tells of locks: who holds one, who waits for it, and which are waited for. */
public final class Status {
  private Status() {}

  /** One lock. The fence is the highest of the holders; remaining is until the last holder's deadline. */
  public record Info(Mode mode, int readers, int waiters, long fence, Duration remaining, List<Holder> holders,
      List<Waiter> queue) {}

  /** One who holds a lock: remaining until its deadline, held since the hold began. */
  public record Holder(String token, long fence, Duration remaining, Duration held, String metadata) {}

  /** One who waits; the mode is write, read or upgrade. Longest is how long it waits at most, zero without a limit. */
  public record Waiter(String token, String mode, Duration waiting, Duration longest, String metadata, int limit,
      String channel) {}

  /** A lock that is waited for; next is the token at the front, held is of the oldest hold. */
  public record Queue(String key, int waiters, int writers, Duration longestWait, String next, Mode mode, int readers,
      Duration held) {}

  /** The fields that the server names. What is missing is zero or empty. */
  private record Fields(Map<Object, Object> values) {
    static Fields of(Object reply) {
      Map<Object, Object> values = new HashMap<>();
      if (reply instanceof List<?> list) {
        for (int i = 0; i + 1 < list.size(); i += 2) {
          values.put(list.get(i), list.get(i + 1));
        }
      }
      return new Fields(values);
    }

    String text(String name) {
      return values.get(name) instanceof String text ? text : "";
    }

    long number(String name) {
      return values.get(name) instanceof Long number ? number : 0;
    }

    int count(String name) {
      return (int) number(name);
    }

    Duration time(String name) {
      return Duration.ofMillis(number(name));
    }

    Mode mode() {
      return switch (text("mode")) {
        case "write" -> Mode.WRITE;
        case "read" -> Mode.READ;
        default -> Mode.FREE;
      };
    }

    List<Fields> list(String name) {
      return values.get(name) instanceof List<?> list ? list.stream().map(Fields::of).toList() : List.of();
    }
  }

  static Info info(Object reply) {
    Fields f = Fields.of(reply);
    List<Holder> holders = f.list("holders").stream().map(h -> new Holder(h.text("token"), h.number("fence"),
        h.time("pttl"), h.time("held-ms"), h.text("meta"))).toList();
    List<Waiter> queue = f.list("queue").stream().map(w -> new Waiter(w.text("token"), w.text("mode"),
        w.time("waiting-ms"), w.time("timeout-ms"), w.text("meta"), w.count("limit"), w.text("channel"))).toList();
    return new Info(f.mode(), f.count("readers"), f.count("waiters"), f.number("fence"), f.time("pttl"), holders, queue);
  }

  /** From the answers of all nodes. */
  static List<Queue> queues(Object all) {
    return ((List<?>) all).stream().map(Fields::of)
        .map(q -> new Queue(q.text("key"), q.count("waiters"), q.count("writers"), q.time("longest-wait-ms"),
            q.text("next"), q.mode(), q.count("readers"), q.time("held-ms")))
        .sorted(Comparator.comparing(Queue::longestWait).reversed()).toList();
  }
}
