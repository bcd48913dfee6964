package example.slock;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import org.junit.jupiter.api.Test;

class ServersTest {
  /** A cluster whose slots are those of the letters from a on. */
  private static final class Cluster implements Transport {
    final List<String> closed = new ArrayList<>();
    List<String> primaries;

    @Override
    public boolean isCluster() {
      return true;
    }

    @Override
    public int slot(String key) {
      return key.charAt(0) - 'a';
    }

    @Override
    public CompletionStage<List<String>> look() {
      return CompletableFuture.completedFuture(primaries);
    }

    @Override
    public Node node(String address) {
      return new Node() {
        @Override
        public void send(Call call) {}

        @Override
        public CompletionStage<Subscription> listen(Heard heard) {
          return new CompletableFuture<>();
        }

        @Override
        public void close() {
          closed.add(address);
        }
      };
    }

    @Override
    public String name() {
      return "cluster";
    }
  }

  @Test
  void theConnectionsToNodesThatAreNoPrimariesAnyMoreAreClosed() {
    Cluster cluster = new Cluster();
    Servers servers = new Servers(cluster, new Reporter(Reporter.SILENT));
    cluster.primaries = new ArrayList<>(List.of("one:1", "two:2", "two:2", "never:4"));
    cluster.primaries.add(null);
    servers.find("a").join();
    servers.find("b").join();
    cluster.primaries = List.of("one:1", "one:1", "one:1", "three:3", "three:3");
    servers.look().join();
    assertEquals(List.of("two:2"), cluster.closed);
    servers.close();
    assertEquals(List.of("two:2", "one:1"), cluster.closed);
  }
}
