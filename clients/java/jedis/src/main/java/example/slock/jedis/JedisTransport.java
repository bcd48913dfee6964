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
import redis.clients.jedis.Connection;
import redis.clients.jedis.ConnectionPool;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.JedisClientConfig;
import redis.clients.jedis.JedisShardedPubSub;
import redis.clients.jedis.UnifiedJedis;
import redis.clients.jedis.exceptions.JedisConnectionException;
import redis.clients.jedis.exceptions.JedisDataException;
import redis.clients.jedis.exceptions.JedisMovedDataException;
import redis.clients.jedis.exceptions.JedisRedirectionException;
import redis.clients.jedis.util.JedisClusterCRC16;
import redis.clients.jedis.util.Pool;

/**
 * The transport over Jedis. All goes over a second pool, whose connections are made as the program's are: those of the program
 * may be in use for long, and to wait for one, to test it, or to make it, may take longer than a call can wait.
 */
final class JedisTransport implements Transport {
  /** Connections of a pool. */
  private static final int MOST = 8;
  /** For what blocks. */
  private static final int THREADS = 16;
  private static final int MOST_MS = 800;
  private static final long PAUSE_NANOS = 100_000_000;
  private static final long PRIMARY_MS = 500;

  /** One server, with the program's pool (with Sentinel null) and ours. */
  private record Node(String address, Pool<Connection> program, ConnectionPool pool) {}

  private final UnifiedJedis client;
  private final HostAndPort address;
  private final JedisClientConfig config;
  private final boolean isSentinel;
  private final boolean isCluster;
  /** Of a client of one server; else null. */
  private final Pool<Connection> pool;
  /** The last connection that was made, which tells the address. */
  private volatile String name = "";
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
    return new Topology(known.isEmpty() ? client.getClass().getSimpleName() : known, isCluster, isSentinel);
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
    Node node = node(JedisClusterCRC16.getSlot(call.key()));
    if (node.program != null && node.program.isClosed()) {
      throw new Unusable("the program has closed its client", null);
    }
    Attempt attempt = new Attempt(call, node);
    Connection idle = blocking == null || call.key().isEmpty() ? null : idle(node.pool);
    if (idle == null) {
      threads.execute(attempt);
    } else {
      blocking.execute(() -> attempt.run(idle));
    }
    return attempt.result;
  }

  /** A connection that is there already, or null. */
  private static Connection idle(ConnectionPool pool) {
    synchronized (pool) {
      try {
        return pool.getNumIdle() > 0 ? pool.borrowObject(Duration.ZERO) : null;
      } catch (Exception e) { // another thread has taken it
        return null;
      }
    }
  }

  /** A command for a node. A connection that ended while it was idle says nothing of the server: there is a second attempt. */
  private final class Attempt implements Runnable {
    final CompletableFuture<Reply> result = new CompletableFuture<>();
    private final Call call;
    private Node node;
    private boolean isFirst = true;
    private boolean isAsking;

    Attempt(Call call, Node node) {
      this.call = call;
      this.node = node;
    }

    /** On a thread of ours. */
    @Override
    public void run() {
      try {
        if (result.isDone()) {
          return;
        } else if (call.key().isEmpty()) {
          result.complete(new Reply(everywhere(), null, true));
          return;
        }
        Connection idle = idle(node.pool);
        run(idle == null ? node.pool.getResource() : idle);
      } catch (Exception | Error e) {
        result.completeExceptionally(e);
      }
    }

    private List<Object> everywhere() {
      Map<String, ConnectionPool> all = clusterNodes();
      List<Node> to = all == null ? List.of(node) : all.entrySet().stream().map(e -> node(e.getKey(), e.getValue())).toList();
      List<Object> replies = new ArrayList<>();
      for (Node one : to) {
        Connection connection = one.pool.getResource();
        try {
          replies.add(execute(connection, call.words()));
        } finally {
          giveBack(one.pool, connection);
        }
      }
      return replies;
    }

    void run(Connection connection) {
      ConnectionPool pool = node.pool;
      name = name.isEmpty() ? connection.toString() : name;
      try {
        connection.setSoTimeout((int) (call.limit() / 1_000_000) + 1);
        if (isAsking) {
          execute(connection, List.of("ASKING"));
        }
        Object value = execute(connection, call.words());
        Object then = call.then().isEmpty() || value instanceof ErrorReply ? null : execute(connection, call.then());
        boolean isElsewhere = isCluster && value instanceof ErrorReply error
            && error.getCause() instanceof JedisRedirectionException other && goes(other);
        if (!isElsewhere) {
          result.complete(new Reply(value, then, isFirst));
        }
      } catch (JedisConnectionException e) {
        pool.clear(); // the other idle connections may be as old
        if (isFirst && !(e.getCause() instanceof SocketTimeoutException)) {
          isFirst = false;
          threads.execute(this);
        } else {
          result.completeExceptionally(e);
        }
      } catch (Exception | Error e) {
        result.completeExceptionally(e);
      } finally {
        giveBack(pool, connection);
      }
    }

    /** Notes what a redirection says, and tells whether the command goes to the other node now. */
    private boolean goes(JedisRedirectionException other) {
      String target = other.getTargetNode().toString();
      ConnectionPool known = clusterNodes().get(target);
      if (known == null) {
        threads.execute(() -> client.exists(call.key())); // the program's client learns of the node
      }
      if (other instanceof JedisMovedDataException) {
        slots.put(other.getSlot(), target);
      } else if (known != null && !isAsking) {
        isAsking = true;
        node = node(target, known);
        threads.execute(this);
        return true;
      }
      return false;
    }
  }

  /** In place of a broken connection the pool may open another one at once, if somebody waits for it. */
  private static void giveBack(ConnectionPool pool, Connection connection) {
    if (connection.isBroken()) {
      thread("slock-jedis", () -> pool.returnBrokenResource(connection)).start();
    } else {
      pool.returnResource(connection);
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
            connection = node(first.slot()).pool.getFactory().makeObject().getObject();
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
        node.pool.close();
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
    nodes.values().forEach(node -> node.pool.close());
    nodes.clear();
  }
}
