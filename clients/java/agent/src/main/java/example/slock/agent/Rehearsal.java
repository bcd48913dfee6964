package example.slock.agent;

import example.slock.Hold;
import example.slock.Locks;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.util.List;

/**
 * Loads and compiles what the scenarios need, because some have times of a few hundred milliseconds: it locks at a server
 * that only seems to be one. A lock is refused, and granted to whoever waits.
 */
final class Rehearsal {
  private static final String HELLO = String.join("\r\n", "%6", "+server", "+redis", "+version", "+7.0.0", "+proto", ":3", "+id", ":1",
      "+mode", "+standalone", "+role", "+master", "");

  private final ServerSocket server;
  /** The client has asked for RESP3. */
  private volatile boolean hasPushes;
  private volatile OutputStream listening;
  private int asked;

  private Rehearsal() throws IOException {
    server = new ServerSocket(0, 50, InetAddress.getLoopbackAddress());
  }

  static void play(Base base) throws Exception {
    Rehearsal rehearsal = new Rehearsal();
    thread(rehearsal::accept);
    try {
      for (int n = 0; n < 3; n++) {
        Request r = new Request();
        r.op = "open";
        r.retryForMs = 30_000L; // the first command loads hundreds of classes
        r.nodes = List.of("127.0.0.1:" + rehearsal.server.getLocalPort());
        try (Locks locks = base.open(r, r.options()).locks()) {
          locks.write("a").acquireAsync().get().release();
          Hold hold = locks.read("a").acquire();
          hold.upgrade();
          hold.extend(Request.ms(1000));
          hold.release();
        }
      }
    } finally {
      rehearsal.server.close();
    }
  }

  private static void thread(Runnable work) {
    Thread thread = new Thread(work, Agent.THREADS + "rehearsal");
    thread.setDaemon(true);
    thread.start();
  }

  private void accept() {
    try {
      while (true) {
        Socket socket = server.accept();
        thread(() -> serve(socket));
      }
    } catch (IOException e) {
      // it is over
    }
  }

  private void serve(Socket socket) {
    try (socket) {
      BufferedReader in = new BufferedReader(new InputStreamReader(socket.getInputStream(), StandardCharsets.UTF_8));
      for (String line = in.readLine(); line != null; line = in.readLine()) {
        String[] words = new String[Integer.parseInt(line.substring(1))];
        for (int n = 0; n < words.length; n++) {
          in.readLine();
          words[n] = in.readLine();
        }
        answer(words, socket.getOutputStream());
      }
    } catch (IOException e) {
      // the client has gone
    }
  }

  private void answer(String[] words, OutputStream to) throws IOException {
    String all = String.join(" ", words);
    if (words[0].equals("SSUBSCRIBE")) {
      listening = to;
      write(to, array("ssubscribe", words[1]) + ":1\r\n");
    } else if (all.contains(" NOTIFY ") && listening == null) {
      write(to, "-NOSUBSCRIBER not yet\r\n");
    } else if (all.contains(" NOTIFY ")) {
      write(to, "$-1\r\n");
      String message = "7 " + words[words.length - 1];
      write(listening, array("smessage", words[words.length - 2]) + "$" + message.length() + "\r\n" + message + "\r\n");
    } else if (words[0].startsWith("SLOCK.")) {
      write(to, words[0].endsWith(".LOCK") && !all.contains("WAIT") && asked++ % 2 == 0 ? ":0\r\n" : ":1\r\n");
    } else {
      write(to, words[0].equals("HELLO") ? HELLO : "+OK\r\n");
      hasPushes |= words[0].equals("HELLO");
    }
  }

  private String array(String... words) {
    StringBuilder all = new StringBuilder(hasPushes ? ">3\r\n" : "*3\r\n");
    for (String word : words) {
      all.append("$").append(word.length()).append("\r\n").append(word).append("\r\n");
    }
    return all.toString();
  }

  private static void write(OutputStream to, String text) throws IOException {
    to.write(text.getBytes(StandardCharsets.UTF_8));
    to.flush();
  }
}
