package example.slock.agent;

import example.slock.Locks;
import example.slock.Options;
import example.slock.Quorum;

/** A base library: makes locks, and sends plain commands. */
interface Base {
  Locks open(Request request, Options options);

  Quorum openQuorum(Request request, Options options);

  /** A client of the base library with so many connections, used as its programs do. */
  Plain plain(String node, int connections);

  /** Ends the clients that open made. */
  void close();

  /** A plain client. The thread n uses connection n, where threads cannot share one. */
  interface Plain extends AutoCloseable {
    Object call(int n, String... words);

    @Override
    void close();
  }

  static String[] hostAndPort(String node) {
    int colon = node.lastIndexOf(':');
    return new String[] {node.substring(0, colon), node.substring(colon + 1)};
  }

  static int port(String node) {
    return Integer.parseInt(hostAndPort(node)[1]);
  }

}
