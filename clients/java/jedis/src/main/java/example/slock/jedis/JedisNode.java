package example.slock.jedis;

import example.slock.Call;
import example.slock.Transport;
import java.net.SocketTimeoutException;
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
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.ReentrantLock;
import java.util.stream.Stream;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.exceptions.JedisDataException;

/**
 * The connections to one server. A thread that may block sends its commands itself, when a connection is free for it. Other
 * commands go over lanes:
 * what has queued when a lane is free goes in one pipeline.
 */
final class JedisNode implements Transport.Node {
  private static final int RENEWAL_LANES = 4;
  private static final int MOST_CALLS = 1000;
  /** How long it may take to open a connection. */
  private static final long OPENING_MILLIS = 2000;

  private final JedisTransport transport;
  private final HostAndPort server;
  private final ConcurrentLinkedDeque<JedisConnection> idle = new ConcurrentLinkedDeque<>();
  private final Set<JedisConnection> open = ConcurrentHashMap.newKeySet();
  private final Semaphore permits;
  private final Lanes commands;
  private final Lanes renewals;

  JedisNode(JedisTransport transport, HostAndPort server) {
    this.transport = transport;
    this.server = server;
    permits = new Semaphore(transport.connections);
    commands = new Lanes(permits, transport.connections);
    renewals = new Lanes(new Semaphore(RENEWAL_LANES), RENEWAL_LANES);
  }

  @Override
  public String address() {
    return server.toString();
  }

  @Override
  public void send(Call call) {
    if (call.use() == Call.Use.ALONE) {
      JedisTransport.THREADS.execute(() -> exchange(List.of(call), false));
    } else if (call.use() == Call.Use.RENEWALS) {
      renewals.add(call);
    } else if (call.mayBlock() && permits.tryAcquire()) {
      try {
        exchange(List.of(call), true);
      } finally {
        permits.release();
      }
    } else {
      commands.add(call);
    }
  }

  /** Sends calls over one connection, and hands out the answers. */
  private void exchange(List<Call> calls, boolean isInterruptible) {
    List<Call> sent = calls.stream().filter(call -> !call.isOver()).toList();
    if (sent.isEmpty()) {
      return;
    }
    List<List<String>> words = sent.stream().flatMap(call -> call.commands().stream()).toList();
    long limit = sent.stream().mapToLong(Call::millisLeft).min().getAsLong();
    JedisConnection connection;
    try {
      connection = take(Math.min(limit, OPENING_MILLIS), isInterruptible);
    } catch (RuntimeException e) {
      sent.forEach(call -> call.failed(e, false));
      return;
    }
    sent.forEach(call -> call.whenExpired(connection::abort));
    List<Object> answers;
    try {
      answers = connection.exchange(words, limit == Long.MAX_VALUE ? 0 : limit, isInterruptible);
    } catch (RuntimeException e) {
      discard(connection);
      for (JedisConnection other = idle.poll(); other != null; other = idle.poll()) {
        discard(other); // they are probably lost too
      }
      boolean isSilence = e.getCause() instanceof SocketTimeoutException;
      sent.forEach(call -> {
        if (isSilence) {
          call.timedOut();
        } else {
          call.failed(e, true);
        }
      });
      return;
    }
    give(connection);
    int from = 0;
    for (Call call : sent) {
      int to = from + call.commands().size();
      call.answered(answers.subList(from, to));
      from = to;
    }
  }

  private JedisConnection take(long millis, boolean isInterruptible) {
    JedisConnection connection = transport.isClosed() ? null : idle.pollFirst();
    if (connection == null) {
      connection = JedisConnection.open(server, transport.config, millis, isInterruptible);
      open.add(connection);
    }
    return connection;
  }

  private void give(JedisConnection connection) {
    if (transport.isClosed() || connection.isBroken() || !open.contains(connection) || idle.size() >= transport.connections) {
      discard(connection);
    } else {
      idle.addFirst(connection);
    }
  }

  private void discard(JedisConnection connection) {
    open.remove(connection);
    connection.abort();
  }

  void closeConnections() {
    idle.clear();
    open.forEach(this::discard);
  }

  /** Threads that send what has queued. */
  private final class Lanes {
    private final Semaphore connections;
    private final int most;
    private final Queue<Call> queue = new ConcurrentLinkedQueue<>();
    private final AtomicInteger running = new AtomicInteger();

    Lanes(Semaphore connections, int most) {
      this.connections = connections;
      this.most = most;
    }

    void add(Call call) {
      queue.add(call);
      start();
    }

    private void start() {
      if (running.getAndUpdate(now -> Math.min(now + 1, most)) < most) {
        JedisTransport.THREADS.execute(this::run);
      }
    }

    private void run() {
      connections.acquireUninterruptibly();
      try {
        while (!queue.isEmpty()) {
          exchange(Stream.generate(queue::poll).limit(MOST_CALLS).takeWhile(Objects::nonNull).toList(), false);
        }
      } finally {
        connections.release();
        running.decrementAndGet();
      }
      if (!queue.isEmpty()) {
        start();
      }
    }
  }

  // --- listening

  @Override
  public CompletionStage<Listening> listen(Transport.Heard heard) {
    CompletableFuture<Listening> opened = new CompletableFuture<>();
    JedisTransport.THREADS.execute(() -> {
      Listening listening;
      try {
        listening = new Listening(JedisConnection.open(server, transport.config, OPENING_MILLIS, false), heard);
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
  static final class Listening implements Transport.Subscription {
    private final JedisConnection connection;
    private final Transport.Heard heard;
    private final ReentrantLock sending = new ReentrantLock();

    Listening(JedisConnection connection, Transport.Heard heard) {
      this.connection = connection;
      this.heard = heard;
    }

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
