package example.slock.agent;

import example.slock.Locks;
import example.slock.Options;
import example.slock.jedis.JedisLocks;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.Map;
import java.util.Set;
import org.apache.commons.pool2.impl.GenericObjectPoolConfig;
import redis.clients.jedis.CommandArguments;
import redis.clients.jedis.Connection;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.DefaultRedisCredentials;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.JedisClientConfig;
import redis.clients.jedis.JedisCluster;
import redis.clients.jedis.UnifiedJedis;

/** Jedis. The clients have other names since version 7, so they are made by reflection. */
@SuppressWarnings("deprecation")
final class JedisBase implements Base {
  private static JedisClientConfig config(Request r) {
    DefaultJedisClientConfig.Builder config = DefaultJedisClientConfig.builder();
    if (r.passwordFile != null) {
      config.credentialsProvider(() -> new DefaultRedisCredentials(r.user, r.password()));
    } else if (r.user != null) {
      config.user(r.user).password(r.password);
    }
    if (r.readTimeoutMs != null) {
      config.socketTimeoutMillis(r.readTimeoutMs);
    }
    return config.build();
  }

  private static GenericObjectPoolConfig<Connection> pool(int size) {
    GenericObjectPoolConfig<Connection> pool = new GenericObjectPoolConfig<>();
    pool.setMaxTotal(size);
    pool.setMaxIdle(size);
    return pool;
  }

  private static Set<HostAndPort> nodes(Request r) {
    Set<HostAndPort> nodes = new LinkedHashSet<>();
    r.nodes.forEach(node -> nodes.add(HostAndPort.from(node)));
    return nodes;
  }

  /** By the constructor of the former class, or else by the builder of the present one. */
  private static UnifiedJedis make(String former, Object[] arguments, String present, Map<String, Object> settings) {
    try {
      String names = "redis.clients.jedis.";
      try {
        for (var constructor : Class.forName(names + former).getConstructors()) {
          Class<?>[] types = constructor.getParameterTypes();
          boolean fits = types.length == arguments.length;
          for (int n = 0; fits && n < types.length; n++) {
            fits = types[n].isInstance(arguments[n]);
          }
          if (fits) {
            return (UnifiedJedis) constructor.newInstance(arguments);
          }
        }
        throw new IllegalStateException("no constructor of " + former);
      } catch (ClassNotFoundException e) {
        Object builder = Class.forName(names + present).getMethod("builder").invoke(null);
        for (Map.Entry<String, Object> setting : settings.entrySet()) {
          Method method = Arrays.stream(builder.getClass().getMethods()).filter(m -> m.getName().equals(setting.getKey())
              && m.getParameterCount() == 1 && m.getParameterTypes()[0].isInstance(setting.getValue())).findFirst().get();
          method.invoke(builder, setting.getValue());
        }
        return (UnifiedJedis) builder.getClass().getMethod("build").invoke(builder);
      }
    } catch (ReflectiveOperationException e) {
      throw new IllegalStateException(e);
    }
  }

  private static UnifiedJedis single(String node, JedisClientConfig config, int size) {
    return single(HostAndPort.from(node), config, pool(size));
  }

  static UnifiedJedis single(HostAndPort address, JedisClientConfig config, GenericObjectPoolConfig<Connection> pool) {
    return make("JedisPooled", new Object[] {address, config, pool}, "RedisClient",
        Map.of("hostAndPort", address, "clientConfig", config, "poolConfig", pool));
  }

  @Override
  public Opened open(Request r, Options options) {
    JedisClientConfig config = config(r);
    if (r.kind.equals("cluster")) {
      UnifiedJedis client = new JedisCluster(nodes(r), config, 5, pool(r.poolSize));
      return new Opened(JedisLocks.of(client, options), seconds -> {});
    } else if (r.kind.equals("sentinel")) {
      JedisClientConfig own = DefaultJedisClientConfig.builder().build();
      UnifiedJedis client = make("JedisSentineled", new Object[] {r.service, config, pool(r.poolSize), nodes(r), own},
          "RedisSentinelClient", Map.of("masterName", r.service, "clientConfig", config, "poolConfig", pool(r.poolSize),
              "sentinels", nodes(r), "sentinelClientConfig", own));
      return new Opened(JedisLocks.sentinel(client, config, options), seconds -> {});
    }
    UnifiedJedis client = single(r.nodes.get(0), config, r.poolSize);
    return new Opened(JedisLocks.of(client, HostAndPort.from(r.nodes.get(0)), config, options), seconds -> {
      for (int n = 0; n < r.poolSize; n++) {
        String key = "fill:" + n;
        Thread thread = new Thread(() -> client.blpop(seconds, key), Agent.THREADS + "fill");
        thread.setDaemon(true);
        thread.start();
      }
    });
  }

  @Override
  public Locks openQuorum(Request r, Options options) {
    Map<HostAndPort, UnifiedJedis> clients = new LinkedHashMap<>();
    r.nodes.forEach(node -> clients.put(HostAndPort.from(node), single(node, config(r), r.poolSize)));
    return JedisLocks.quorum(clients, config(r), options);
  }

  @Override
  public Plain plain(String node, int connections) {
    JedisClientConfig config = DefaultJedisClientConfig.builder().socketTimeoutMillis(60_000).build();
    UnifiedJedis client = single(node, config, connections);
    return new Plain() {
      @Override
      public Object call(int n, String... words) {
        byte[] name = words[0].getBytes(StandardCharsets.UTF_8);
        CommandArguments command = new CommandArguments(() -> name);
        for (int i = 1; i < words.length; i++) {
          Object word = words[i];
          command.add(word);
        }
        Object reply = client.executeCommand(command);
        return reply instanceof byte[] bytes ? new String(bytes, StandardCharsets.UTF_8) : reply;
      }

      @Override
      public void close() {
        client.close();
      }
    };
  }
}
