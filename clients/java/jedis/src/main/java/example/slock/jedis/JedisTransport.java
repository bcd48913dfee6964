package example.slock.jedis;

import example.slock.Transport;
import java.util.Arrays;
import java.util.Collection;
import java.util.List;
import java.util.Objects;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.Executor;
import java.util.concurrent.SynchronousQueue;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.CopyOnWriteArraySet;
import java.util.function.BiFunction;
import java.util.function.Supplier;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.JedisClientConfig;
import redis.clients.jedis.Protocol;
import redis.clients.jedis.exceptions.JedisException;
import redis.clients.jedis.util.JedisClusterCRC16;

/** Finds servers: the only one, the primary that Sentinels name, or the nodes of a cluster. */
record JedisTransport(String name, boolean isCluster, JedisClientConfig config, int connections,
    Supplier<List<String>> primaries) implements Transport {
  /** What goes on in the background goes on in these threads, which all locks share. */
  static final Executor THREADS =
      new ThreadPoolExecutor(0, Integer.MAX_VALUE, 1, TimeUnit.SECONDS, new SynchronousQueue<>(), task -> {
        Thread thread = new Thread(task, "slock-jedis");
        thread.setDaemon(true);
        return thread;
      });

  static JedisTransport single(HostAndPort server, JedisClientConfig config, int connections) {
    return new JedisTransport(server.toString(), false, config, connections, () -> List.of(server.toString()));
  }

  static JedisTransport sentinel(String service, Set<HostAndPort> sentinels, JedisClientConfig sentinelConfig,
      JedisClientConfig config) {
    return new JedisTransport(service, false, config, JedisLocks.CONNECTIONS, () -> first(sentinels, sentinelConfig,
        (asked, address) -> List.of(address.get(0) + ":" + address.get(1)),
        "SENTINEL", "GET-MASTER-ADDR-BY-NAME", service));
  }

  static JedisTransport cluster(Set<HostAndPort> some, JedisClientConfig config) {
    Set<HostAndPort> nodes = new CopyOnWriteArraySet<>(some);
    return new JedisTransport("cluster", true, config, JedisLocks.CONNECTIONS, () -> {
      List<String> bySlot = first(nodes, config, JedisTransport::bySlot, "CLUSTER", "SLOTS");
      bySlot.stream().filter(Objects::nonNull).distinct().map(HostAndPort::from).forEach(nodes::add);
      return bySlot;
    });
  }

  /** Asks one after the other, until one answers. Gives what is read in its answer. */
  private static List<String> first(Collection<HostAndPort> servers, JedisClientConfig config,
      BiFunction<HostAndPort, List<?>, List<String>> read, String... command) {
    JedisException last = new JedisException("no address is given");
    for (HostAndPort server : servers) {
      int timeout = config.getSocketTimeoutMillis();
      try (JedisConnection connection = JedisConnection.open(server, config, timeout)) {
        Object answer = connection.exchange(List.of(List.of(command)), timeout, false).get(0);
        if (answer instanceof List<?> list) {
          return read.apply(server, list);
        }
        last = answer instanceof JedisException error ? error : new JedisException(server + " does not know the primary");
      } catch (JedisException e) {
        last = e;
      }
    }
    throw last;
  }

  /** A node that tells no host is at that of the node which was asked. */
  private static List<String> bySlot(HostAndPort asked, List<?> ranges) {
    String[] addresses = new String[Protocol.CLUSTER_HASHSLOTS];
    for (Object range : ranges) {
      List<?> fields = (List<?>) range;
      List<?> primary = (List<?>) fields.get(2);
      String host = Objects.toString(primary.get(0), "");
      String address = (host.isEmpty() ? asked.getHost() : host) + ":" + primary.get(1);
      Arrays.fill(addresses, ((Long) fields.get(0)).intValue(), ((Long) fields.get(1)).intValue() + 1, address);
    }
    return Arrays.asList(addresses);
  }

  @Override
  public int slot(String key) {
    return isCluster ? JedisClusterCRC16.getSlot(key) : 0;
  }

  @Override
  public CompletionStage<List<String>> look() {
    return CompletableFuture.supplyAsync(primaries, THREADS);
  }

  @Override
  public JedisNode node(String address) {
    return new JedisNode(HostAndPort.from(address), config, connections);
  }
}
