package example.slock.jedis;

import example.slock.Locks;
import example.slock.Options;
import example.slock.Transport;
import java.util.List;
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
    return new Locks(new JedisTransport(client, null), options);
  }

  /**
   * On the primary that Sentinels name: of a JedisSentineled or RedisSentinelClient, and the configuration that its connections
   * to the primary have, because Jedis tells neither of them.
   */
  public static Locks sentinel(UnifiedJedis client, JedisClientConfig config, Options options) {
    return new Locks(new JedisTransport(client, config), options);
  }

  /** On several independent servers. */
  public static Locks quorum(List<? extends UnifiedJedis> clients, Options options) {
    return Locks.quorum(clients.stream().map(client -> (Transport) new JedisTransport(client, null)).toList(), options);
  }
}
