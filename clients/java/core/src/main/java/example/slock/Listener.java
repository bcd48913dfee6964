package example.slock;

import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicBoolean;

/**
 * The connections that listen: channels that are subscribed to, and tags, by which each acquisition gets its own messages.
 * It knows nothing of what they say.
 */
final class Listener {
  /** How long a listening connection may be silent while somebody waits. Then it is tested, for as long. */
  private static final long PING_EVERY = 5 * Clock.SECOND;
  /** What a subscription that was closed ends with: requests are asked again after it. */
  private static final Throwable SILENT = new Answers.Unanswered(null, true);

  private final Servers servers;
  private final Mutex mutex = new Mutex();
  private final Map<Integer, Channel> channels = new HashMap<>(); // by the slot of the keys
  private final Map<String, Connection> connections = new HashMap<>(); // by the address of the node
  private final Map<String, Acquisition> tags = new ConcurrentHashMap<>();
  private volatile boolean isDenied;
  private volatile boolean isClosed;

  Listener(Servers servers) {
    this.servers = servers;
  }

  /** One that is subscribed to. It is not used again after it was lost. */
  static final class Channel {
    final String name;
    /** Done when the server has confirmed the subscription, or it has failed. */
    final CompletableFuture<Reply> ready = new CompletableFuture<>();
    volatile boolean isGone;
    private final int slot;
    private volatile Connection connection;

    Channel(String place) {
      slot = slot(place);
      name = (place.isEmpty() ? "" : "{" + place + "}.") + "waits:" + Commands.newToken();
    }
  }

  /** Whether requests for the key cannot wait by NOTIFY. */
  boolean isForbidden(String key) {
    return isDenied || servers.transport.isCluster() && place(key).isEmpty();
  }

  void forbid(Throwable error) {
    if (!isDenied) {
      isDenied = true;
      servers.report.blocks(error);
    }
  }

  /**
   * The part of a key that tells its slot. In a cluster a channel has to be in the slot of the keys, so it has that in
   * its name. There is none for a key that is hashed as a whole and has a brace in it.
   */
  static String place(String key) {
    int start = key.indexOf('{');
    int end = start < 0 ? -1 : key.indexOf('}', start + 1);
    if (end > start + 1) {
      return key.substring(start + 1, end);
    }
    return key.contains("}") ? "" : key;
  }

  /** The slot of a cluster, by CRC16/XMODEM. */
  static int slot(String place) {
    int crc = 0;
    for (byte b : place.getBytes(StandardCharsets.UTF_8)) {
      crc ^= (b & 0xff) << 8;
      for (int bit = 0; bit < 8; bit++) {
        crc = (crc & 0x8000) != 0 ? crc << 1 ^ 0x1021 : crc << 1;
      }
    }
    return (crc & 0xffff) % 16384;
  }

  /** The channel for the key. If there is none it subscribes to one, or gives null. */
  Channel channel(String key, boolean subscribes) {
    String place = servers.transport.isCluster() ? place(key) : "";
    Channel made = new Channel(place);
    Channel channel = mutex.get(() -> {
      Channel known = channels.get(made.slot);
      if (known == null && subscribes && !isClosed) {
        channels.put(made.slot, made);
      }
      return known != null ? known : subscribes ? made : null;
    });
    if (channel == made && isClosed) {
      made.ready.complete(Reply.failed(new SlockException.Closed()));
    } else if (channel == made) {
      servers.transport.find(key).whenComplete((node, error) -> {
        if (error != null) {
          remove(made, new Answers.Unanswered(error, false));
        } else {
          subscribe(made, node);
        }
      });
    }
    return channel;
  }

  private void subscribe(Channel channel, Transport.Node node) {
    Connection made = new Connection(node.address());
    mutex.run(() -> {
      Connection known = connections.putIfAbsent(node.address(), made);
      channel.connection = known != null ? known : made;
    });
    if (channel.connection == made) {
      made.open(node);
    }
    channel.connection.opened.thenAccept(subscription -> subscription.subscribe(channel.name));
  }

