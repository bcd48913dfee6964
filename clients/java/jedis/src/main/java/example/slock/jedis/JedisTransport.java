package example.slock.jedis;

import example.slock.Transport;
import java.lang.reflect.Proxy;
import java.net.SocketTimeoutException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Executor;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.locks.LockSupport;
import java.util.function.Consumer;
import java.util.stream.Stream;
import org.apache.commons.pool2.impl.GenericObjectPoolConfig;
import redis.clients.jedis.CommandArguments;
import redis.clients.jedis.CommandObject;
import redis.clients.jedis.Connection;
import redis.clients.jedis.ConnectionPool;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.JedisClientConfig;
import redis.clients.jedis.JedisShardedPubSub;
import redis.clients.jedis.UnifiedJedis;
import redis.clients.jedis.exceptions.JedisAskDataException;
import redis.clients.jedis.exceptions.JedisConnectionException;
import redis.clients.jedis.exceptions.JedisDataException;
import redis.clients.jedis.exceptions.JedisMovedDataException;
import redis.clients.jedis.util.JedisClusterCRC16;
import redis.clients.jedis.util.Pool;

/**
 * The transport over Jedis. The program's calls go over the pool of its client; renewals, channels, and what the pool has no
 * connection for go over a second pool, whose connections are made as the program's are.
 */
final class JedisTransport implements Transport {
  /** Connections of the second pool, and threads for what no thread of the program waits for. */
  private static final int MOST = 4;
  private static final int THREADS = 16;
  private static final int MOST_MS = 800;
  private static final long PAUSE_NANOS = 100_000_000;
  private static final long PRIMARY_MS = 500;

  /** One server, with the program's pool (with Sentinel null) and the second one. */
  private record Node(String address, Pool<Connection> program, ConnectionPool second) {}

  private final UnifiedJedis client;
  private final HostAndPort address;
  private final JedisClientConfig config;
  private final boolean isSentinel;
  private final boolean isCluster;
  /** Of a client of one server; else null. */
  private final Pool<Connection> pool;
  /** The last connection that was made, which tells the address. */
  private volatile String name = "";
  /** The program's pool could not make a connection lately: until when it is left alone. */
  private volatile long spared = System.nanoTime();
  /** By address; without a cluster by the name of the server. */
  private final Map<String, Node> nodes = new ConcurrentHashMap<>();
  /** The addresses that the servers of a cluster named. */
  private final Map<Integer, String> slots = new ConcurrentHashMap<>();
  private final Map<String, Subscription> subscriptions = new ConcurrentHashMap<>();
  private final AtomicBoolean isFollowing = new AtomicBoolean();
  private final ThreadPoolExecutor threads = new ThreadPoolExecutor(THREADS, THREADS, 1, TimeUnit.SECONDS,
      new LinkedBlockingQueue<>(), task -> thread("slock-jedis", task));

  /** The address and the configuration are null if they are not known. */
  JedisTransport(UnifiedJedis client, HostAndPort address, JedisClientConfig config) {
    this.client = client;
    this.address = address;
    this.config = config == null ? null : patient(config);
    isSentinel = ask("getCurrentMaster") != null;
    isCluster = ask("getClusterNodes") != null;
    pool = ask("getPool");
    threads.allowCoreThreadTimeOut(true);
  }

  /** The same with time limits of ours. */
  private static JedisClientConfig patient(JedisClientConfig config) {
    return (JedisClientConfig) Proxy.newProxyInstance(JedisClientConfig.class.getClassLoader(),
        new Class<?>[] {JedisClientConfig.class}, (proxy, method, arguments) -> method.getName().endsWith("TimeoutMillis")
            && !method.getName().startsWith("getBlocking") ? (Object) MOST_MS : method.invoke(config, arguments));
  }

  private static Thread thread(String name, Runnable task) {
    Thread thread = new Thread(task, name);
    thread.setDaemon(true);
    return thread;
  }

  /** What a method of the client gives that only some clients have, or null. */
  @SuppressWarnings("unchecked")
  private <T> T ask(String method) {
    try {
      return (T) client.getClass().getMethod(method).invoke(client);
    } catch (ReflectiveOperationException e) {
      return null;
    }
  }

  private Map<String, ConnectionPool> clusterNodes() {
    return isCluster ? ask("getClusterNodes") : null;
  }

  @Override
  public Topology topology() {
    boolean isUsable = isSentinel ? config != null : pool != null || isCluster;
    if (!isUsable) {
      throw new IllegalArgumentException("the client must be a JedisPooled, RedisClient, JedisCluster or RedisClusterClient, or"
          + " with JedisLocks.sentinel a JedisSentineled or RedisSentinelClient, not " + client.getClass().getName());
    }
    String known = address != null ? address.toString() : name.replaceAll(".*\\{([^{}]*)}.*", "$1");
    return new Topology(known.isEmpty() ? client.getClass().getSimpleName() : known, isCluster, isSentinel, true);
  }

