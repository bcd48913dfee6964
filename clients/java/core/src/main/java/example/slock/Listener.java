package example.slock;

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
  /** How often a connection is tested while somebody waits. It has so long to answer. */
  private static final long PING_EVERY = 5 * Clock.SECOND;
  /** What a subscription that was closed ends with: requests are asked again after it. */
  private static final Throwable SILENT = new Answers.Unanswered(null, true);

  private final Servers servers;
  private final Map<Integer, Channel> channels = new ConcurrentHashMap<>(); // by the slot of the keys
  private final Map<Transport.Node, Connection> connections = new ConcurrentHashMap<>();
  private final Map<String, Acquisition> tags = new ConcurrentHashMap<>();
  private volatile boolean isDenied;

  Listener(Servers servers) {
    this.servers = servers;
  }

  /** One that is subscribed to. It is not used again after it was lost. */
  static final class Channel {
    final String name;
    /** Done when the server has confirmed the subscription, or it has failed. */
    final CompletableFuture<Reply> ready = new CompletableFuture<>();
    private final int slot;
    private volatile Connection connection;

    Channel(int slot, String place) {
      this.slot = slot;
      name = (place.isEmpty() ? "" : "{" + place + "}.") + "waits:" + Commands.newToken();
    }
  }

  /** Whether requests for the key cannot wait by NOTIFY. */
  boolean isForbidden(String key) {
    return isDenied || servers.transport.isCluster() && place(key).isEmpty();
  }

  /**
   * What has to be in braces in the name of a channel in the slot of the key: what of the key is hashed. There is nothing
   * for a key that is hashed as a whole and has a brace in it, nor where there are no slots.
   */
  private String place(String key) {
    int start = key.indexOf('{');
    int end = start < 0 ? -1 : key.indexOf('}', start + 1);
    String hashed = end > start + 1 ? key.substring(start + 1, end) : key;
    return hashed.contains("}") || !servers.transport.isCluster() ? "" : hashed;
  }

  /** The user may not use channels: what wants to wait by them is asked again, and blocks. */
  Reply forbid(Throwable error) {
    if (!isDenied) {
      isDenied = true;
      servers.report.blocks(error);
    }
    return Reply.ASK_AGAIN;
  }

  /** The channel for the key. If there is none it subscribes to one, or gives null. */
  Channel channel(String key, boolean subscribes) {
    int slot = servers.transport.slot(key);
    Channel known = channels.get(slot);
    if (known != null || !subscribes) {
      return known;
    }
    Channel made = new Channel(slot, place(key));
    Channel other = channels.putIfAbsent(slot, made);
    if (other != null) {
      return other;
    }
    servers.find(key).whenComplete((node, error) -> {
      if (error != null) {
        remove(made, new Answers.Unanswered(error, false));
      } else {
        subscribe(made, node);
      }
    });
    return made;
  }

  private void subscribe(Channel channel, Transport.Node node) {
    Connection made = new Connection(node);
    // In one step: a connection that is lost after this knows of the channel.
    Connection connection = connections.compute(node, (same, known) -> channel.connection = known != null ? known : made);
    if (connection == made) {
      made.open();
    }
    if (servers.isClosed) {
      connection.closed(new SlockException.Closed());
    }
    connection.opened.thenAccept(subscription -> subscription.subscribe(channel.name));
  }

  /** Forgets a channel that is lost, so that the next request subscribes to a new one. */
  void remove(Channel channel, Throwable error) {
    channels.remove(channel.slot, channel);
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

  /** After the servers. */
  void close() {
    connections.values().forEach(connection -> connection.closed(new SlockException.Closed()));
  }

  /** One connection that listens. */
  private final class Connection implements Transport.Heard {
    private final Transport.Node node;
    private final CompletableFuture<Transport.Subscription> opened = new CompletableFuture<>();
    private final AtomicBoolean isEnded = new AtomicBoolean();
    private volatile boolean isTested;

    Connection(Transport.Node node) {
      this.node = node;
    }

    void open() {
      Timers.at(Clock.in(PING_EVERY), this::test);
      node.listen(this).whenComplete((subscription, error) -> {
        if (error != null) {
          closed(new Answers.Unanswered(error, false));
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
      if (isTested) {
        closed(SILENT);
      } else if (!isEnded.get()) {
        if (!tags.isEmpty()) {
          isTested = true;
          opened.thenAccept(Transport.Subscription::ping);
        }
        Timers.at(Clock.in(PING_EVERY), this::test);
      }
    }

    private List<Channel> own() {
      return channels.values().stream().filter(channel -> channel.connection == this).toList();
    }

    @Override
    public void alive() {
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
      if (own().isEmpty()) {
        closed(Answers.ASK_AGAIN); // perhaps nobody listens at this node any more
      }
    }

    /** It need not say for which channel: those that are not ready are subscribed to again. */
    @Override
    public void refused(Throwable error) {
      alive();
      Throwable why = Answers.hasCode(error, "NOPERM") ? forbid(error).error() : error;
      own().stream().filter(channel -> !channel.ready.isDone()).forEach(channel -> remove(channel, why));
    }

    @Override
    public void closed(Throwable error) {
      connections.remove(node, this);
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
