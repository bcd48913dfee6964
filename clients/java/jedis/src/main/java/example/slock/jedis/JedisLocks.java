package example.slock.jedis;

import example.slock.Locks;
import example.slock.Options;
import example.slock.Quorum;
import java.util.Collection;
import java.util.Set;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.JedisClientConfig;

/**
 * Makes {@link Locks} from what a client of Jedis is made from: addresses and a configuration. The connections are those
 * of the library. A command of a synchronous call is sent by the thread that calls, the others by threads of the library.
 */
public final class JedisLocks {
  /** How many connections to one server short commands use at most: as many as in the pools of Jedis. */
  public static final int CONNECTIONS = 8;

  private JedisLocks() {}

  /** On one server, as Jedis has its defaults. */
  public static Locks of(HostAndPort server) {
    return of(server, DefaultJedisClientConfig.builder().build(), new Options());
  }

  /** On one server. */
  public static Locks of(HostAndPort server, JedisClientConfig config, Options options) {
    return of(server, config, CONNECTIONS, options);
  }

  /** On one server, with so many connections for short commands at most. */
  public static Locks of(HostAndPort server, JedisClientConfig config, int connections, Options options) {
    return new Locks(JedisTransport.single(server, config, connections), options);
  }

  /** On the primary that Sentinels name. */
  public static Locks sentinel(String name, Set<HostAndPort> sentinels, JedisClientConfig config,
      JedisClientConfig sentinelConfig, Options options) {
    return new Locks(JedisTransport.sentinel(name, sentinels, sentinelConfig, config), options);
  }

  /** On a cluster, of which some nodes are given. */
  public static Locks cluster(Set<HostAndPort> nodes, JedisClientConfig config, Options options) {
    return new Locks(JedisTransport.cluster(nodes, config), options);
  }

  /** On several independent servers. */
  public static Quorum quorum(Collection<HostAndPort> servers, JedisClientConfig config, Options options) {
    return new Quorum(servers.stream().map(server -> JedisTransport.single(server, config, CONNECTIONS)).toList(), options);
  }
}
