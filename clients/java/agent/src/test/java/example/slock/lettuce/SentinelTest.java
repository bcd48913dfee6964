package example.slock.lettuce;

import static org.junit.jupiter.api.Assertions.assertTrue;

import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisURI;
import java.io.File;
import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

@Timeout(60)
class SentinelTest {
  @TempDir
  private Path folder;
  private final List<Process> processes = new ArrayList<>();

  /** Starts a server with these lines of configuration, and gives its port. */
  private int start(String lines, String... more) throws Exception {
    int port;
    try (ServerSocket socket = new ServerSocket(0, 1, InetAddress.getLoopbackAddress())) {
      port = socket.getLocalPort();
    }
    Path file = Files.writeString(folder.resolve(port + ".conf"), "port " + port + "\ndir " + folder + "\n" + lines);
    List<String> command = new ArrayList<>(List.of(System.getenv().getOrDefault("SERVER", "redis-server"), file.toString()));
    command.addAll(List.of(more));
    processes.add(new ProcessBuilder(command).redirectErrorStream(true).redirectOutput(new File(folder.toFile(), "log")).start());
    while (true) {
      try (Socket socket = new Socket("127.0.0.1", port)) {
        return port;
      } catch (IOException e) {
        Thread.sleep(10);
      }
    }
  }

  /** A channel that another one replaces leaves no second chain of questions behind. */
  @Test
  void sentinelIsAskedOnceASecondHoweverManyChannelsThereWere() throws Exception {
    RedisClient client = RedisClient.create();
    try {
      int primary = start("save \"\"\n");
      int sentinel = start("sentinel monitor m 127.0.0.1 " + primary + " 1\n", "--sentinel");
      LettuceTransport transport = new LettuceTransport(client, RedisURI.Builder.sentinel("127.0.0.1", sentinel, "m").build());
      for (int n = 0; n < 20; n++) {
        transport.listen("replaced" + n, message -> {}, () -> {}).run();
      }
      transport.listen("last", message -> {}, () -> {});
      Thread.sleep(1500);
      try (var plain = client.connect(RedisURI.create("127.0.0.1", sentinel))) {
        Pattern commands = Pattern.compile("total_commands_processed:(\\d+)");
        long[] counts = new long[2];
        for (int n = 0; n < 2; n++) {
          Matcher found = commands.matcher(plain.sync().info("stats"));
          assertTrue(found.find());
          counts[n] = Long.parseLong(found.group(1));
          Thread.sleep(2500);
        }
        assertTrue(counts[1] > counts[0] + 1 && counts[1] < counts[0] + 15, counts[0] + " and then " + counts[1] + " commands");
      }
      transport.close();
    } finally {
      processes.forEach(Process::destroyForcibly);
      client.shutdown();
    }
  }
}
