// SPDX-License-Identifier: MIT OR Apache-2.0

package example.slock.testing;

import example.slock.Locks;
import example.slock.Options;
import example.slock.Transport;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;
import java.util.function.Predicate;

/**
 * A server in memory for the tests of programs that use locks. It replies as a server with the module does, so what is tested
 * is the library that the program uses. Several {@link Locks} may share one.
 *
 * <pre>{@code
 * MemoryServer server = new MemoryServer();
 * Locks locks = server.locks();
 * Runnable release = server.hold("report"); // somebody else has it
 * server.lose("report");                    // the hold of the program is gone
 * server.fail(new IOException("refused"));  // nobody replies
 * }</pre>
 */
public final class MemoryServer implements Transport {
  private static final String WRITE = "write";
  private static final String READ = "read";
  private static final String UPGRADE = "upgrade";
  private static final long DAY_MS = 24L * 3600 * 1000;
  private static final long YEAR_MS = 365 * DAY_MS;
  /** How many arguments an option has. */
  private static final Map<String, Integer> OPTIONS =
      Map.of("META", 1, "LIMIT", 1, "WAIT", 1, "NOTIFY", 2, "XX", 0, "GT", 0, "FENCE", 1, "REFUSE", 1);

  private static final class Holder {
    String meta = "";
    long fence;
    long since;
    long deadline;
  }

  private static final class Lock {
    String mode;
    /** By token, in the order of their holds. */
    final Map<String, Holder> holders = new LinkedHashMap<>();
  }

  /** What a command asks for, and since when. */
  private record Ask(List<String> keys, String token, String mode, long ttl, Map<String, List<String>> options, long since) {
    boolean has(String option) {
      return options.containsKey(option);
    }

    String text(String option, int n) {
      return has(option) ? options.get(option).get(n) : "";
    }

    long number(String option) {
      return has(option) ? Long.parseLong(text(option, 0)) : 0;
    }

    /** 0: without an end. */
    long until() {
      return since + (number("WAIT") == 0 ? YEAR_MS : Math.min(number("WAIT"), YEAR_MS));
    }
  }

  private record Ended(long until, boolean wasReleased) {}

  private record Channel(Consumer<String> heard, Runnable changed) {}

  private final Map<String, Lock> locks = new TreeMap<>();
  /** In the order of arrival; an upgrade comes before the others. */
  private final List<Ask> queue = new ArrayList<>();
  private final Map<String, Ended> ended = new HashMap<>();
  private final Map<String, Channel> channels = new HashMap<>();
  private long fence;
  private Throwable failure;

  /** Locks over this server, with the default options. */
  public Locks locks() {
    return new Locks(this, new Options());
  }

  /** Has somebody else hold the lock for writing until what is returned runs. */
  public synchronized Runnable hold(String key) {
    locks.remove(key);
    grant(new Ask(List.of(key), "somebody else", WRITE, YEAR_MS, Map.of(), 0));
    return () -> lose(key);
  }

  /** Ends all holds of the key, as if it had been deleted. Their owners notice at once. */
  public void lose(String key) {
    List<Channel> all;
    synchronized (this) {
      locks.remove(key);
      serve();
      all = List.copyOf(channels.values());
    }
    all.forEach(channel -> channel.changed.run());
  }

  /** Has all calls fail from now on, as if no connection could be made. After null they succeed again. */
  public synchronized void fail(Throwable error) {
    failure = error;
  }

  /** The owner tokens that hold the lock. */
  public synchronized List<String> holders(String key) {
    expire();
    return locks.containsKey(key) ? List.copyOf(locks.get(key).holders.keySet()) : List.of();
  }

  @Override
  public Topology topology() {
    return new Topology("memory", true);
  }

  @Override
  public void close() {}

  @Override
  public Runnable listen(String name, Consumer<String> heard, Runnable changed) {
    synchronized (this) {
      channels.put(name, new Channel(heard, changed));
    }
    CompletableFuture.runAsync(changed);
    return () -> {
      synchronized (this) {
        channels.remove(name);
      }
    };
  }

  @Override
  public synchronized CompletionStage<Reply> call(Call call, long limit, boolean mayBlock) {
    if (failure != null) {
      return CompletableFuture.failedFuture(failure);
    }
    Object value = run(call.words());
    return CompletableFuture.completedFuture(new Reply(call.key().isEmpty() ? List.of(value) : value, run(call.then()), true));
  }

