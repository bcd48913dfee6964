package example.slock.lettuce;

import example.slock.Transport;
import io.lettuce.core.ClientOptions;
import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisURI;
import io.lettuce.core.cluster.RedisClusterClient;
import io.lettuce.core.cluster.SlotHash;
import io.lettuce.core.cluster.models.partitions.Partitions;
import io.lettuce.core.cluster.models.partitions.RedisClusterNode;
import io.lettuce.core.codec.StringCodec;
import io.lettuce.core.models.role.RedisNodeDescription;
import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicBoolean;

/** Finds servers: the only one, the primary that Sentinel names, or the nodes of a cluster. */
final class LettuceTransport implements Transport {
  /** How long the first commands of a connection may take; for others Lettuce does not look at the time of the URI. */
  private static final Duration OPENING = Duration.ofSeconds(2);

  private final RedisClient client;
  private final RedisURI uri;
  private final RedisClusterClient cluster; // null: none
  private final Map<String, LettuceNode> nodes = new ConcurrentHashMap<>();
  private final AtomicBoolean isReloading = new AtomicBoolean();
  private volatile CompletableFuture<LettuceNode> primary; // that Sentinel named; null: not known
  private volatile LettuceNode lastPrimary;
  private volatile Partitions partitions; // null: not known
  private volatile boolean isClosed;

  LettuceTransport(RedisClient client, RedisURI uri) {
    this.client = own(client, client.getOptions());
    this.uri = uri;
    cluster = null;
  }

  LettuceTransport(RedisClusterClient cluster) {
    client = own(cluster, cluster.getOptions());
    uri = null;
    this.cluster = cluster;
  }

  /** A client with the same threads, whose connections do not connect again: commands would be repeated. */
  private static RedisClient own(io.lettuce.core.AbstractRedisClient of, ClientOptions options) {
    RedisClient own = RedisClient.create(of.getResources());
    own.setOptions(options.mutate().autoReconnect(false)
        .disconnectedBehavior(ClientOptions.DisconnectedBehavior.REJECT_COMMANDS).build());
    return own;
  }

  @Override
  public boolean isCluster() {
    return cluster != null;
  }

  private boolean isSentinel() {
    return cluster == null && !uri.getSentinels().isEmpty();
  }

  @Override
  public CompletionStage<LettuceNode> find(String key) {
    if (cluster != null) {
      return known().thenApply(all -> {
        RedisClusterNode node = all.getMasterBySlot(SlotHash.getSlot(key));
        if (node == null) {
          throw new IllegalStateException("no node has the slot of " + key);
        }
        return at(node.getUri());
      });
    }
    if (!isSentinel()) {
      return CompletableFuture.completedFuture(at(uri));
    }
    CompletableFuture<LettuceNode> known = primary;
    if (known == null || known.isCompletedExceptionally()) {
      known = resolve();
      primary = known;
    }
    return known;
  }

  /** Asks the Sentinels. When the primary is another, connections to the one before are closed. */
  private CompletableFuture<LettuceNode> resolve() {
    return client.connectSentinelAsync(StringCodec.UTF8, uri).thenCompose(
        sentinel -> sentinel.async().getMasterAddrByName(uri.getSentinelMasterId())
            .whenComplete((address, error) -> sentinel.closeAsync())).thenApply(address -> {
              if (address == null) {
                throw new IllegalStateException("Sentinel does not know " + uri.getSentinelMasterId());
              }
              return follow(address);
            });
  }

  private LettuceNode follow(SocketAddress address) {
    InetSocketAddress to = (InetSocketAddress) address;
    LettuceNode node = at(to.getHostString() + ":" + to.getPort());
    LettuceNode before = lastPrimary;
    lastPrimary = node;
    if (before != null && before != node) {
      before.closeConnections();
    }
    return node;
  }

  private CompletionStage<Partitions> known() {
    Partitions all = partitions;
    if (all != null) {
      return CompletableFuture.completedFuture(all);
    }
    return cluster.refreshPartitionsAsync().thenApply(done -> partitions = cluster.getPartitions());
  }

  @Override
  public LettuceNode at(String address) {
    int colon = address.lastIndexOf(':');
    RedisURI of = cluster == null ? uri : partitions.getPartition(0).getUri();
    return at(of, address.substring(0, colon), Integer.parseInt(address.substring(colon + 1)));
  }

  private LettuceNode at(RedisURI node) {
    return node.getSocket() != null ? nodes.computeIfAbsent(node.getSocket(), name -> new LettuceNode(this, client, name, node))
        : at(node, node.getHost(), node.getPort());
  }

  private LettuceNode at(RedisURI like, String host, int port) {
    return nodes.computeIfAbsent(host + ":" + port, address -> {
      RedisURI to = RedisURI.builder().withHost(host).withPort(port).withDatabase(like.getDatabase())
          .withTimeout(OPENING.compareTo(like.getTimeout()) < 0 ? OPENING : like.getTimeout()).build();
      to.applyAuthentication(like);
      to.applySsl(like);
      if (like.getClientName() != null) {
        to.setClientName(like.getClientName());
      }
      return new LettuceNode(this, client, address, to);
    });
  }

  @Override
  public CompletionStage<List<LettuceNode>> primaries() {
    if (cluster == null) {
      return find("").thenApply(List::of);
    }
    return known().thenApply(all -> {
      List<LettuceNode> found = new ArrayList<>();
      for (RedisClusterNode node : all) {
        if (node.getRole() == RedisNodeDescription.Role.UPSTREAM && !node.getSlots().isEmpty()) {
          found.add(at(node.getUri()));
        }
      }
      return found;
    });
  }

  @Override
  public void reload() {
    if (isSentinel()) {
      CompletableFuture<LettuceNode> known = primary;
      if (known != null && known.isDone()) {
        primary = null;
      }
    } else if (cluster != null && isReloading.compareAndSet(false, true)) {
      cluster.refreshPartitionsAsync().whenComplete((done, error) -> {
        if (error == null) {
          partitions = cluster.getPartitions();
        }
        isReloading.set(false);
      });
    }
  }

  @Override
  public String name() {
    return cluster != null ? "cluster" : uri.getHost() + ":" + uri.getPort();
  }

  boolean isClosed() {
    return isClosed;
  }

  @Override
  public void close() {
    isClosed = true;
    nodes.values().forEach(LettuceNode::closeConnections);
  }
}
