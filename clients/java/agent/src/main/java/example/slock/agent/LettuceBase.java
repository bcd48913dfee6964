package example.slock.agent;

import example.slock.Locks;
import example.slock.Options;
import example.slock.Quorum;
import example.slock.lettuce.LettuceLocks;
import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisURI;
import io.lettuce.core.api.StatefulRedisConnection;
import io.lettuce.core.cluster.RedisClusterClient;
import io.lettuce.core.codec.StringCodec;
import io.lettuce.core.output.NestedMultiOutput;
import io.lettuce.core.protocol.CommandArgs;
import io.lettuce.core.protocol.ProtocolKeyword;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;

/** Lettuce. One client serves all, because its threads do. */
final class LettuceBase implements Base {
  private final RedisClient client = RedisClient.create();

  private static RedisURI uri(Request r, String node) {
    RedisURI uri = RedisURI.create(Base.hostAndPort(node)[0], Base.port(node));
    authenticate(r, uri);
    return uri;
  }

  private static void authenticate(Request r, RedisURI uri) {
    if (r.user != null) {
      uri.setAuthentication(r.user, r.password.toCharArray());
    }
  }

  @Override
  public Locks open(Request r, Options options) {
    switch (r.kind) {
      case "cluster":
        List<RedisURI> nodes = r.nodes.stream().map(node -> uri(r, node)).toList();
        return LettuceLocks.of(RedisClusterClient.create(client.getResources(), nodes), options);
      case "sentinel":
        RedisURI.Builder sentinels = RedisURI.builder().withSentinelMasterId(r.service);
        r.nodes.forEach(node -> sentinels.withSentinel(Base.hostAndPort(node)[0], Base.port(node)));
        RedisURI uri = sentinels.build();
        authenticate(r, uri);
        return LettuceLocks.of(client, uri, options);
      default:
        return LettuceLocks.of(client, uri(r, r.nodes.get(0)), options);
    }
  }

  @Override
  public Quorum openQuorum(Request r, Options options) {
    return LettuceLocks.quorum(client, r.nodes.stream().map(node -> uri(r, node)).toList(), options);
  }

  private record Word(byte[] bytes) implements ProtocolKeyword {
    @Override
    public byte[] getBytes() {
      return bytes;
    }
  }

  @Override
  public Plain plain(String node, int connections) {
    List<StatefulRedisConnection<String, String>> all = new ArrayList<>();
    for (int n = 0; n < connections; n++) {
      all.add(client.connect(RedisURI.create(Base.hostAndPort(node)[0], Base.port(node))));
    }
    return new Plain() {
      @Override
      public Object call(int n, String... words) {
        Word name = new Word(words[0].getBytes(StandardCharsets.UTF_8));
        CommandArgs<String, String> args =
            new CommandArgs<>(StringCodec.UTF8).addValues(Arrays.copyOfRange(words, 1, words.length));
        List<Object> answer = all.get(n % all.size()).sync().dispatch(name, new NestedMultiOutput<>(StringCodec.UTF8), args);
        return answer.isEmpty() ? null : answer.get(0);
      }

      @Override
      public void close() {
        all.forEach(StatefulRedisConnection::close);
      }
    };
  }

  @Override
  public void close() {
    client.shutdown();
  }
}
