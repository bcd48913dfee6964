// SPDX-License-Identifier: MIT OR Apache-2.0

package example.slock.jedis;

import example.slock.Locks;
import example.slock.Options;
import example.slock.Transport;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.JedisClientConfig;
import redis.clients.jedis.UnifiedJedis;

/** Makes {@link Locks} from a client of Jedis. It sends nothing. The client stays the program's. */
public final class JedisLocks {
  private JedisLocks() {}

  /** On the server or the cluster of a client: a JedisPooled, RedisClient, JedisCluster or RedisClusterClient. */
  public static Locks of(UnifiedJedis client) {
    return of(client, new Options());
  }

  /** With options. */
  public static Locks of(UnifiedJedis client, Options options) {
    return of(client, null, null, options);
  }

  /**
   * With the address (of a cluster null) and the configuration of the client, which Jedis does not tell. Give them if the time
   * limits of the client are shorter than a reply may take: the library then makes connections with limits of its own.
   */
  public static Locks of(UnifiedJedis client, HostAndPort address, JedisClientConfig config, Options options) {
    return new Locks(new JedisTransport(client, address, config), options);
  }

  /**
   * On the primary that Sentinels name: of a JedisSentineled or RedisSentinelClient, and the configuration that its connections
   * to the primary have, because Jedis tells neither of them.
   */
  public static Locks sentinel(UnifiedJedis client, JedisClientConfig config, Options options) {
    return of(client, null, config, options);
  }

  /** On several independent servers, by their addresses, and the configuration of the clients, which Jedis does not tell. */
  public static Locks quorum(Map<HostAndPort, ? extends UnifiedJedis> clients, JedisClientConfig config, Options options) {
    List<Transport> nodes = new ArrayList<>();
    clients.forEach((address, client) -> nodes.add(new JedisTransport(client, address, config)));
    return Locks.quorum(nodes, options);
  }
}