  private Object run(List<Object> command) {
    if (command.isEmpty()) {
      return null;
    }
    List<String> words = command.stream().map(Object::toString).toList();
    expire();
    try {
      return execute(words.get(0).toUpperCase(Locale.ROOT).replaceFirst("SLOCK\\.", ""), words.subList(1, words.size()));
    } catch (ErrorReply e) {
      return e;
    } finally {
      serve();
    }
  }

  private static ErrorReply error(String text) {
    return new ErrorReply(text, null);
  }

  private Object execute(String name, List<String> words) {
    return switch (name) {
      case "WAIT" -> 0L; // for replicas: there are none
      case "DEL" -> words.stream().filter(key -> locks.remove(key) != null).count();
      case "QUEUES" -> queues();
      case "INFO" -> info(words.get(0));
      case "LOCK", "RLOCK", "MLOCK", "MRLOCK", "UPGRADE" -> acquire(parse(name, words));
      case "UNLOCK" -> end(parse(name, words), WRITE);
      case "RUNLOCK" -> end(parse(name, words), READ);
      case "MUNLOCK" -> end(parse(name, words), null);
      case "EXTEND", "MEXTEND" -> extend(parse(name, words));
      case "DOWNGRADE" -> downgrade(parse(name, words));
      case "CANCEL" -> withdraw(parse(name, words));
      case "PTTL" -> pttl(parse(name, words));
      default -> throw error("ERR unknown command '" + name + "'");
    };
  }

  private static Ask parse(String name, List<String> all) {
    Iterator<String> words = all.iterator();
    List<String> keys = new ArrayList<>();
    for (int count = name.startsWith("M") ? Integer.parseInt(words.next()) : 1; count > 0; count--) {
      keys.add(words.next());
    }
    String token = words.next();
    boolean hasTtl = !name.endsWith("UNLOCK") && !name.equals("CANCEL") && !name.equals("PTTL");
    long ttl = hasTtl ? Long.parseLong(words.next()) : 1;
    if (ttl < 1 || ttl > DAY_MS) {
      throw error("ERR the ttl must be 1 to " + DAY_MS + " ms");
    }
    Map<String, List<String>> options = new HashMap<>();
    while (words.hasNext()) {
      String option = words.next().toUpperCase(Locale.ROOT);
      if (!OPTIONS.containsKey(option)) {
        throw error("ERR unknown option");
      }
      List<String> values = new ArrayList<>();
      for (int n = 0; n < OPTIONS.get(option); n++) {
        values.add(words.next());
      }
      options.put(option, values);
    }
    String mode = name.equals("UPGRADE") ? UPGRADE : name.contains("RLOCK") ? READ : WRITE;
    return new Ask(keys, token, mode, ttl, options, now());
  }

  // --- the rules of the lock: who may hold it, who is next

  private static long now() {
    return System.nanoTime() / 1_000_000;
  }

  private Holder holder(String key, String token) {
    return locks.containsKey(key) ? locks.get(key).holders.get(token) : null;
  }

  /** The hold that a command means. */
  private Holder holder(String key, Ask ask) {
    Holder holder = holder(key, ask.token);
    return holder != null && (!ask.has("FENCE") || ask.number("FENCE") == holder.fence) ? holder : null;
  }

  /** Whether the holders of the lock let the request in. */
  private boolean admits(String key, Ask ask) {
    Lock lock = locks.get(key);
    if (lock == null) {
      return !ask.mode.equals(UPGRADE);
    } else if (lock.holders.containsKey(ask.token)) {
      return !ask.mode.equals(UPGRADE) || lock.holders.size() == 1;
    }
    boolean isFull = ask.has("LIMIT") && lock.holders.size() >= ask.number("LIMIT");
    return ask.mode.equals(READ) && lock.mode.equals(READ) && !isFull;
  }