  // --- commands

  /** The server that has a slot. */
  private Node node(int slot) {
    Map<String, ConnectionPool> all = clusterNodes();
    if (all != null) {
      String address = slots.get(slot);
      if (address == null || !all.containsKey(address)) {
        address = all.keySet().iterator().next();
      }
      return node(address, all.get(address));
    } else if (isSentinel) {
      HostAndPort primary = ask("getCurrentMaster");
      return nodes.computeIfAbsent(primary.toString(),
          same -> new Node(same, null, new ConnectionPool(primary, config, size())));
    }
    return node("", pool);
  }

  private Node node(String at, Pool<Connection> pool) {
    return nodes.compute(at, (same, node) -> node != null && node.program == pool ? node
        : new Node(at, pool, config == null ? new ConnectionPool(pool.getFactory(), size())
            : new ConnectionPool(at.isEmpty() ? address : HostAndPort.from(at), config, size())));
  }

  private static GenericObjectPoolConfig<Connection> size() {
    GenericObjectPoolConfig<Connection> size = new GenericObjectPoolConfig<>();
    size.setMaxTotal(MOST);
    size.setMaxIdle(MOST);
    size.setMaxWait(Duration.ofMillis(MOST_MS));
    return size;
  }

  @Override
  public CompletionStage<Reply> call(Call call, Executor blocking) {
    int slot = JedisClusterCRC16.getSlot(call.key());
    Node node = node(slot);
    if (node.program != null && node.program.isClosed()) {
      throw new Unusable("the program has closed its client", null);
    }
    boolean isProgram = !call.isReserved() && node.program != null && System.nanoTime() - spared >= 0
        && (node.program.getNumIdle() > 0 || node.program.getNumActive() < node.program.getMaxTotal());
    Pool<Connection> over = isProgram ? node.program : node.second;
    // A connection that has to be made may take longer than the caller can wait.
    Executor on = blocking != null && over.getNumIdle() > 0 ? blocking : threads;
    return CompletableFuture.supplyAsync(() -> call.key().isEmpty() ? everywhere(call) : send(over, call, slot, true), on);
  }

  private Reply everywhere(Call call) {
    List<Object> replies = new ArrayList<>();
    Map<String, ConnectionPool> all = clusterNodes();
    for (Node node : all == null ? List.of(node(0)) : all.entrySet().stream().map(e -> node(e.getKey(), e.getValue())).toList()) {
      replies.add(send(node.second, call, 0, true).value());
    }
    return new Reply(replies, null, true);
  }

  /** A connection that has ended while it was idle says nothing of the server: then the command is sent once more. */
  private Reply send(Pool<Connection> over, Call call, int slot, boolean isFirst) {
    try {
      Connection connection = over.getResource();
      name = name.isEmpty() ? connection.toString() : name;
      int before = connection.getSoTimeout();
      try {
        connection.setSoTimeout((int) (call.limit() / 1_000_000) + 1);
        Object value = execute(connection, call.words());
        if (value instanceof ErrorReply error && error.getCause() instanceof JedisMovedDataException moved) {
          slots.put(slot, moved.getTargetNode().toString());
          if (!clusterNodes().containsKey(slots.get(slot))) {
            client.exists(call.key()); // the program's client learns of the node
          }
        } else if (value instanceof ErrorReply error && error.getCause() instanceof JedisAskDataException asked) {
          Connection target = clusterNodes().get(asked.getTargetNode().toString()).getResource();
          try {
            execute(target, List.of("ASKING"));
            value = execute(target, call.words());
          } finally {
            giveBack(target);
          }
        }
        return new Reply(value, call.then().isEmpty() || value instanceof ErrorReply ? null : execute(connection, call.then()), isFirst);
      } finally {
        if (!connection.isBroken()) {
          connection.setSoTimeout(before);
        }
        giveBack(connection);
      }
    } catch (JedisConnectionException e) {
      over.clear(); // the other idle connections may be as old
      if (isFirst && !(e.getCause() instanceof SocketTimeoutException)) {
        return send(over, call, slot, false);
      }
      if (over != node(slot).second) {
        spared = System.nanoTime() + 10 * PAUSE_NANOS;
      }
      throw e;
    }
  }

  /** In place of a broken connection the pool may open another one at once, with the program's time limits. */
  private static void giveBack(Connection connection) {
    if (connection.isBroken()) {
      thread("slock-jedis", connection::close).start();
    } else {
      connection.close();
    }
  }

  private static Object execute(Connection connection, List<Object> words) {
    byte[] name = words.get(0).toString().getBytes(StandardCharsets.US_ASCII);
    CommandArguments arguments = new CommandArguments(() -> name);
    words.stream().skip(1).forEach(arguments::add);
    try {
      return text(connection.executeCommand(arguments));
    } catch (JedisDataException e) {
      return new ErrorReply(e.getMessage(), e);
    }
  }

