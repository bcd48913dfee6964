// SPDX-License-Identifier: MIT OR Apache-2.0

package example.slock.lettuce;

import example.slock.Locks;
import example.slock.Options;
import example.slock.Transport;
import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisURI;
import io.lettuce.core.cluster.RedisClusterClient;
import java.util.List;

/** Makes {@link Locks} from a client of Lettuce. It sends nothing. The client stays the program's. */
public final class LettuceLocks {
  private LettuceLocks() {}

  /** On the server of the address, or on the primary that its Sentinels name. */
  public static Locks of(RedisClient client, RedisURI uri) {
    return of(client, uri, new Options());
  }

  /** With options. */
  public static Locks of(RedisClient client, RedisURI uri, Options options) {
    return new Locks(new LettuceTransport(client, uri), options);
  }

  /** On a cluster. */
  public static Locks of(RedisClusterClient client, Options options) {
    return new Locks(new LettuceTransport(client), options);
  }

  /** On several independent servers. */
  public static Locks quorum(RedisClient client, List<RedisURI> uris, Options options) {
    return Locks.quorum(uris.stream().map(uri -> (Transport) new LettuceTransport(client, uri)).toList(), options);
  }
}
