package example.slock.agent;

import example.slock.Locks;
import example.slock.Options;
import example.slock.lettuce.LettuceLocks;
import io.lettuce.core.ClientOptions;
import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisCredentials;
import io.lettuce.core.RedisCredentialsProvider;
import io.lettuce.core.RedisURI;
import io.lettuce.core.TimeoutOptions;
import io.lettuce.core.api.StatefulRedisConnection;
import io.lettuce.core.cluster.RedisClusterClient;
import io.lettuce.core.codec.StringCodec;
import io.lettuce.core.output.NestedMultiOutput;
import io.lettuce.core.protocol.CommandArgs;
import io.lettuce.core.protocol.ProtocolKeyword;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;

/** Lettuce. */
@SuppressWarnings("deprecation")
final class LettuceBase implements Base {
  private static RedisURI uri(Request r, String node) {
    return authenticated(r, RedisURI.create(Base.host(node), Base.port(node)));
  }

  private static RedisURI authenticated(Request r, RedisURI uri) {
    if (r.passwordFile != null) {
      uri.setCredentialsProvider(RedisCredentialsProvider.from(() -> RedisCredentials.just(r.user, r.password())));
    } else if (r.user != null) {
      uri.setCredentialsProvider(new io.lettuce.core.StaticCredentialsProvider(r.user, r.password.toCharArray()));
    }
    if (r.readTimeoutMs != null) {
      uri.setTimeout(Duration.ofMillis(r.readTimeoutMs));
    }
    return uri;
  }

  private static RedisClient client(Request r) {
    RedisClient client = RedisClient.create();
    if (r.readTimeoutMs != null && r.readTimeoutMs > 0) {
      client.setOptions(ClientOptions.builder().timeoutOptions(TimeoutOptions.enabled(Duration.ofMillis(r.readTimeoutMs))).build());
    }
    return client;
  }

  @Override
  public Opened open(Request r, Options options) {
    RedisClient client = client(r);
    Filler filler = seconds -> {
      for (int n = 0; n < r.poolSize; n++) {
        client.connect(uri(r, r.nodes.get(0))).async().blpop((long) Math.ceil(seconds), "fill:" + System.nanoTime());
      }
    };
    switch (r.kind) {
      case "cluster":
        List<RedisURI> nodes = r.nodes.stream().map(node -> uri(r, node)).toList();
        return new Opened(LettuceLocks.of(RedisClusterClient.create(nodes), options), filler);
      case "sentinel":
        RedisURI.Builder sentinels = RedisURI.builder().withSentinelMasterId(r.service);
        r.nodes.forEach(node -> sentinels.withSentinel(Base.host(node), Base.port(node)));
        return new Opened(LettuceLocks.of(client, authenticated(r, sentinels.build()), options), filler);
      default:
        return new Opened(LettuceLocks.of(client, uri(r, r.nodes.get(0)), options), filler);
    }
  }

  @Override
  public Locks openQuorum(Request r, Options options) {
    return LettuceLocks.quorum(client(r), r.nodes.stream().map(node -> uri(r, node)).toList(), options);
  }

  private record Word(String name) implements ProtocolKeyword {
    @Override
    public byte[] getBytes() {
      return name.getBytes(StandardCharsets.UTF_8);
    }
  }

  @Override
  public Plain plain(String node, int connections) {
    RedisClient client = RedisClient.create();
    List<StatefulRedisConnection<String, String>> all = new ArrayList<>();
    for (int n = 0; n < connections; n++) {
      all.add(client.connect(RedisURI.create(Base.host(node), Base.port(node))));
    }
    return new Plain() {
      @Override
      public Object call(int n, String... words) {
        CommandArgs<String, String> args =
            new CommandArgs<>(StringCodec.UTF8).addValues(Arrays.copyOfRange(words, 1, words.length));
        List<Object> reply =
            all.get(n % all.size()).sync().dispatch(new Word(words[0]), new NestedMultiOutput<>(StringCodec.UTF8), args);
        return reply.isEmpty() ? null : reply.get(0);
      }

      @Override
      public void close() {
        client.shutdown();
      }
    };
  }
}
