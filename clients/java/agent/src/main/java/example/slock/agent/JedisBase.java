package example.slock.agent;

import example.slock.Locks;
import example.slock.Options;
import example.slock.Quorum;
import example.slock.jedis.JedisLocks;
import java.util.LinkedHashSet;
import java.util.Set;
import redis.clients.jedis.CommandArguments;
import redis.clients.jedis.ConnectionPoolConfig;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.JedisClientConfig;
import redis.clients.jedis.RedisClient;
import redis.clients.jedis.util.SafeEncoder;

/** Jedis. */
final class JedisBase implements Base {
  private static JedisClientConfig config(Request r) {
    DefaultJedisClientConfig.Builder config = DefaultJedisClientConfig.builder();
    return r.user == null ? config.build() : config.user(r.user).password(r.password).build();
  }

  /** Scenarios count them. */
  private static int connections(Request r) {
    return r.id > 0 ? 2 : Math.max(JedisLocks.CONNECTIONS, r.tasks);
  }

  private static Set<HostAndPort> nodes(Request r) {
    Set<HostAndPort> nodes = new LinkedHashSet<>();
    r.nodes.forEach(node -> nodes.add(HostAndPort.from(node)));
    return nodes;
  }

  @Override
  public Locks open(Request r, Options options) {
    return switch (r.kind) {
      case "cluster" -> JedisLocks.cluster(nodes(r), config(r), options);
      case "sentinel" -> JedisLocks.sentinel(r.service, nodes(r), config(r), config(r), options);
      default -> JedisLocks.of(HostAndPort.from(r.nodes.get(0)), config(r), connections(r), options);
    };
  }

  @Override
  public Quorum openQuorum(Request r, Options options) {
    return JedisLocks.quorum(nodes(r), config(r), options);
  }

  @Override
  public Plain plain(String node, int connections) {
    ConnectionPoolConfig pool = new ConnectionPoolConfig();
    pool.setMaxTotal(connections);
    pool.setMaxIdle(connections);
    JedisClientConfig config = DefaultJedisClientConfig.builder().socketTimeoutMillis(60_000).build();
    RedisClient client =
        RedisClient.builder().hostAndPort(HostAndPort.from(node)).clientConfig(config).poolConfig(pool).build();
    return new Plain() {
      @Override
      public Object call(int n, String... words) {
        byte[] name = SafeEncoder.encode(words[0]);
        CommandArguments command = new CommandArguments(() -> name);
        for (int i = 1; i < words.length; i++) {
          command.add(words[i]);
        }
        Object answer = client.executeCommand(command);
        return answer instanceof byte[] bytes ? SafeEncoder.encode(bytes) : answer;
      }

      @Override
      public void close() {
        client.close();
      }
    };
  }

  @Override
  public void close() {}
}