  private Object acquire(Ask ask) {
    boolean isUpgrade = ask.mode.equals(UPGRADE);
    int already = 0;
    for (String key : ask.keys) {
      Holder holder = holder(key, ask.token);
      String mode = holder == null ? null : locks.get(key).mode;
      if ((isUpgrade ? WRITE : ask.mode).equals(mode)) {
        already++;
      } else if (isUpgrade && holder(key, ask) == null) {
        throw error("NOTHELD the token does not hold the lock");
      } else if (ended.containsKey(key + "\0" + ask.token)) {
        throw error("REFUSED the acquisition of this token was ended");
      } else if (holder != null && !isUpgrade && !ask.has("XX")) {
        throw error("WRONGMODE the token holds the lock for " + mode + ": UPGRADE and DOWNGRADE change the mode");
      }
    }
    boolean isBlocked = ask.keys.stream().anyMatch(key -> !admits(key, ask)
        || holder(key, ask.token) == null && queue.stream().anyMatch(w -> w.keys.contains(key)));
    if (already == ask.keys.size() || !ask.has("XX") && !isBlocked) {
      return grant(ask);
    } else if (ask.has("XX") || !ask.has("WAIT")) {
      return 0L;
    } else if (!channels.containsKey(ask.text("NOTIFY", 0))) {
      throw error("NOSUBSCRIBER nobody subscribes to the channel");
    }
    for (Ask other : queue) {
      if (other.token.equals(ask.token) && other.mode.equals(ask.mode) && other.keys.equals(ask.keys)) {
        queue.set(queue.indexOf(other), ask);
        return null;
      }
    }
    boolean isSecond = isUpgrade && queue.stream().anyMatch(w -> w.mode.equals(UPGRADE) && w.keys.equals(ask.keys));
    if (isSecond || waitsFor(ask, ask.token, new HashSet<>())) {
      throw error("DEADLOCK " + ask.token + " and " + holders(ask.keys.get(0)) + " wait for each other");
    }
    queue.add(isUpgrade ? 0 : queue.size(), ask);
    lookAt(ask.until());
    return null;
  }

  private boolean waitsFor(Ask ask, String token, Set<String> seen) {
    return ask.keys.stream().filter(key -> !admits(key, ask)).flatMap(key -> holders(key).stream())
        .filter(owner -> !owner.equals(ask.token) && seen.add(owner)).toList().stream().anyMatch(owner -> owner.equals(token)
            || queue.stream().anyMatch(other -> other.token.equals(owner) && waitsFor(other, token, seen)));
  }

  /** Gives the hold on all keys, or refreshes it. */
  private long grant(Ask ask) {
    List<Holder> before = ask.keys.stream().map(key -> holder(key, ask.token)).toList();
    boolean isRefresh = before.stream().allMatch(holder -> holder != null && holder.fence == before.get(0).fence)
        && !(ask.mode.equals(UPGRADE) && locks.get(ask.keys.get(0)).mode.equals(READ));
    long given = isRefresh ? before.get(0).fence : nextFence();
    for (String key : ask.keys) {
      Lock lock = locks.computeIfAbsent(key, k -> new Lock());
      lock.mode = ask.mode.equals(READ) ? READ : WRITE;
      Holder holder = lock.holders.computeIfAbsent(ask.token, token -> new Holder());
      holder.since = holder.fence == given ? holder.since : now();
      holder.fence = given;
      holder.meta = ask.has("META") ? ask.text("META", 0) : holder.meta;
      setDeadline(holder, ask.ttl, true);
    }
    return given;
  }

  private long nextFence() {
    fence = Math.max(fence + 1, System.currentTimeMillis() * 1000);
    return fence;
  }

  private void setDeadline(Holder holder, long ttl, boolean isGreater) {
    holder.deadline = Math.max(now() + ttl, isGreater ? holder.deadline : 0);
    lookAt(holder.deadline);
  }

  /** Serves the queue when time alone lets somebody in, or ends a wait. */
  private void lookAt(long moment) {
    CompletableFuture.delayedExecutor(moment + 1 - now(), TimeUnit.MILLISECONDS).execute(() -> {
      synchronized (this) {
        expire();
        serve();
      }
    });
  }

  private void serve() {
    Set<String> blocked = new HashSet<>();
    queue.removeIf(ask -> {
      boolean isFree = ask.keys.stream().allMatch(key -> !blocked.contains(key) && admits(key, ask));
      if (isFree) {
        tell(ask, grant(ask));
      } else {
        blocked.addAll(ask.keys);
      }
      return isFree;
    });
  }

  /** Sends the message that ends a wait. */
  private void tell(Ask ask, long fence) {
    Channel channel = channels.get(ask.text("NOTIFY", 0));
    if (channel != null) {
      CompletableFuture.runAsync(() -> channel.heard.accept(fence + " " + ask.text("NOTIFY", 1)));
    }
  }