  private static Object text(Object value) {
    if (value instanceof byte[] bytes) {
      return new String(bytes, StandardCharsets.UTF_8);
    } else if (value instanceof List<?> list) {
      return list.stream().map(JedisTransport::text)
          .flatMap(one -> ((List<?>) list).get(0) instanceof Map.Entry ? ((List<?>) one).stream() : Stream.of(one)).toList();
    }
    if (value instanceof Map.Entry<?, ?> entry) { // of a map by RESP3
      return List.of(text(entry.getKey()), text(entry.getValue()));
    }
    return value instanceof JedisDataException e ? new ErrorReply(e.getMessage(), e) : value;
  }

  // --- channels

  @Override
  public Runnable listen(String name, Consumer<String> heard, Runnable changed) {
    Channel channel = new Channel(name, heard, changed);
    subscribe(channel);
    if (isSentinel && !isFollowing.getAndSet(true)) {
      follow();
    }
    return () -> subscriptions.values().forEach(subscription -> subscription.leave(name));
  }

  private void subscribe(Channel channel) {
    String server = node(channel.slot()).address;
    while (!subscriptions.computeIfAbsent(server, Subscription::new).add(channel)) {
      Thread.onSpinWait(); // it has just ended
    }
  }

  private record Channel(String name, Consumer<String> heard, Runnable changed) {
    int slot() {
      return JedisClusterCRC16.getSlot(name);
    }
  }

  /** The channels of one server, over a connection and with a thread of its own. It ends with the last channel. */
  private final class Subscription extends JedisShardedPubSub implements Runnable {
    private final String server;
    private final Map<String, Channel> channels = new ConcurrentHashMap<>();
    private volatile Connection connection;
    private boolean hasBegun;
    private boolean isOver;

    Subscription(String server) {
      this.server = server;
    }

    synchronized boolean add(Channel channel) {
      if (isOver) {
        return false;
      }
      channels.put(channel.name, channel);
      if (!hasBegun) {
        hasBegun = true;
        thread("slock-listener", this).start();
      } else if (isSubscribed()) {
        ssubscribe(channel.name);
      }
      return true;
    }

    private synchronized boolean isOver() {
      isOver = channels.isEmpty();
      if (isOver) {
        subscriptions.remove(server, this);
      }
      return isOver;
    }

    /** Ends a channel. The others go on over another connection, because this one may be silent. */
    void leave(String name) {
      if (channels.remove(name) != null) {
        threads.execute(this::disconnect);
      }
    }

    private void disconnect() {
      Connection old = connection;
      if (old != null) {
        old.disconnect();
      }
    }

    @Override
    public void run() {
      while (!isOver()) {
        Channel first = channels.values().stream().findFirst().orElse(null);
        try {
          if (first != null && node(first.slot()).address.equals(server)) {
            connection = node(first.slot()).second.getFactory().makeObject().getObject();
            proceed(connection, first.name);
          } else { // another server has it now
            List<Channel> all = List.copyOf(channels.values());
            channels.clear();
            all.forEach(JedisTransport.this::subscribe);
          }
        } catch (JedisMovedDataException moved) {
          slots.put(moved.getSlot(), moved.getTargetNode().toString());
        } catch (Exception e) {
          LockSupport.parkNanos(PAUSE_NANOS);
        } finally {
          disconnect();
        }
      }
    }

    @Override
    public void onSSubscribe(String name, int count) {
      if (count == 1) { // each by a command of its own, because their slots differ
        channels.keySet().stream().filter(other -> !other.equals(name)).forEach(this::ssubscribe);
      }
      Channel channel = channels.get(name);
      if (channel != null) {
        channel.changed.run();
      }
    }

    @Override
    public void onSUnsubscribe(String name, int count) {
      disconnect(); // the slot has moved
    }

    @Override
    public void onSMessage(String name, String message) {
      Channel channel = channels.get(name);
      if (channel != null) {
        channel.heard.accept(message);
      }
    }
  }

  /** Leaves the connections to the former primary when the program's client has heard of another one. */
  private void follow() {
    HostAndPort primary = ask("getCurrentMaster");
    nodes.forEach((address, node) -> {
      if (!address.equals(String.valueOf(primary)) && nodes.remove(address, node)) {
        node.second.close();
      }
    });
    subscriptions.forEach((address, subscription) -> {
      if (!address.equals(String.valueOf(primary))) {
        subscription.disconnect();
      }
    });
    if (!subscriptions.isEmpty()) {
      CompletableFuture.delayedExecutor(PRIMARY_MS, TimeUnit.MILLISECONDS, threads).execute(this::follow);
    } else {
      isFollowing.set(false);
    }
  }

  @Override
  public void close() {
    subscriptions.values().forEach(subscription -> subscription.channels.keySet().forEach(subscription::leave));
    nodes.values().forEach(node -> node.second.close());
    nodes.clear();
  }
}
