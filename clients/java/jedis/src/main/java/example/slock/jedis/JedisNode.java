package example.slock.jedis;

import example.slock.Call;
import example.slock.Transport;
import java.util.Iterator;
import java.util.List;
import java.util.Objects;
import java.util.Queue;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedDeque;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.Semaphore;
import java.util.concurrent.locks.ReentrantLock;
import java.util.stream.Stream;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.JedisClientConfig;
import redis.clients.jedis.exceptions.JedisDataException;

/**
 * The connections to one server. A thread that may block sends its commands itself, when a connection is free for it. Other
 * commands go over lanes: what has queued when a lane is free goes in one pipeline.
 */
final class JedisNode implements Transport.Node {
  private static final int MOST_CALLS = 1000;
  /** How long it may take to open a connection. */
  private static final int OPENING_MILLIS = 2000;

  private final HostAndPort server;
  private final JedisClientConfig config;
  private final int mostIdle;
  private final ConcurrentLinkedDeque<JedisConnection> idle = new ConcurrentLinkedDeque<>();
  private final Set<JedisConnection> open = ConcurrentHashMap.newKeySet();
  private final Queue<Call> queue = new ConcurrentLinkedQueue<>();
  private final Semaphore lanes;
  private volatile boolean isClosed;

  JedisNode(HostAndPort server, JedisClientConfig config, int connections) {
    this.server = server;
    this.config = config;
    mostIdle = connections;
    lanes = new Semaphore(connections);
  }

  @Override
  public void send(Call call) {
    if (call.use() == Call.Use.ALONE) {
      JedisTransport.THREADS.execute(() -> exchange(List.of(call), false));
    } else if (call.mayBlock() && !idle.isEmpty() && lanes.tryAcquire()) {
      over(() -> exchange(List.of(call), true));
    } else {
      queue.add(call);
      sendQueued();
    }
  }

  /** Uses a lane. What has queued meanwhile is sent after that. */
  private void over(Runnable exchange) {
    try {
      exchange.run();
    } finally {
      lanes.release();
      sendQueued();
    }
  }

  /** In a thread of the library, if a lane is free. */
  private void sendQueued() {
    if (!queue.isEmpty() && lanes.tryAcquire()) {
      JedisTransport.THREADS.execute(() -> over(() -> {
        while (!queue.isEmpty()) {
          exchange(Stream.generate(queue::poll).limit(MOST_CALLS).takeWhile(Objects::nonNull).toList(), false);
        }
      }));
    }
  }

  /** Sends calls over one connection, and hands out the answers. */
  private void exchange(List<Call> calls, boolean isInterruptible) {
    List<Call> sent = calls.stream().filter(call -> !call.isOver()).toList();
    if (sent.isEmpty()) {
      return;
    }
    List<List<String>> words = sent.stream().flatMap(call -> call.commands().stream()).toList();
    long limit = sent.stream().mapToLong(Call::millisLeft).max().getAsLong();
    int timeout = limit > Integer.MAX_VALUE ? 0 : (int) limit;
    JedisConnection connection;
    try {
      connection = take((int) Math.min(limit, OPENING_MILLIS));
    } catch (RuntimeException e) {
      sent.forEach(call -> call.failed(e, false));
      return;
    }
    boolean isShared = sent.size() > 1; // others may still have answers
    sent.forEach(call -> call.whenExpired(isShared ? () -> {} : connection::abort));
    List<Object> answers;
    try {
      answers = connection.exchange(words, timeout, isInterruptible);
    } catch (RuntimeException e) {
      discard(connection);
      boolean isGivenUp = Thread.currentThread().isInterrupted();
      for (JedisConnection other = isGivenUp ? null : idle.poll(); other != null; other = idle.poll()) {
        discard(other); // they are probably lost too
      }
      sent.forEach(call -> call.failed(e, true));
      return;
    }
    give(connection);
    Iterator<Object> each = answers.iterator();
    sent.forEach(call -> call.answered(call.commands().stream().map(command -> each.next()).toList()));
  }

  private JedisConnection take(int millis) {
    JedisConnection connection = isClosed ? null : idle.pollFirst();
    if (connection == null) {
      connection = JedisConnection.open(server, config, millis);
      open.add(connection);
    }
    return connection;
  }

  private void give(JedisConnection connection) {
    if (isClosed || connection.isBroken() || idle.size() >= mostIdle) {
      discard(connection);
    } else {
      idle.addFirst(connection);
    }
  }

  private void discard(JedisConnection connection) {
    open.remove(connection);
    connection.abort();
  }

  @Override
  public void close() {
    isClosed = true;
    idle.clear();
    open.forEach(this::discard);
  }

  // --- listening

  @Override
  public CompletionStage<Listening> listen(Transport.Heard heard) {
    CompletableFuture<Listening> opened = new CompletableFuture<>();
    JedisTransport.THREADS.execute(() -> {
      Listening listening;
      try {
        listening = new Listening(JedisConnection.open(server, config, OPENING_MILLIS), heard, new ReentrantLock());
      } catch (RuntimeException e) {
        opened.completeExceptionally(e);
        return;
      }
      opened.complete(listening);
      listening.run();
    });
    return opened;
  }

  /** A connection that listens, and its thread. */
  record Listening(JedisConnection connection, Transport.Heard heard, ReentrantLock sending)
      implements Transport.Subscription {
    void run() {
      while (true) {
        try {
          hear(connection.read());
        } catch (JedisDataException e) {
          heard.refused(e);
        } catch (RuntimeException e) {
          connection.abort();
          heard.closed(e);
          return;
        }
      }
    }

    private void hear(Object message) {
      List<?> words = message instanceof List<?> list && list.size() == 3 ? list : List.of("pong");
      switch (words.get(0).toString()) {
        case "smessage" -> heard.message(words.get(2).toString());
        case "ssubscribe" -> heard.subscribed(words.get(1).toString());
        case "sunsubscribe" -> heard.unsubscribed(words.get(1).toString());
        default -> heard.alive();
      }
    }

    private void send(String... words) {
      sending.lock();
      try {
        connection.send(words);
      } catch (RuntimeException e) {
        connection.abort(); // its thread tells
      } finally {
        sending.unlock();
      }
    }

    @Override
    public void subscribe(String channel) {
      send("SSUBSCRIBE", channel);
    }

    @Override
    public void ping() {
      send("PING");
    }

    @Override
    public void close() {
      connection.abort();
    }
  }
}