  private long withdraw(Ask end) {
    return leave(ask -> ask.token.equals(end.token) && ask.keys.stream().anyMatch(end.keys::contains));
  }

  /** Ends some waits, and tells how many. */
  private long leave(Predicate<Ask> isMeant) {
    List<Ask> all = queue.stream().filter(isMeant).toList();
    queue.removeAll(all);
    all.forEach(ask -> tell(ask, 0));
    return all.size();
  }

  private long end(Ask ask, String mode) {
    if (ask.has("REFUSE")) {
      withdraw(ask);
    }
    return ask.keys.stream().filter(key -> {
      boolean isReleased = holder(key, ask) != null && (mode == null || locks.get(key).mode.equals(mode));
      if (isReleased) {
        locks.get(key).holders.remove(ask.token);
        locks.values().removeIf(lock -> lock.holders.isEmpty());
      }
      if (ask.has("REFUSE")) {
        Ended now = new Ended(now() + ask.number("REFUSE"), isReleased);
        isReleased = ended.merge(key + "\0" + ask.token, now, (was, is) -> new Ended(is.until, was.wasReleased || is.wasReleased))
            .wasReleased;
      }
      return isReleased;
    }).count();
  }

  private long extend(Ask ask) {
    List<Holder> all = ask.keys.stream().map(key -> holder(key, ask)).filter(Objects::nonNull).toList();
    if (all.size() < ask.keys.size()) {
      return 0;
    }
    all.forEach(holder -> setDeadline(holder, ask.ttl, ask.has("GT")));
    return 1;
  }

  private long downgrade(Ask ask) {
    Lock lock = locks.get(ask.keys.get(0));
    Holder holder = lock != null && lock.mode.equals(READ) ? lock.holders.get(ask.token) : holder(ask.keys.get(0), ask);
    if (holder == null) {
      throw error("NOTHELD the token does not hold the lock");
    } else if (lock.mode.equals(WRITE)) {
      lock.mode = READ;
      holder.fence = nextFence();
    }
    setDeadline(holder, ask.ttl, true);
    return holder.fence;
  }

  private long pttl(Ask ask) {
    Holder holder = holder(ask.keys.get(0), ask);
    return holder == null ? -2 : holder.deadline - now();
  }

  /** Ends what has passed its deadline. */
  private void expire() {
    locks.values().removeIf(lock -> {
      lock.holders.values().removeIf(holder -> now() >= holder.deadline);
      return lock.holders.isEmpty();
    });
    ended.values().removeIf(end -> now() > end.until);
    leave(ask -> now() >= ask.until());
  }

  // --- what the server tells

  private Object info(String key) {
    Lock lock = locks.getOrDefault(key, new Lock());
    List<List<Object>> holders = lock.holders.entrySet().stream().map(e -> List.<Object>of("token", e.getKey(), "fence",
        e.getValue().fence, "pttl", e.getValue().deadline - now(), "held-ms", now() - e.getValue().since, "meta",
        e.getValue().meta)).toList();
    List<List<Object>> waiters = queue.stream().filter(w -> w.keys.contains(key)).map(w -> List.<Object>of("token", w.token, "mode",
        w.mode, "waiting-ms", now() - w.since, "timeout-ms", w.until() - w.since, "meta", w.text("META", 0), "channel",
        w.text("NOTIFY", 0))).toList();
    if (holders.isEmpty() && waiters.isEmpty()) {
      return null;
    }
    return List.of("mode", lock.mode == null ? "free" : lock.mode,
        "readers", READ.equals(lock.mode) ? (long) holders.size() : 0L, "waiters", (long) waiters.size(),
        "fence", lock.holders.values().stream().mapToLong(h -> h.fence).max().orElse(0),
        "pttl", lock.holders.values().stream().mapToLong(h -> h.deadline - now()).max().orElse(0),
        "holders", holders, "queue", waiters);
  }

  private Object queues() {
    Map<String, Long> longest = new TreeMap<>();
    queue.forEach(ask -> ask.keys.forEach(key -> longest.putIfAbsent(key, now() - ask.since)));
    return List.of("0", longest.entrySet().stream()
        .<Object>map(e -> List.of("key", e.getKey(), "longest-wait-ms", e.getValue())).toList());
  }
}
