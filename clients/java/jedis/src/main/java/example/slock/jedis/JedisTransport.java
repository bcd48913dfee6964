package example.slock.jedis;

import example.slock.Transport;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Executor;
import java.util.concurrent.SynchronousQueue;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.JedisClientConfig;

/** Finds servers. What is looked for in the background is looked for by threads of the library, which all locks share. */
final class JedisTransport implements Transport {
  static final Executor THREADS =
      new ThreadPoolExecutor(0, Integer.MAX_VALUE, 1, TimeUnit.SECONDS, new SynchronousQueue<>(), task -> {
        Thread thread = new Thread(task, "slock-jedis");
        thread.setDaemon(true);
        return thread;
      });

  final JedisClientConfig config;
  final int connections;
  private final Topology topology;
  private final Map<String, JedisNode> nodes = new ConcurrentHashMap<>();
  private final AtomicReference<CompletableFuture<Topology.Found>> found = new AtomicReference<>();
  private volatile JedisNode lastPrimary;
  private volatile boolean isClosed;

  JedisTransport(Topology topology, JedisClientConfig config, int connections) {
    this.topology = topology;
    this.config = config;
    this.connections = connections;
    if (topology instanceof Topology.Single) {
      found.set(CompletableFuture.completedFuture(topology.look()));
    }
  }

  @Override
  public boolean isCluster() {
    return topology instanceof Topology.Cluster;
  }

  private CompletableFuture<Topology.Found> found() {
    CompletableFuture<Topology.Found> known = found.get();
    if (known != null && !known.isCompletedExceptionally()) {
      return known;
    }
    CompletableFuture<Topology.Found> looking = new CompletableFuture<>();
    return found.compareAndSet(known, looking) ? looking.completeAsync(topology::look, THREADS) : found();
  }

  @Override
  public CompletionStage<JedisNode> find(String key) {
    return found().thenApply(all -> {
      JedisNode node = at(all.of(key).toString());
      JedisNode before = lastPrimary;
      if (before != node && !isCluster()) { // the primary of Sentinels is another
        lastPrimary = node;
        if (before != null) {
          before.closeConnections();
        }
      }
      return node;
    });
  }

  @Override
  public JedisNode at(String address) {
    return nodes.computeIfAbsent(address, name -> new JedisNode(this, HostAndPort.from(name)));
  }

  @Override
  public CompletionStage<List<JedisNode>> primaries() {
    return found().thenApply(all -> all.all().stream().map(node -> at(node.toString())).toList());
  }

  @Override
  public void reload() {
    CompletableFuture<Topology.Found> known = found.get();
    if (!(topology instanceof Topology.Single) && known != null && known.isDone()) {
      found.compareAndSet(known, null);
    }
  }

  @Override
  public String name() {
    return topology.name();
  }

  boolean isClosed() {
    return isClosed;
  }

  @Override
  public void close() {
    isClosed = true;
    nodes.values().forEach(JedisNode::closeConnections);
  }
}
