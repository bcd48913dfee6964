package example.slock.lettuce;

import example.slock.Transport;
import io.lettuce.core.AbstractRedisClient;
import io.lettuce.core.ClientOptions;
import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisURI;
import io.lettuce.core.cluster.RedisClusterClient;
import io.lettuce.core.cluster.SlotHash;
import io.lettuce.core.cluster.models.partitions.RedisClusterNode;
import io.lettuce.core.codec.StringCodec;
import io.lettuce.core.models.role.RedisNodeDescription;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.TimeUnit;

/**
 * Finds servers: the only one, the primary that Sentinels name, or the nodes of a cluster. Either the URI or the cluster is
 * null.
 */
record LettuceTransport(RedisClient client, RedisURI uri, RedisClusterClient cluster) implements Transport {
  /** How long the first commands of a connection may take; for others Lettuce does not look at the time of the URI. */
  private static final Duration OPENING = Duration.ofSeconds(2);

  static LettuceTransport of(RedisClient client, RedisURI uri) {
    return new LettuceTransport(own(client, client.getOptions()), uri, null);
  }

  static LettuceTransport of(RedisClusterClient cluster) {
    return new LettuceTransport(own(cluster, cluster.getOptions()), null, cluster);
  }

  /** A client with the same threads, whose connections do not connect again: commands would be repeated. */
  private static RedisClient own(AbstractRedisClient of, ClientOptions options) {
    RedisClient own = RedisClient.create(of.getResources());
    own.setOptions(options.mutate().autoReconnect(false)
        .disconnectedBehavior(ClientOptions.DisconnectedBehavior.REJECT_COMMANDS).build());
    return own;
  }

  @Override
  public boolean isCluster() {
    return cluster != null;
  }

  @Override
  public int slot(String key) {
    return cluster == null ? 0 : SlotHash.getSlot(key.getBytes(StandardCharsets.UTF_8));
  }

  @Override
  public CompletionStage<List<String>> look() {
    if (cluster != null) {
      return cluster.refreshPartitionsAsync().thenApply(done -> bySlot());
    }
    if (uri.getSentinels().isEmpty()) {
      return CompletableFuture.completedFuture(List.of(name()));
    }
    // Of copies, because each Sentinel gets the time of the whole.
    RedisURI.Builder sentinels = RedisURI.builder(uri).withSentinelMasterId(uri.getSentinelMasterId());
    uri.getSentinels().forEach(one -> sentinels.withSentinel(RedisURI.builder(one).build()));
    return client.connectSentinelAsync(StringCodec.UTF8, opening(sentinels, uri)).thenCompose(sentinel -> sentinel.async()
        .getMasterAddrByName(uri.getSentinelMasterId()).toCompletableFuture()
        .orTimeout(OPENING.toMillis(), TimeUnit.MILLISECONDS).whenComplete((address, error) -> sentinel.closeAsync()))
        .thenApply(address -> {
          if (!(address instanceof InetSocketAddress to)) {
            throw new IllegalStateException("Sentinel does not know " + uri.getSentinelMasterId());
          }
          return List.of(to.getHostString() + ":" + to.getPort());
        });
  }

  private List<String> bySlot() {
    String[] addresses = new String[SlotHash.SLOT_COUNT];
    for (RedisClusterNode node : cluster.getPartitions()) {
      if (node.getRole() == RedisNodeDescription.Role.UPSTREAM) {
        String address = address(node.getUri());
        node.getSlots().forEach(slot -> addresses[slot] = address);
      }
    }
    return Arrays.asList(addresses);
  }

  private static String address(RedisURI of) {
    return of.getSocket() != null ? of.getSocket() : of.getHost() + ":" + of.getPort();
  }

  @Override
  public Node node(String address) {
    RedisURI like = cluster == null ? uri : cluster.getPartitions().getPartition(0).getUri();
    RedisURI.Builder to = RedisURI.builder(like);
    if (like.getSocket() == null) {
      int colon = address.lastIndexOf(':');
      to.withHost(address.substring(0, colon)).withPort(Integer.parseInt(address.substring(colon + 1)));
    }
    return new LettuceNode(client, opening(to, like));
  }

  /** For connections that are opened in time, or not at all. */
  private static RedisURI opening(RedisURI.Builder to, RedisURI like) {
    return to.withTimeout(OPENING.compareTo(like.getTimeout()) < 0 ? OPENING : like.getTimeout()).build();
  }

  @Override
  public String name() {
    return cluster != null ? "cluster" : uri.getSentinels().isEmpty() ? address(uri) : uri.getSentinelMasterId();
  }
}
