package example.slock.jedis;

import java.io.IOException;
import java.net.SocketTimeoutException;
import java.util.List;
import java.util.stream.Stream;
import redis.clients.jedis.Connection;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.JedisClientConfig;
import redis.clients.jedis.PushConsumerChain;
import redis.clients.jedis.exceptions.JedisConnectionException;
import redis.clients.jedis.util.KeyValue;
import redis.clients.jedis.util.RedisInputStream;
import redis.clients.jedis.util.SafeEncoder;

/** One connection: sends commands and reads their answers. A thread that waits for an answer can be interrupted. */
final class JedisConnection extends Connection {
  private static final int SLICE_MILLIS = 50;

  private boolean isInterruptible;

  private JedisConnection(HostAndPort server, JedisClientConfig config) {
    super(server, config);
  }

  /** Opens one within about the time. */
  static JedisConnection open(HostAndPort server, JedisClientConfig config, int timeoutMillis) {
    return new JedisConnection(server, DefaultJedisClientConfig.builder().from(config)
        .connectionTimeoutMillis(Math.min(timeoutMillis, config.getConnectionTimeoutMillis()))
        .socketTimeoutMillis(timeoutMillis).build());
  }

  /** Sends commands, and gives their answers, errors among them. A timeout of 0 is none. */
  List<Object> exchange(List<List<String>> commands, int timeoutMillis, boolean mayBeInterrupted) {
    commands.forEach(this::write);
    setSoTimeout(timeoutMillis);
    isInterruptible = mayBeInterrupted;
    return getMany(commands.size()).stream().map(JedisConnection::converted).toList();
  }

  private void write(List<String> words) {
    byte[] name = SafeEncoder.encode(words.get(0));
    sendCommand(() -> name, words.subList(1, words.size()).toArray(String[]::new));
  }

  /** Sends a command whose answer another thread reads. */
  void send(String... words) {
    write(List.of(words));
    flush();
  }

  /** Reads whatever comes next, without a limit of time. */
  Object read() {
    setSoTimeout(0);
    return converted(getUnflushedObject());
  }

  /** Opens it, and never again: Jedis would do that without a login, and in database 0. */
  @Override
  public void connect() {
    if (isConnected()) {
      return;
    } else if (isBroken()) {
      throw new JedisConnectionException("the connection was closed");
    }
    super.connect();
  }

  /** Closes the socket, also while another thread waits for an answer there. */
  void abort() {
    try {
      forceDisconnect();
    } catch (IOException e) {
      // it is of no more use anyway
    }
  }

  /** Waits for an answer in slices, because a read does not end when its thread is interrupted. */
  @Override
  protected Object protocolRead(RedisInputStream in, PushConsumerChain consumers) {
    int timeout = getSoTimeout();
    long end = System.nanoTime() + timeout * 1_000_000L;
    while (isInterruptible && (timeout == 0 || System.nanoTime() < end)) {
      setSoTimeout(SLICE_MILLIS);
      try {
        in.peek((byte) 0);
        break;
      } catch (JedisConnectionException e) {
        if (!(e.getCause() instanceof SocketTimeoutException) || Thread.currentThread().isInterrupted()) {
          throw e;
        }
      } finally {
        setSoTimeout(timeout);
      }
    }
    return super.protocolRead(in, consumers);
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
}
