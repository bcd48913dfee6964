package example.slock.testing;

import example.slock.Locks;
import example.slock.Options;
import example.slock.Transport;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;

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

  private static final class Holder {
    String token;
    String meta = "";
    long fence;
    long since;
    long deadline;
  }

  private static final class Lock {
    String mode;
    final List<Holder> holders = new ArrayList<>();
  }

  /** What a command asks for. A wait has a moment when it began. */
  private static final class Ask {
    List<String> keys;
    String token;
    String mode = WRITE;
    String meta;
    long ttl;
    long limit;
    long fence;
    long wait;
    long refuse;
    boolean isExact;
    boolean isGreater;
    String channel;
    String tag;
    long since;
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
    Ask ask = new Ask();
    ask.keys = List.of(key);
    ask.token = "somebody else";
    ask.ttl = YEAR_MS;
    grant(ask);
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
    return locks.containsKey(key) ? locks.get(key).holders.stream().map(holder -> holder.token).toList() : List.of();
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
    Object reply;
    try {
      String name = words.get(0).toUpperCase(Locale.ROOT);
      reply = execute(name.startsWith("SLOCK.") ? name.substring(6) : name, words.subList(1, words.size()));
    } catch (ErrorReply e) {
      reply = e;
    }
    serve();
    return reply;
  }

  private static ErrorReply error(String text) {
    return new ErrorReply(text, null);
  }

  private Object execute(String name, List<String> words) {
    switch (name) {
      case "WAIT": // for replicas: there are none
        return 0L;
      case "DEL":
        return words.stream().filter(key -> locks.remove(key) != null).count();
      case "QUEUES":
        return queues();
      default:
    }
    Ask ask = parse(name, words);
    String key = ask.keys.get(0);
    return switch (name) {
      case "LOCK", "RLOCK", "MLOCK", "MRLOCK", "UPGRADE" -> acquire(ask);
      case "UNLOCK", "RUNLOCK", "MUNLOCK" -> end(ask, name.equals("UNLOCK") ? WRITE : name.equals("RUNLOCK") ? READ : null);
      case "EXTEND", "MEXTEND" -> extend(ask);
      case "DOWNGRADE" -> downgrade(ask);
      case "CANCEL" -> withdraw(ask);
      case "PTTL" -> holder(key, ask) == null ? -2L : holder(key, ask).deadline - now();
      case "INFO" -> info(key);
      default -> throw error("ERR unknown command '" + name + "'");
    };
  }

  private static Ask parse(String name, List<String> all) {
    Ask ask = new Ask();
    Iterator<String> words = all.iterator();
    int count = name.startsWith("M") ? Integer.parseInt(words.next()) : 1;
    ask.keys = new ArrayList<>();
    for (int n = 0; n < count; n++) {
      ask.keys.add(words.next());
    }
    if (name.equals("INFO")) {
      return ask;
    }
    ask.token = words.next();
    ask.mode = name.equals("UPGRADE") ? UPGRADE : name.contains("RLOCK") ? READ : WRITE;
    if (!Set.of("UNLOCK", "RUNLOCK", "MUNLOCK", "CANCEL", "PTTL").contains(name)) {
      ask.ttl = Long.parseLong(words.next());
      if (ask.ttl < 1 || ask.ttl > DAY_MS) {
        throw error("ERR the ttl must be 1 to " + DAY_MS + " ms");
      }
    }
    while (words.hasNext()) {
      switch (words.next().toUpperCase(Locale.ROOT)) {
        case "META" -> ask.meta = words.next();
        case "LIMIT" -> ask.limit = Long.parseLong(words.next());
        case "WAIT" -> ask.wait = Math.min(Long.parseLong(words.next()) - 1 & Long.MAX_VALUE, YEAR_MS) + 1; // 0: no end
        case "NOTIFY" -> {
          ask.channel = words.next();
          ask.tag = words.next();
        }
        case "XX" -> ask.isExact = true;
        case "GT" -> ask.isGreater = true;
        case "FENCE" -> ask.fence = Long.parseLong(words.next());
        case "REFUSE" -> ask.refuse = Long.parseLong(words.next());
        default -> throw error("ERR unknown option");
      }
    }
    return ask;
  }

  // --- the rules of the lock: who may hold it, who is next

  private static long now() {
    return System.nanoTime() / 1_000_000;
  }

  private Holder holder(String key, Ask ask) {
    Lock lock = locks.get(key);
    return lock == null ? null : lock.holders.stream()
        .filter(h -> h.token.equals(ask.token) && (ask.fence == 0 || ask.fence == h.fence)).findFirst().orElse(null);
  }

  private Holder any(String key, String token) {
    Ask ask = new Ask();
    ask.token = token;
    return holder(key, ask);
  }

  /** Whether the holders of the lock let the request in. */
  private boolean admits(String key, Ask ask) {
    Lock lock = locks.get(key);
    if (lock == null) {
      return !ask.mode.equals(UPGRADE);
    } else if (any(key, ask.token) != null) {
      return !ask.mode.equals(UPGRADE) || lock.holders.size() == 1;
    }
    return ask.mode.equals(READ) && lock.mode.equals(READ) && (ask.limit == 0 || lock.holders.size() < ask.limit);
  }

  private Object acquire(Ask ask) {
    String held = ask.mode.equals(UPGRADE) ? WRITE : ask.mode;
    int already = 0;
    for (String key : ask.keys) {
      Holder holder = any(key, ask.token);
      String mode = holder == null ? null : locks.get(key).mode;
      Ended end = ended.get(key + "\0" + ask.token);
      if (held.equals(mode)) {
        already++;
      } else if (ask.mode.equals(UPGRADE) && (holder == null || ask.fence != 0 && holder.fence != ask.fence)) {
        throw error("NOTHELD the token does not hold the lock");
      } else if (end != null) {
        throw error("REFUSED the acquisition of this token was ended");
      } else if (holder != null && !ask.mode.equals(UPGRADE) && !ask.isExact) {
        throw error("WRONGMODE the token holds the lock for " + mode + ": UPGRADE and DOWNGRADE change the mode");
      }
    }
    boolean isBlocked = ask.keys.stream().anyMatch(key -> !admits(key, ask)
        || any(key, ask.token) == null && queue.stream().anyMatch(w -> w.keys.contains(key)));
    if (already == ask.keys.size() || !ask.isExact && !isBlocked) {
      return grant(ask);
    } else if (ask.isExact || ask.wait == 0) {
      return 0L;
    } else if (!channels.containsKey(ask.channel)) {
      throw error("NOSUBSCRIBER nobody subscribes to the channel");
    }
    ask.since = now();
    for (int n = 0; n < queue.size(); n++) {
      Ask other = queue.get(n);
      if (other.token.equals(ask.token) && other.mode.equals(ask.mode) && other.keys.equals(ask.keys)) {
        queue.set(n, ask);
        return null;
      }
    }
    boolean isUpgrade = ask.mode.equals(UPGRADE);
    boolean isSecond = isUpgrade && queue.stream().anyMatch(w -> w.mode.equals(UPGRADE) && w.keys.equals(ask.keys));
    if (isSecond || waitsFor(ask, ask.token, new HashSet<>())) {
      throw error("DEADLOCK " + ask.token + " and " + locks.get(ask.keys.get(0)).holders.stream().map(h -> h.token).toList()
          + " wait for each other");
    }
    queue.add(isUpgrade ? 0 : queue.size(), ask);
    CompletableFuture.delayedExecutor(ask.wait, TimeUnit.MILLISECONDS).execute(this::look);
    return null;
  }

  private boolean waitsFor(Ask ask, String token, Set<String> seen) {
    return ask.keys.stream().filter(key -> locks.containsKey(key) && !admits(key, ask))
        .flatMap(key -> locks.get(key).holders.stream()).map(holder -> holder.token)
        .filter(owner -> !owner.equals(ask.token) && seen.add(owner)).toList().stream().anyMatch(owner -> owner.equals(token)
            || queue.stream().anyMatch(other -> other.token.equals(owner) && waitsFor(other, token, seen)));
  }

  /** Gives the hold on all keys, or refreshes it. */
  private long grant(Ask ask) {
    boolean isNew = ask.mode.equals(UPGRADE) && !locks.get(ask.keys.get(0)).mode.equals(WRITE);
    long one = 0;
    for (String key : ask.keys) {
      Holder holder = any(key, ask.token);
      isNew |= holder == null || one != 0 && one != holder.fence;
      one = holder == null ? 0 : holder.fence;
    }
    fence = isNew ? Math.max(fence + 1, System.currentTimeMillis() * 1000) : fence;
    long given = isNew ? fence : one;
    for (String key : ask.keys) {
      Lock lock = locks.computeIfAbsent(key, k -> new Lock());
      lock.mode = ask.mode.equals(READ) ? READ : WRITE;
      Holder holder = any(key, ask.token);
      if (holder == null) {
        holder = new Holder();
        holder.token = ask.token;
        lock.holders.add(holder);
      }
      holder.since = holder.fence == given ? holder.since : now();
      holder.fence = given;
      holder.meta = ask.meta == null ? holder.meta : ask.meta;
      setDeadline(holder, ask.ttl, true);
    }
    return given;
  }

  private void setDeadline(Holder holder, long ttl, boolean isGreater) {
    holder.deadline = isGreater ? Math.max(holder.deadline, now() + ttl) : now() + ttl;
    CompletableFuture.delayedExecutor(ttl + 1, TimeUnit.MILLISECONDS).execute(this::look);
  }

  /** Serves the queue when time alone lets somebody in, or ends a wait. */
  private synchronized void look() {
    expire();
    serve();
  }

  private void serve() {
    Set<String> blocked = new HashSet<>();
    queue.removeIf(ask -> {
      boolean isFree = ask.keys.stream().allMatch(key -> !blocked.contains(key) && admits(key, ask));
      if (isFree) {
        tell(ask, Long.toString(grant(ask)));
      } else {
        blocked.addAll(ask.keys);
      }
      return isFree;
    });
  }

  /** Sends the message that ends a wait. */
  private void tell(Ask ask, String what) {
    Channel channel = channels.get(ask.channel);
    if (channel != null) {
      CompletableFuture.runAsync(() -> channel.heard.accept(what + " " + ask.tag));
    }
  }

  private long withdraw(Ask end) {
    List<Ask> all = queue.stream()
        .filter(ask -> ask.token.equals(end.token) && ask.keys.stream().anyMatch(end.keys::contains)).toList();
    queue.removeAll(all);
    all.forEach(ask -> tell(ask, "0"));
    return all.size();
  }

  private long end(Ask ask, String mode) {
    long count = 0;
    if (ask.refuse > 0) {
      withdraw(ask);
    }
    for (String key : ask.keys) {
      Holder holder = holder(key, ask);
      boolean isReleased = holder != null && (mode == null || locks.get(key).mode.equals(mode));
      if (isReleased) {
        locks.get(key).holders.remove(holder);
      }
      if (ask.refuse > 0) {
        Ended before = ended.get(key + "\0" + ask.token);
        isReleased |= before != null && before.wasReleased;
        ended.put(key + "\0" + ask.token, new Ended(now() + ask.refuse, isReleased));
      }
      count += isReleased ? 1 : 0;
    }
    locks.values().removeIf(lock -> lock.holders.isEmpty());
    return count;
  }

  private long extend(Ask ask) {
    if (ask.keys.stream().anyMatch(key -> holder(key, ask) == null)) {
      return 0;
    }
    ask.keys.forEach(key -> setDeadline(holder(key, ask), ask.ttl, ask.isGreater));
    return 1;
  }

  private long downgrade(Ask ask) {
    String key = ask.keys.get(0);
    boolean isReader = locks.containsKey(key) && locks.get(key).mode.equals(READ);
    Holder holder = isReader ? any(key, ask.token) : holder(key, ask);
    if (holder == null) {
      throw error("NOTHELD the token does not hold the lock");
    }
    if (!isReader) {
      locks.get(key).mode = READ;
      fence = Math.max(fence + 1, System.currentTimeMillis() * 1000);
      holder.fence = fence;
    }
    setDeadline(holder, ask.ttl, true);
    return holder.fence;
  }

  /** Ends what has passed its deadline. */
  private void expire() {
    locks.values().removeIf(lock -> {
      lock.holders.removeIf(holder -> now() >= holder.deadline);
      return lock.holders.isEmpty();
    });
    ended.values().removeIf(end -> now() > end.until);
    List<Ask> over = queue.stream().filter(ask -> now() - ask.since >= ask.wait).toList();
    queue.removeAll(over);
    over.forEach(ask -> tell(ask, "0"));
  }

  // --- what the server tells

  private Object info(String key) {
    Lock lock = locks.getOrDefault(key, new Lock());
    List<Object> holders = lock.holders.stream().<Object>map(h -> Arrays.<Object>asList("token", h.token, "fence", h.fence, "pttl",
        h.deadline - now(), "held-ms", now() - h.since, "meta", h.meta)).toList();
    List<Object> waiters = queue.stream().filter(w -> w.keys.contains(key)).<Object>map(w -> Arrays.<Object>asList("token", w.token,
        "mode", w.mode, "waiting-ms", now() - w.since, "timeout-ms", w.wait, "meta", w.meta, "channel", w.channel)).toList();
    if (holders.isEmpty() && waiters.isEmpty()) {
      return null;
    }
    return List.of("mode", lock.mode == null ? "free" : lock.mode,
        "readers", READ.equals(lock.mode) ? (long) holders.size() : 0L, "waiters", (long) waiters.size(),
        "fence", lock.holders.stream().mapToLong(h -> h.fence).max().orElse(0),
        "pttl", lock.holders.stream().mapToLong(h -> h.deadline - now()).max().orElse(0), "holders", holders, "queue", waiters);
  }

  private Object queues() {
    Map<String, Long> longest = new TreeMap<>();
    queue.forEach(ask -> ask.keys.forEach(key -> longest.putIfAbsent(key, now() - ask.since)));
    List<Object> all = longest.entrySet().stream()
        .<Object>map(e -> List.of("key", e.getKey(), "longest-wait-ms", e.getValue())).toList();
    return List.of("0", all);
  }
}
