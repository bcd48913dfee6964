package example.slock.jedis;

import java.util.Collection;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Set;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.JedisClientConfig;
import redis.clients.jedis.exceptions.JedisException;
import redis.clients.jedis.util.JedisClusterCRC16;

/** Which servers there are. Looking for them blocks. */
interface Topology {
  String name();

  /** What is known until the next look. */
  Found look();

  /** The primaries by slot; one for all, where there is no cluster. */
  record Found(HostAndPort[] bySlot) {
    HostAndPort of(String key) {
      HostAndPort found = bySlot.length == 1 ? bySlot[0] : bySlot[JedisClusterCRC16.getSlot(key)];
      if (found == null) {
        throw new JedisException("no node has the slot of " + key);
      }
      return found;
    }

    Set<HostAndPort> all() {
      Set<HostAndPort> all = new LinkedHashSet<>(java.util.Arrays.asList(bySlot));
      all.remove(null);
      return all;
    }
  }

  /** One server. */
  record Single(HostAndPort server) implements Topology {
    @Override
    public String name() {
      return server.toString();
    }

    @Override
    public Found look() {
      return new Found(new HostAndPort[] {server});
    }
  }

  /** Asks one after the other, until one answers. */
  private static Found first(Collection<HostAndPort> servers, JedisClientConfig config,
      java.util.function.Function<Object, Found> read, String... command) {
    JedisException last = new JedisException("no address is given");
    for (HostAndPort server : servers) {
      try (JedisConnection connection = JedisConnection.open(server, config, config.getSocketTimeoutMillis(), false)) {
        Object answer = connection.exchange(List.of(List.of(command)), config.getSocketTimeoutMillis(), false).get(0);
        if (answer instanceof JedisException error) {
          throw error;
        }
        return read.apply(answer);
      } catch (JedisException e) {
        last = e;
      }
    }
    throw last;
  }

  /** The primary that Sentinels name. */
  record Sentinel(String service, Set<HostAndPort> sentinels, JedisClientConfig config) implements Topology {
    @Override
    public String name() {
      return service;
    }

    @Override
    public Found look() {
      return first(sentinels, config, answer -> {
        if (!(answer instanceof List<?> address)) {
          throw new JedisException("Sentinel does not know " + service);
        }
        int port = Integer.parseInt(address.get(1).toString());
        return new Found(new HostAndPort[] {new HostAndPort(address.get(0).toString(), port)});
      }, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", service);
    }
  }

  /** The nodes of a cluster. */
  final class Cluster implements Topology {
    private final JedisClientConfig config;
    private volatile Set<HostAndPort> nodes;

    Cluster(Set<HostAndPort> nodes, JedisClientConfig config) {
      this.nodes = nodes;
      this.config = config;
    }

    @Override
    public String name() {
      return "cluster";
    }

    @Override
    public Found look() {
      Found found = first(nodes, config, Cluster::read, "CLUSTER", "SLOTS");
      Set<HostAndPort> known = found.all();
      known.addAll(nodes);
      nodes = known;
      return found;
    }

    private static Found read(Object answer) {
      HostAndPort[] bySlot = new HostAndPort[16384];
      for (Object range : (List<?>) answer) {
        List<?> fields = (List<?>) range;
        List<?> primary = (List<?>) fields.get(2);
        HostAndPort node = new HostAndPort(primary.get(0).toString(), ((Long) primary.get(1)).intValue());
        for (long slot = (Long) fields.get(0); slot <= (Long) fields.get(1); slot++) {
          bySlot[(int) slot] = node;
        }
      }
      return new Found(bySlot);
    }
  }
}
