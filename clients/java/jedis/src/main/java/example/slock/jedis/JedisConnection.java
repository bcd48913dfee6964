package example.slock.jedis;

import java.io.FilterInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.InterruptedIOException;
import java.io.OutputStream;
import java.net.Socket;
import java.net.SocketException;
import java.net.SocketTimeoutException;
import java.util.List;
import java.util.stream.Stream;
import redis.clients.jedis.CommandArguments;
import redis.clients.jedis.Connection;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.DefaultJedisSocketFactory;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.JedisClientConfig;
import redis.clients.jedis.util.KeyValue;
import redis.clients.jedis.util.SafeEncoder;

/** One connection: sends commands and reads their answers. A thread that waits there can be interrupted. */
final class JedisConnection extends Connection {
  private final SlicedSocket socket;

  private JedisConnection(SlicedSocket socket, JedisClientConfig config) {
    super(() -> socket, config);
    this.socket = socket;
  }

  /** Opens one within the time. */
  static JedisConnection open(HostAndPort server, JedisClientConfig config, long timeoutMillis, boolean isInterruptible) {
    JedisClientConfig limited = config.getConnectionTimeoutMillis() <= timeoutMillis ? config
        : DefaultJedisClientConfig.builder().from(config).connectionTimeoutMillis((int) timeoutMillis).build();
    SlicedSocket socket = new SlicedSocket(new DefaultJedisSocketFactory(server, limited).createSocket());
    socket.begin(timeoutMillis, isInterruptible);
    try {
      return new JedisConnection(socket, config);
    } catch (RuntimeException e) {
      socket.abort();
      throw e;
    }
  }

  /** Sends commands, and gives their answers, errors among them. A timeout of 0 is none. */
  List<Object> exchange(List<List<String>> commands, long timeoutMillis, boolean isInterruptible) {
    for (List<String> words : commands) {
      write(words);
    }
    socket.begin(timeoutMillis, isInterruptible);
    return getMany(commands.size()).stream().map(JedisConnection::converted).toList();
  }

  private void write(List<String> words) {
    byte[] name = SafeEncoder.encode(words.get(0));
    CommandArguments arguments = new CommandArguments(() -> name);
    for (int n = 1; n < words.size(); n++) {
      arguments.add(words.get(n));
    }
    sendCommand(arguments);
  }

  /** Sends a command whose answer another thread reads. */
  void send(String... words) {
    write(List.of(words));
    flush();
  }

  /** Reads whatever comes next, without a limit of time. */
  Object read() {
    socket.begin(0, false);
    return converted(getUnflushedObject());
  }

  /** Closes the socket, also while another thread waits for an answer there. */
  void abort() {
    socket.abort();
  }

  /** Text for bytes. A map is a flat list. */
  private static Object converted(Object answer) {
    if (answer instanceof byte[] bytes) {
      return SafeEncoder.encode(bytes);
    } else if (answer instanceof List<?> list) {
      return list.stream()
          .flatMap(one -> one instanceof KeyValue<?, ?> pair ? Stream.of(pair.getKey(), pair.getValue()) : Stream.of(one))
          .map(JedisConnection::converted).toList();
    }
    return answer;
  }

  /** A socket whose reads end at a limit of time, and look now and then whether the thread was interrupted. */
  private static final class SlicedSocket extends Socket {
    private static final int SLICE_MILLIS = 50;

    private final Socket socket;
    private volatile long end; // as System.nanoTime counts
    private volatile boolean hasEnd;
    private volatile boolean isInterruptible;

    SlicedSocket(Socket socket) {
      this.socket = socket;
    }

    void begin(long timeoutMillis, boolean mayBeInterrupted) {
      end = System.nanoTime() + timeoutMillis * 1_000_000;
      hasEnd = timeoutMillis > 0;
      isInterruptible = mayBeInterrupted;
    }

    void abort() {
      try {
        socket.close();
      } catch (IOException e) {
        // it is of no more use anyway
      }
    }

    @Override
    public InputStream getInputStream() throws IOException {
      return new FilterInputStream(socket.getInputStream()) {
        @Override
        public int read(byte[] to, int offset, int length) throws IOException {
          while (true) {
            long left = hasEnd ? Math.max(1, (end - System.nanoTime()) / 1_000_000) : 0;
            int most = (int) Math.min(left, Integer.MAX_VALUE);
            socket.setSoTimeout(isInterruptible && (left == 0 || left > SLICE_MILLIS) ? SLICE_MILLIS : most);
            try {
              return in.read(to, offset, length);
            } catch (SocketTimeoutException e) {
              if (hasEnd && System.nanoTime() >= end) {
                throw e;
              }
              if (isInterruptible && Thread.currentThread().isInterrupted()) {
                throw new InterruptedIOException("interrupted");
              }
            }
          }
        }
      };
    }

    @Override
    public OutputStream getOutputStream() throws IOException {
      return socket.getOutputStream();
    }

    @Override
    public void setSoTimeout(int timeout) {
      // the time is that of begin
    }

    @Override
    public int getSoTimeout() throws SocketException {
      return socket.getSoTimeout();
    }

    @Override
    public boolean isBound() {
      return socket.isBound();
    }

    @Override
    public boolean isConnected() {
      return socket.isConnected();
    }

    @Override
    public boolean isClosed() {
      return socket.isClosed();
    }

    @Override
    public void close() throws IOException {
      socket.close();
    }
  }
}
