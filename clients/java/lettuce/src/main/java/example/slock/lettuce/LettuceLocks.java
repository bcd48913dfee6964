package example.slock.lettuce;

import example.slock.Locks;
import example.slock.Options;
import example.slock.Quorum;
import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisURI;
import io.lettuce.core.cluster.RedisClusterClient;
import java.util.List;

/**
 * Makes {@link Locks} from a client of Lettuce, for synchronous, asynchronous and reactive programs. The connections are
 * those of the library: they share the client's resources and options, but never connect again or repeat a command by
 * themselves. The client stays the program's, which shuts it down after the locks.
 */
public final class LettuceLocks {
  private LettuceLocks() {}

  /** On the server of the address, or on the primary that its Sentinels name. */
  public static Locks of(RedisClient client, RedisURI uri) {
    return of(client, uri, new Options());
  }

  /** With options. */
  public static Locks of(RedisClient client, RedisURI uri, Options options) {
    return new Locks(LettuceTransport.of(client, uri), options);
  }

  /** On a cluster. */
  public static Locks of(RedisClusterClient client, Options options) {
    return new Locks(LettuceTransport.of(client), options);
  }

  /** On several independent servers. */
  public static Quorum quorum(RedisClient client, List<RedisURI> uris, Options options) {
    return new Quorum(uris.stream().map(uri -> LettuceTransport.of(client, uri)).toList(), options);
  }
}
