package example.slock;

import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;

/** Brings commands to the server that has the key: the only one, the primary that Sentinels name, or a node of a cluster. */
final class Servers {
  final Transport transport;
  final Reporter report;
  private final Map<String, Transport.Node> nodes = new ConcurrentHashMap<>();
  private final Mutex mutex = new Mutex();
  private CompletableFuture<List<String>> looking = CompletableFuture.completedFuture(null);
  private volatile List<String> primaries; // null: not known yet
  volatile boolean isClosed;

  Servers(Transport transport, Reporter report) {
    this.transport = transport;
    this.report = report;
  }

  /** The connections to the server with this address. */
  Transport.Node at(String address) {
    Transport.Node node = nodes.computeIfAbsent(address, transport::node);
    if (isClosed) {
      node.close();
    }
    return node;
  }

  private CompletableFuture<List<String>> primaries() {
    List<String> known = primaries;
    return known != null ? CompletableFuture.completedFuture(known) : look();
  }

  /** The primary that has the key. */
  CompletableFuture<Transport.Node> find(String key) {
    return primaries().thenApply(all -> {
      String address = all.get(transport.slot(key));
      if (address == null) {
        throw new IllegalStateException("no node has the slot of " + key);
      }
      return at(address);
    });
  }

  /** All primaries that have keys. */
  CompletableFuture<List<Transport.Node>> all() {
    return primaries().thenApply(all -> all.stream().filter(Objects::nonNull).distinct().map(this::at).toList());
  }

  /** Looks which servers there are, once at a time. What is known is used meanwhile. */
  CompletableFuture<List<String>> look() {
    return mutex.get(() -> !looking.isDone() ? looking
        : (looking = transport.look().thenApply(this::follow).toCompletableFuture()));
  }

  /** The connections to those that are no primaries any more are closed. */
  private List<String> follow(List<String> found) {
    List<String> before = primaries;
    primaries = found;
    if (before != null && !before.equals(found)) {
      before.stream().distinct().filter(address -> address != null && !found.contains(address))
          .map(nodes::remove).filter(Objects::nonNull).forEach(Transport.Node::close);
    }
    return found;
  }

  /** Has the servers looked at again when one does not answer: a failover may be over. */
  void note(Throwable error) {
    report.reached(error);
    if (error != null && Answers.isTemporary(error)) {
      look();
    }
  }

  void close() {
    isClosed = true;
    nodes.values().forEach(Transport.Node::close);
  }
}
