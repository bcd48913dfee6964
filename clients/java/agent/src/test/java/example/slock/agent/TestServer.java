package example.slock.agent;

import java.io.File;
import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.nio.file.Files;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.TimeUnit;

/** A server of its own with the module: SLOCK_MODULE and SERVER say which, as for the other tests. */
final class TestServer implements AutoCloseable {
  private static final long LIMIT_SECONDS = 60;

  final int port;
  private final Process process;
  private final File folder;
  private final Base base = new JedisBase();
  final Base.Plain plain;

  TestServer(String... more) throws Exception {
    try (ServerSocket socket = new ServerSocket(0, 1, InetAddress.getLoopbackAddress())) {
      port = socket.getLocalPort();
    }
    folder = Files.createTempDirectory("slock-java").toFile();
    String module = System.getenv().getOrDefault("SLOCK_MODULE", "../../../target/release/libslock.so");
    String program = System.getenv().getOrDefault("SERVER", "redis-server");
    List<String> command = new ArrayList<>(List.of(program, "--port", "" + port, "--save", "", "--dir",
        folder.getPath(), "--logfile", "log", "--maxclients", "4000", "--loadmodule", new File(module).getCanonicalPath()));
    command.addAll(List.of(more));
    process = new ProcessBuilder(command).redirectErrorStream(true).redirectOutput(new File(folder, "out")).start();
    plain = base.plain("127.0.0.1:" + port, 4);
    until("the server to answer", () -> "PONG".equals(plain.call(0, "PING")));
  }

  /** A line of INFO slock. */
  long slock(String field) {
    for (String line : plain.call(0, "INFO", "slock").toString().split("\r\n")) {
      if (line.startsWith(field + ":")) {
        return Long.parseLong(line.substring(field.length() + 1));
      }
    }
    throw new AssertionError("INFO slock has no " + field);
  }

  /** How many connections of this type there are. */
  long connections(String type) {
    return plain.call(0, "CLIENT", "LIST", "TYPE", type).toString().lines().count();
  }

  /** Waits until something is so. */
  void until(String what, Callable<Boolean> isSo) throws Exception {
    long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(LIMIT_SECONDS);
    Exception last = null;
    while (System.nanoTime() < end) {
      try {
        if (isSo.call()) {
          return;
        }
      } catch (RuntimeException e) {
        last = e;
      }
      Thread.sleep(5);
    }
    throw new AssertionError("waited for " + what + "; log of the server:\n" + log(), last);
  }

  String log() throws IOException {
    File log = new File(folder, "log");
    return log.exists() ? Files.readString(log.toPath()) : Files.readString(new File(folder, "out").toPath());
  }

  /** Has the server reply no more (STOP), or again (CONT). */
  void signal(String name) throws Exception {
    new ProcessBuilder("kill", "-" + name, "" + process.pid()).inheritIO().start().waitFor();
  }

  @Override
  public void close() throws Exception {
    signal("CONT");
    plain.close();
    process.destroy();
    if (!process.waitFor(10, TimeUnit.SECONDS)) {
      process.destroyForcibly().waitFor();
    }
    for (File file : folder.listFiles()) {
      file.delete();
    }
    folder.delete();
  }
}