  /** Forgets a channel that is lost, so that the next request subscribes to a new one. */
  void remove(Channel channel, Throwable error) {
    mutex.run(() -> channels.remove(channel.slot, channel));
    channel.isGone = true;
    servers.note(error);
    channel.ready.complete(Reply.failed(error));
    tags.values().forEach(acquisition -> acquisition.lost(channel));
  }

  String addTag(Acquisition acquisition) {
    String tag = Commands.newToken();
    tags.put(tag, acquisition);
    return tag;
  }

  void removeTag(String tag) {
    tags.remove(tag);
  }

  /** Closes the connection of a channel, and so all requests that wait by it. */
  void close(Channel channel, Throwable error) {
    Connection connection = channel.connection;
    if (connection != null) {
      connection.closed(error);
    }
  }

  void close() {
    List<Connection> all = mutex.get(() -> {
      isClosed = true;
      return List.copyOf(connections.values());
    });
    all.forEach(connection -> connection.closed(new SlockException.Closed()));
  }

  /** One connection that listens. */
  private final class Connection implements Transport.Heard {
    private final String address;
    private final CompletableFuture<Transport.Subscription> opened = new CompletableFuture<>();
    private final AtomicBoolean isEnded = new AtomicBoolean();
    private volatile long heardAt = Clock.now();
    private volatile boolean isTested;

    Connection(String address) {
      this.address = address;
    }

    void open(Transport.Node node) {
      Timers.at(Clock.in(PING_EVERY), this::test);
      node.listen(this).whenComplete((subscription, error) -> {
        if (error != null) {
          closed(new Answers.Unanswered(error.getCause() != null ? error.getCause() : error, false));
        } else {
          opened.complete(subscription);
          if (isEnded.get()) {
            subscription.close();
          }
        }
      });
    }

    /** While somebody waits, the connection may not be silent for long. */
    private void test() {
      if (isEnded.get()) {
        return;
      }
      boolean isSilent = !tags.isEmpty() && Clock.now() - heardAt >= PING_EVERY;
      if (isSilent && (isTested || !opened.isDone())) {
        closed(SILENT);
        return;
      }
      if (isSilent) {
        isTested = true;
        opened.join().ping();
      }
      long next = isTested || tags.isEmpty() ? Clock.in(PING_EVERY) : heardAt + PING_EVERY;
      Timers.at(Math.max(next, Clock.in(Clock.MS)), this::test);
    }

    private List<Channel> own() {
      return mutex.get(() -> channels.values().stream().filter(channel -> channel.connection == this).toList());
    }

    @Override
    public void alive() {
      heardAt = Clock.now();
      isTested = false;
    }

    @Override
    public void message(String text) {
      alive();
      int space = text.indexOf(' ');
      Acquisition acquisition = space < 0 ? null : tags.get(text.substring(space + 1));
      if (acquisition != null) {
        acquisition.deliver(text.substring(0, space));
      }
    }

    @Override
    public void subscribed(String name) {
      alive();
      own().stream().filter(c -> c.name.equals(name)).forEach(c -> c.ready.complete(new Reply(name, null)));
    }

    /** The slot has moved, or the server has become a replica. */
    @Override
    public void unsubscribed(String name) {
      alive();
      own().stream().filter(c -> c.name.equals(name)).forEach(c -> remove(c, Answers.ASK_AGAIN));
    }

    /** It need not say for which channel: those that are not ready are subscribed to again. */
    @Override
    public void refused(Throwable error) {
      alive();
      if (Answers.hasCode(error, "NOPERM")) {
        forbid(error);
      }
      own().stream().filter(channel -> !channel.ready.isDone()).forEach(channel -> remove(channel, error));
    }

    @Override
    public void closed(Throwable error) {
      mutex.run(() -> connections.remove(address, this));
      if (isEnded.getAndSet(true)) {
        return;
      }
      boolean isKnown = error instanceof SlockException || error instanceof Answers.Unanswered;
      Throwable why = isKnown ? error : new Answers.Unanswered(error, true);
      own().forEach(channel -> remove(channel, why));
      opened.thenAccept(Transport.Subscription::close);
    }
  }
}
