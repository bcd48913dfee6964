// SPDX-License-Identifier: MIT OR Apache-2.0

package example.slock;

import java.io.Serializable;
import java.time.Duration;
import java.util.Comparator;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * What SLOCK.INFO tells of one lock.
 *
 * @param fence the highest of the holders
 * @param remaining until the last holder's deadline
 * @param holders in the order in which their holds began
 * @param queue in the order in which they will be granted
 */
public record Info(Mode mode, int readers, int waiters, long fence, Duration remaining, List<Holder> holders,
    List<Waiter> queue) {
  /** One who holds a lock: remaining until its deadline, held since the hold began. */
  public record Holder(String token, long fence, Duration remaining, Duration held, String metadata)
      implements Serializable {}

  /** One who waits; the mode is write, read or upgrade. It waits for {@code most} unless the request is sent again. */
  public record Waiter(String token, String mode, Duration waiting, Duration most, String metadata, int limit,
      String channel) {}

  /** A lock that is waited for; next is the token at the front, held is of the oldest hold. */
  public record Queue(String key, int waiters, int writers, Duration longestWait, String next, Mode mode, int readers,
      Duration held) {}

  /** The fields that the server names. What is missing is zero or empty. */
  private record Fields(Map<Object, Object> values) {
    static Fields of(Object reply) {
      Map<Object, Object> values = new HashMap<>();
      List<?> list = reply instanceof List<?> fields ? fields : List.of();
      for (int i = 0; i + 1 < list.size(); i += 2) {
        values.put(list.get(i), list.get(i + 1));
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

  static Info of(Object reply) {
    Fields f = Fields.of(reply);
    return new Info(f.mode(), f.count("readers"), f.count("waiters"), f.number("fence"), f.time("pttl"),
        f.list("holders").stream().map(h -> new Holder(h.text("token"), h.number("fence"), h.time("pttl"),
            h.time("held-ms"), h.text("meta"))).toList(),
        f.list("queue").stream().map(w -> new Waiter(w.text("token"), w.text("mode"), w.time("waiting-ms"),
            w.time("timeout-ms"), w.text("meta"), w.count("limit"), w.text("channel"))).toList());
  }

  /** Where a node goes on after this page of its queues; 0 after the last one. */
  static long cursor(Object page) {
    return Long.parseLong((String) ((List<?>) page).get(0));
  }

  /** From the pages of all nodes: those whose key has the prefix, without it, each once, the longest wait first. */
  static List<Queue> queues(List<?> pages, String prefix) {
    Map<String, Fields> found = new LinkedHashMap<>(); // those that wait equally long keep the order of the server
    pages.stream().flatMap(page -> ((List<?>) ((List<?>) page).get(1)).stream()).map(Fields::of)
        .forEach(queue -> found.put(queue.text("key"), queue));
    return found.values().stream().filter(q -> q.text("key").startsWith(prefix))
        .map(q -> new Queue(q.text("key").substring(prefix.length()), q.count("waiters"), q.count("writers"),
            q.time("longest-wait-ms"), q.text("next"), q.mode(), q.count("readers"), q.time("held-ms")))
        .sorted(Comparator.comparing(Queue::longestWait).reversed()).toList();
  }
}
