package example.slock.agent;

import example.slock.Locks;
import example.slock.Options;

/** A Redis client library: makes locks, and sends plain commands. */
interface Base {
  /** What open made. */
  record Opened(Locks locks, Filler filler) {}

  /** Occupies all connections of the program's pool with a command that blocks. */
  interface Filler {
    void fill(double seconds) throws Exception;
  }

  Opened open(Request request, Options options);

  Locks openQuorum(Request request, Options options);

  /** A client with so many connections, used as its programs do. */
  Plain plain(String node, int connections);

  /** A plain client. The thread n uses connection n, where threads cannot share one. */
  interface Plain extends AutoCloseable {
    Object call(int n, String... words);

    @Override
    void close();
  }

  static String host(String node) {
    return node.substring(0, node.lastIndexOf(':'));
  }

  static int port(String node) {
    return Integer.parseInt(node.substring(node.lastIndexOf(':') + 1));
  }
}
