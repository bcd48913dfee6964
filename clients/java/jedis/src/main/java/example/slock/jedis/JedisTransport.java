package example.slock.jedis;

import example.slock.Transport;
import java.lang.reflect.Proxy;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.LinkedTransferQueue;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.LockSupport;
import java.util.function.Consumer;
import java.util.stream.Stream;
import org.apache.commons.pool2.PooledObjectFactory;
import redis.clients.jedis.CommandArguments;
import redis.clients.jedis.Connection;
import redis.clients.jedis.ConnectionFactory;
import redis.clients.jedis.ConnectionPool;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.JedisClientConfig;
import redis.clients.jedis.JedisShardedPubSub;
import redis.clients.jedis.UnifiedJedis;
import redis.clients.jedis.exceptions.JedisDataException;
import redis.clients.jedis.exceptions.JedisException;
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
  /** For what blocks, of each server: one that is silent keeps those of the others free. */
  private static final int THREADS = 16;
  /** How soon a reply is missing so long that its connection is given up. */
  private static final int MOST_MS = 800;
  private static final long PAUSE_NANOS = 100_000_000;
  private static final long PRIMARY_MS = 500;

  /** One server, and our connections to it. */
  private static final class Node {
    final String address;
    /** With Sentinel null. */
    final Pool<Connection> program;
    final PooledObjectFactory<Connection> factory;
    final ThreadPoolExecutor threads = new ThreadPoolExecutor(THREADS, THREADS, 1, TimeUnit.SECONDS, new LinkedBlockingQueue<>(),
        task -> thread("slock-jedis", task));
    /** Connections that nobody uses. */
    private final LinkedTransferQueue<Connection> idle = new LinkedTransferQueue<>();
    /** How many connections there are, with those that are being made. */
    private final AtomicInteger made = new AtomicInteger();
    private final AtomicBoolean isSparing = new AtomicBoolean();
    private volatile boolean isClosed;

    Node(String address, Pool<Connection> program, PooledObjectFactory<Connection> factory) {
      this.address = address;
      this.program = program;
      this.factory = factory;
      threads.allowCoreThreadTimeOut(true);
    }

    /** A connection that is there already, or that somebody gives back in time; else null. */
    Connection take(long limitNanos) {
      try {
        Connection ready = idle.poll();
        return ready == null && made.get() >= MOST ? idle.poll(limitNanos, TimeUnit.NANOSECONDS) : ready;
      } catch (InterruptedException e) {
        Thread.currentThread().interrupt();
        return null;
      }
    }

    /** Makes a connection, unless there are enough. That may take longer than a call can wait. */
    Connection make() throws Exception {
      if (made.incrementAndGet() <= MOST) {
        try {
          return factory.makeObject().getObject();
        } catch (Exception | Error e) {
          made.decrementAndGet();
          throw e;
        }
      }
      made.decrementAndGet();
      return null;
    }

    /** Has another connection made, so that the next command, such as a renewal, need not wait for it. */
    void spare() {
      if (idle.isEmpty() && made.get() < MOST && !isSparing.getAndSet(true)) {
        threads.execute(() -> {
          try {
            Connection spare = make();
            if (spare != null) {
              giveBack(spare);
            }
          } catch (Exception e) { // the call that needs one makes it, and learns why that fails
          } finally {
            isSparing.set(false);
          }
        });
      }
    }

    void giveBack(Connection connection) {
      boolean isBroken = connection.isBroken();
      if (isBroken) {
        drop(connection);
      } else {
        idle.add(connection);
      }
      if (isBroken || isClosed) {
        clear(); // those that nobody uses may be as old
      }
    }

    private void drop(Connection connection) {
      made.decrementAndGet();
      end(connection);
    }

    private void clear() {
      for (Connection one = idle.poll(); one != null; one = idle.poll()) {
        drop(one);
      }
      if (idle.hasWaitingConsumer()) {
        spare();
      }
    }

    void close() {
      isClosed = true;
      clear();
    }
  }

  private final UnifiedJedis client;
  private final HostAndPort address;
  private final JedisClientConfig config;
  private final boolean isSentinel;
  private final boolean isCluster;
  /** Of a client of one server; else null. */
  private final Pool<Connection> pool;
  /** By address; without a cluster by the name of the server. */
  private final Map<String, Node> nodes = new ConcurrentHashMap<>();
  /** The addresses that the servers of a cluster named by MOVED, and by ASK for one command. */
  private final Map<Integer, String> slots = new ConcurrentHashMap<>();
  private final Map<Integer, String> asks = new ConcurrentHashMap<>();
  private final Map<String, Channel> channels = new ConcurrentHashMap<>();
  private final Map<String, Subscription> subscriptions = new ConcurrentHashMap<>();
  private final AtomicBoolean isFollowing = new AtomicBoolean();

  /** The address and the configuration are null if they are not known. */
  JedisTransport(UnifiedJedis client, HostAndPort address, JedisClientConfig config) {
    this.client = client;
    this.address = address;
    this.config = config == null ? null : patient(config);
    isSentinel = ask("getCurrentMaster") != null;
    isCluster = ask("getClusterNodes") != null;
    pool = ask("getPool");
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

  /** Two threads may do so at once, and then the socket of one is closed already. */
  private static void end(Connection connection) {
    try {
      connection.disconnect();
    } catch (JedisException e) { // it has ended
    }
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
    return ask("getClusterNodes");
  }

  @Override
  public int slot(String key) {
    return isCluster ? JedisClusterCRC16.getSlot(key) : -1;
  }

  @Override
  public Topology topology() {
    boolean isUsable = isSentinel ? config != null : pool != null || isCluster;
    if (!isUsable) {
      throw new IllegalArgumentException("the client must be a JedisPooled, RedisClient, JedisCluster or RedisClusterClient, or"
          + " with JedisLocks.sentinel a JedisSentineled or RedisSentinelClient, not " + client.getClass().getName());
    }
    return new Topology(address == null ? client.getClass().getSimpleName() : address.toString(), isSentinel);
  }

  // --- commands

  /** The server that has a slot. */
  private Node node(int slot) {
    if (isCluster) {
      return node(slots.getOrDefault(slot, ""));
    } else if (isSentinel) {
      return node(ask("getCurrentMaster").toString(), null);
    }
    return node("", pool);
  }

  /** A node of a cluster: the one with this address, or another one if the program's client does not know it. */
  private Node node(String at) {
    Map<String, ConnectionPool> all = clusterNodes();
    String known = all.containsKey(at) ? at : all.keySet().iterator().next();
    return node(known, all.get(known));
  }

  private Node node(String at, Pool<Connection> program) {
    return nodes.compute(at, (same, node) -> {
      if (node != null && node.program == program) {
        return node;
      }
      return new Node(at, program, config == null ? program.getFactory()
          : new ConnectionFactory(at.isEmpty() ? address : HostAndPort.from(at), config));
    });
  }

  @Override
  public CompletionStage<Reply> call(Call call, long limit, boolean mayBlock) {
    if (!call.key().isEmpty()) {
      int slot = slot(call.key());
      String asked = asks.remove(slot);
      return call(asked == null ? node(slot) : node(asked), call, limit, mayBlock, asked != null);
    }
    List<CompletableFuture<Reply>> all = (isCluster ? clusterNodes().keySet().stream().map(this::node) : Stream.of(node(-1)))
        .map(node -> call(node, call, limit, false, false)).toList();
    return CompletableFuture.allOf(all.toArray(CompletableFuture[]::new))
        .thenApply(done -> new Reply(all.stream().map(one -> one.join().value()).toList(), null, true));
  }

  private CompletableFuture<Reply> call(Node node, Call call, long limit, boolean mayBlock, boolean isAsking) {
    if (node.program != null && node.program.isClosed()) {
      throw new IllegalStateException("the program has closed its client");
    }
    int limitMs = (int) (limit / 1_000_000) + 1;
    Connection ready = mayBlock ? node.take(limit) : null;
    if (ready != null) {
      return CompletableFuture.completedFuture(run(node, ready, call, limitMs, isAsking));
    }
    CompletableFuture<Reply> result = new CompletableFuture<>();
    node.threads.execute(() -> {
      try {
        Connection any = null;
        while (any == null && !result.isDone()) {
          any = node.take(limit);
          any = any == null ? node.make() : any;
        }
        if (any != null) {
          // A reply that is late for its caller says nothing against the connection.
          result.complete(run(node, any, call, Math.max(limitMs, MOST_MS), isAsking));
        }
      } catch (Exception | Error e) {
        result.completeExceptionally(e);
      }
    });
    return result.orTimeout(limit, TimeUnit.NANOSECONDS);
  }

  private Reply run(Node node, Connection connection, Call call, int limitMs, boolean isAsking) {
    node.spare();
    try {
      connection.setSoTimeout(limitMs);
      if (isAsking) {
        execute(connection, List.of("ASKING"));
      }
      Object value = execute(connection, call.words());
      Object then = call.then().isEmpty() || value instanceof ErrorReply ? null : execute(connection, call.then());
      if (value instanceof ErrorReply error && error.getCause() instanceof JedisRedirectionException other) {
        redirect(node, call, other);
      }
      return new Reply(value, then, true);
    } finally {
      node.giveBack(connection);
    }
  }

  /** Notes which node has to have the command when it is sent again. */
  private void redirect(Node node, Call call, JedisRedirectionException other) {
    String target = other.getTargetNode().toString();
    if (!clusterNodes().containsKey(target)) {
      node.threads.execute(() -> client.exists(call.key())); // the program's client learns of the node
    }
    (other instanceof JedisMovedDataException ? slots : asks).put(other.getSlot(), target);
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
      return list.stream().flatMap(one -> one instanceof Map.Entry<?, ?> entry // of a map by RESP3
          ? Stream.of(text(entry.getKey()), text(entry.getValue())) : Stream.of(text(one))).toList();
    }
    return value instanceof JedisDataException e ? new ErrorReply(e.getMessage(), e) : value;
  }

  // --- channels

  @Override
  public Runnable listen(String name, Consumer<String> heard, Runnable changed) {
    Channel channel = new Channel(name, heard, changed);
    channels.put(name, channel);
    subscribe(channel);
    if (isSentinel && !isFollowing.getAndSet(true)) {
      follow();
    }
    return () -> {
      channels.remove(name);
      Subscription shared = subscriptions.get(node(channel).address); // it may be silent
      if (shared != null) {
        shared.disconnect(); // before others subscribe by it
      }
    };
  }

  private void subscribe(Channel channel) {
    subscriptions.computeIfAbsent(node(channel).address, server -> {
      Subscription subscription = new Subscription(server);
      thread("slock-listener", subscription).start();
      return subscription;
    }).add(channel);
  }

  private record Channel(String name, Consumer<String> heard, Runnable changed) {}

  private Node node(Channel channel) {
    return node(JedisClusterCRC16.getSlot(channel.name));
  }

  /** The channels of one server, over a connection and with a thread of its own. It ends with the last channel. */
  private final class Subscription extends JedisShardedPubSub implements Runnable {
    private final String server;
    private Connection connection;
    /** The connection has a subscription; only then may others follow. */
    private boolean isUp;

    Subscription(String server) {
      this.server = server;
    }

    synchronized void add(Channel channel) {
      if (isUp) {
        ssubscribe(channel.name);
      }
    }

    private synchronized Connection use(Connection made) {
      connection = made;
      return made;
    }

    private synchronized void disconnect() {
      isUp = false;
      if (connection != null) {
        end(connection);
      }
    }

    private List<Channel> mine() {
      return channels.values().stream().filter(channel -> node(channel).address.equals(server)).toList();
    }

    @Override
    public void run() {
      for (boolean isOver = false; !isOver;) {
        try {
          List<Channel> mine = mine();
          isOver = mine.isEmpty();
          if (!isOver) {
            proceed(use(node(mine.get(0)).factory.makeObject().getObject()), mine.get(0).name);
          }
        } catch (JedisMovedDataException moved) {
          slots.put(moved.getSlot(), moved.getTargetNode().toString());
        } catch (Exception e) {
          LockSupport.parkNanos(PAUSE_NANOS);
        } finally {
          disconnect();
        }
      }
      subscriptions.remove(server, this);
      channels.values().forEach(JedisTransport.this::subscribe); // other servers may have them now
    }

    @Override
    public void onSSubscribe(String name, int count) {
      if (count == 1) { // each by a command of its own, because their slots differ
        synchronized (this) {
          isUp = connection.isConnected();
        }
        mine().stream().filter(other -> !other.name.equals(name)).forEach(this::add);
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
        node.close();
      }
    });
    subscriptions.forEach((address, subscription) -> {
      if (!address.equals(String.valueOf(primary))) {
        subscription.disconnect();
      }
    });
    if (!subscriptions.isEmpty()) {
      CompletableFuture.delayedExecutor(PRIMARY_MS, TimeUnit.MILLISECONDS).execute(this::follow);
    } else {
      isFollowing.set(false);
    }
  }

  @Override
  public void close() {
    channels.clear();
    subscriptions.values().forEach(Subscription::disconnect);
    nodes.values().forEach(node -> node.close());
    nodes.clear();
  }
}
