// SPDX-License-Identifier: MIT OR Apache-2.0

package example.slock.jedis;

import example.slock.Transport;
import java.lang.reflect.Proxy;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.LinkedTransferQueue;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
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
import redis.clients.jedis.Protocol;
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
  /** Connections to a server, unless the program's pool may have more. */
  private static final int MOST = 8;
  /** For what blocks, of each server: one that is silent keeps those of the others free. */
  private static final int THREADS = 16;
  /** How soon a reply is missing so long that its connection is given up. */
  private static final int MOST_MS = 800;
  private static final long PAUSE_NANOS = 100_000_000;
  private static final long PRIMARY_MS = 500;

  /** One server, and our connections to it. */
  private final class Node {
    final String address;
    /** With Sentinel null. */
    final Pool<Connection> program;
    final PooledObjectFactory<Connection> factory;
    final ThreadPoolExecutor threads = new ThreadPoolExecutor(THREADS, THREADS, 1, TimeUnit.SECONDS, new LinkedBlockingQueue<>(),
        task -> thread("slock-jedis", task));
    private final int most;
    /** How many connections there are, with those that are being made. */
    private final AtomicInteger made = new AtomicInteger();
    /** Connections that nobody uses. To those that wait it also gives errors. */
    private final LinkedTransferQueue<Object> idle = new LinkedTransferQueue<>();
    private volatile boolean isClosed;
    /** Null while there is no channel. */
    private Subscription subscription;

    Node(String address, Pool<Connection> program) {
      HostAndPort server = address.isEmpty() ? JedisTransport.this.address : HostAndPort.from(address);
      this.address = address;
      this.program = program;
      most = Math.max(MOST, program == null ? 0 : program.getMaxTotal());
      factory = config == null ? program.getFactory()
          : new ConnectionFactory(server, config);
      threads.allowCoreThreadTimeOut(true);
    }

    /** A connection. To make one may take longer than a call can wait, so the next one, such as that of a renewal, is made now. */
    Connection take(long limitNanos) {
      Object next = idle.poll();
      if (idle.isEmpty()) {
        grow();
      }
      try {
        next = next == null ? idle.poll(limitNanos, TimeUnit.NANOSECONDS) : next;
      } catch (InterruptedException e) {
        Thread.currentThread().interrupt();
      }
      if (next instanceof Connection connection) {
        return connection;
      }
      throw new CompletionException(next == null ? new TimeoutException() : (Throwable) next);
    }

    /**
     * Makes a connection, unless there are enough. If that fails, one of the calls that wait gets the error. A later call does
     * not: the server may be up again.
     */
    private void grow() {
      if (made.getAndUpdate(n -> Math.min(n + 1, most)) < most) {
        thread("slock-jedis", () -> {
          try {
            giveBack(factory.makeObject().getObject());
          } catch (Exception | Error e) {
            idle.tryTransfer(e);
            LockSupport.parkNanos(PAUSE_NANOS);
            made.decrementAndGet();
            if (idle.hasWaitingConsumer()) {
              grow();
            }
          }
        }).start();
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
      for (Object one = idle.poll(); one != null; one = idle.poll()) {
        drop((Connection) one);
      }
      if (idle.hasWaitingConsumer()) {
        grow();
      }
    }

    synchronized void subscribe(Channel channel) {
      if (subscription == null) {
        subscription = new Subscription(this);
        thread("slock-listener", subscription).start();
      } else {
        subscription.add(channel);
      }
    }

    /** Has it listen over another connection. */
    synchronized void listenAgain() {
      if (subscription != null) {
        subscription.disconnect();
      }
    }

    void close() {
      isClosed = true;
      clear();
      listenAgain();
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
  /** The addresses that the servers of a cluster named. */
  private final Map<Integer, String> slots = new ConcurrentHashMap<>();
  private final Map<String, Channel> channels = new ConcurrentHashMap<>();
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
    }
    return isSentinel ? node(ask("getCurrentMaster").toString(), null) : node("", pool);
  }

  /** A node of a cluster: the one with this address, or another one if the program's client does not know it. */
  private Node node(String at) {
    Map<String, ConnectionPool> all = clusterNodes();
    String known = all.containsKey(at) ? at : all.keySet().iterator().next();
    return node(known, all.get(known));
  }

  private Node node(String at, Pool<Connection> program) {
    return nodes.compute(at, (same, node) -> node != null && node.program == program ? node : new Node(at, program));
  }

  @Override
  public CompletionStage<Reply> call(Call call, long limit, boolean mayBlock) {
    if (!call.key().isEmpty()) {
      return call(node(slot(call.key())), call, limit, mayBlock);
    }
    List<CompletableFuture<Reply>> all = (isCluster ? clusterNodes().keySet().stream().map(this::node) : Stream.of(node(-1)))
        .map(node -> call(node, call, limit, false)).toList();
    return CompletableFuture.allOf(all.toArray(CompletableFuture[]::new))
        .thenApply(done -> new Reply(all.stream().map(one -> one.join().value()).toList(), null, true));
  }

  private CompletableFuture<Reply> call(Node node, Call call, long limit, boolean mayBlock) {
    if (node.program != null && node.program.isClosed()) {
      throw new IllegalStateException("the program has closed its client");
    } else if (mayBlock) {
      return CompletableFuture.completedFuture(run(node, call, limit, false));
    }
    CompletableFuture<Reply> result = new CompletableFuture<>();
    node.threads.execute(() -> {
      try {
        if (!result.isDone()) {
          // A reply that is late for its caller says nothing against the connection.
          result.complete(run(node, call, Math.max(limit, MOST_MS * 1_000_000L), false));
        }
      } catch (RuntimeException | Error e) {
        result.completeExceptionally(e);
      }
    });
    return result.orTimeout(limit, TimeUnit.NANOSECONDS);
  }

  private Reply run(Node node, Call call, long limit, boolean isAsking) {
    Connection connection = node.take(limit);
    Object value;
    Object then = null;
    try {
      connection.setSoTimeout((int) (limit / 1_000_000) + 1);
      if (isAsking) {
        execute(connection, List.of("ASKING"));
      }
      value = execute(connection, call.words());
      if (!call.then().isEmpty() && !(value instanceof ErrorReply)) {
        then = execute(connection, call.then());
      }
    } finally {
      node.giveBack(connection);
    }
    if (value instanceof ErrorReply error && error.getCause() instanceof JedisRedirectionException other) {
      String target = other.getTargetNode().toString();
      if (!clusterNodes().containsKey(target)) {
        node.threads.execute(() -> client.exists(call.key())); // the program's client learns of the node
      } else if (!(other instanceof JedisMovedDataException) && !isAsking) {
        return run(node(target), call, limit, true);
      }
      slots.put(other.getSlot(), target); // for the command when it is sent again
    }
    return new Reply(value, then, true);
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

  private record Channel(String name, Consumer<String> heard, Runnable changed) {}

  private Node node(Channel channel) {
    return node(JedisClusterCRC16.getSlot(channel.name));
  }

  @Override
  public Runnable listen(String name, Consumer<String> heard, Runnable changed) {
    Channel channel = new Channel(name, heard, changed);
    channels.put(name, channel);
    node(channel).subscribe(channel);
    if (isSentinel && !isFollowing.getAndSet(true)) {
      follow();
    }
    return () -> {
      channels.remove(name);
      node(channel).listenAgain(); // the connection may be silent
    };
  }

  /** Listens to the channels of one server, over a connection and with a thread of its own, until there are none. */
  private final class Subscription implements Runnable {
    private final Node node;
    /** Null while there is none that can listen. */
    private Connection connection;

    Subscription(Node node) {
      this.node = node;
    }

    /** By a command of its own, because the slots of others differ. */
    synchronized void add(Channel channel) {
      try {
        if (connection != null) {
          connection.sendCommand(Protocol.Command.SSUBSCRIBE, channel.name);
          connection.getMany(0); // it sends what has been written
        }
      } catch (JedisException e) {
        disconnect();
      }
    }

    synchronized void disconnect() {
      if (connection != null) {
        end(connection);
      }
      connection = null;
    }

    @Override
    public void run() {
      while (isUsed()) {
        try {
          Connection made = node.factory.makeObject().getObject();
          made.setTimeoutInfinite();
          begin(made);
          while (true) {
            hear((List<?>) text(made.getUnflushedObject()));
          }
        } catch (JedisMovedDataException moved) {
          slots.put(moved.getSlot(), moved.getTargetNode().toString());
        } catch (Exception e) {
          LockSupport.parkNanos(e instanceof JedisDataException ? 10 * PAUSE_NANOS : PAUSE_NANOS); // it may have no right
        } finally {
          disconnect();
        }
      }
      channels.values().forEach(channel -> node(channel).subscribe(channel)); // other servers may have them now
    }

    private List<Channel> mine() {
      return channels.values().stream().filter(channel -> node(channel) == node).toList();
    }

    private boolean isUsed() {
      synchronized (node) {
        node.subscription = mine().isEmpty() ? null : this;
        return node.subscription != null;
      }
    }

    private synchronized void begin(Connection made) {
      connection = made;
      List<Channel> mine = mine();
      mine.forEach(this::add);
      if (mine.isEmpty()) {
        disconnect();
      }
    }

    private void hear(List<?> message) {
      Channel channel = channels.get(message.get(1));
      if (message.get(0).equals("sunsubscribe")) {
        disconnect(); // the slot has moved
      } else if (channel != null && message.get(0).equals("ssubscribe")) {
        channel.changed.run();
      } else if (channel != null) {
        channel.heard.accept((String) message.get(2));
      }
    }
  }

  /** Leaves the former primary when the program's client has heard of another one. */
  private void follow() {
    String primary = ask("getCurrentMaster").toString();
    nodes.values().stream().filter(node -> !node.address.equals(primary) && nodes.remove(node.address, node)).forEach(Node::close);
    if (isFollowing.get()) {
      CompletableFuture.delayedExecutor(PRIMARY_MS, TimeUnit.MILLISECONDS).execute(this::follow);
    }
  }

  @Override
  public void close() {
    isFollowing.set(false);
    channels.clear();
    nodes.values().forEach(Node::close);
    nodes.clear();
  }
}
