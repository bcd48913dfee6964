package example.slock;

import static java.nio.charset.StandardCharsets.UTF_8;

import example.slock.Protocol.Message;
import java.util.ArrayDeque;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;

/**
 * The channels by which requests wait: one for a server, one for each slot in a cluster. Each copy of a request has a ticket with
 * a secret tag, so that its message reaches it and nobody else can send one.
 */
final class Listener {
  /** How long a channel may have no subscription on a server that replies. Then requests poll for a while. */
  private static final long TRIAL = 3 * Clock.SECOND;
  private static final int SLOTS = 16384;
  /** What a ticket keeps at most; if there is more, its request is sent again anyway. */
  private static final int MOST_KEPT = 4;

  /** A message that says that one may have been missed. */
  static final Message AGAIN = new Message("", 0, null);

  private final Server server;
  private final Map<Integer, Channel> channels = new HashMap<>();
  private final Map<String, Ticket> tickets = new HashMap<>();
  /** Until when requests poll. */
  private long deniedUntil;

  Listener(Server server) {
    this.server = server;
  }

  private static final class Channel {
    final int slot;
    final String name;
    boolean wasUp;
    /** When a request was first refused because it has no subscription. */
    long refusedAt = Clock.NEVER;
    Runnable stop;

    Channel(int slot, String name) {
      this.slot = slot;
      this.name = name;
    }
  }

  /** The name of a channel, or null if there is none to wait by. */
  record Found(String name, boolean isNew) {}

  /** The channel for a key. With {@code open} it subscribes to one if there is none. */
  Found channel(String key, boolean open) {
    Channel channel;
    synchronized (this) {
      int slot = slot(key);
      Channel known = channels.get(slot);
      if (Clock.now() < deniedUntil || known == null && !open) {
        return new Found(null, false);
      }
      if (known != null) {
        return new Found(known.name, false);
      }
      channel = new Channel(slot, name(slot, key));
      channels.put(slot, channel);
    }
    Runnable stop = server.transport.listen(channel.name, this::deliver, () -> again(channel));
    boolean isLeft;
    synchronized (this) {
      channel.stop = stop;
      isLeft = channels.get(channel.slot) != channel;
    }
    if (isLeft) {
      stop.run();
    }
    return new Found(channel.name, true);
  }

  /** Notes that a request was refused because of its channel, and tells whether it has to poll. */
  boolean failed(String key, Throwable error) {
    String code = Protocol.code(error);
    boolean isDenied = code.equals("NOPERM") && error.getMessage().contains("channel");
    if (!isDenied && !code.equals("NOSUBSCRIBER")) {
      return false;
    }
    Runnable stop = null;
    synchronized (this) {
      Channel channel = channels.get(slot(key));
      if (channel == null) {
        return isDenied;
      }
      channel.refusedAt = Math.min(channel.refusedAt, Clock.now());
      if (isDenied || !channel.wasUp && Clock.now() - channel.refusedAt > TRIAL) {
        deniedUntil = Clock.now() + 10 * TRIAL;
        server.locks.report.polls(error.getMessage());
      } else if (!channel.wasUp) {
        return false;
      }
      channels.remove(channel.slot); // the server that has the key may be another one
      stop = channel.stop;
    }
    if (stop != null) {
      stop.run();
    }
    return isDenied;
  }

  /** Has all requests of a channel sent again. */
  private void again(Channel channel) {
    List<Ticket> all;
    synchronized (this) {
      channel.wasUp = true;
      all = tickets.values().stream().filter(ticket -> ticket.slot == channel.slot).toList();
    }
    all.forEach(ticket -> ticket.put(AGAIN));
    if (server.topology.hasFailover()) {
      server.locks.confirm();
    }
  }

  /** Hands a message to its ticket. Others may send to the channel: a tag that is not known is ignored. */
  private void deliver(String payload) {
    Message message = Message.of(payload);
    Ticket ticket;
    synchronized (this) {
      ticket = tickets.get(message.tag());
    }
    if (ticket != null) {
      ticket.put(message);
    }
  }

  /** What receives the messages of one acquisition. */
  static final class Ticket {
    final String tag = Protocol.draw();
    private final int slot;
    private final ArrayDeque<Message> kept = new ArrayDeque<>();
    private CompletableFuture<Message> waiting;

    private Ticket(int slot) {
      this.slot = slot;
    }

    /** The next message; AGAIN after a time without one. */
    CompletableFuture<Message> next(long pause) {
      CompletableFuture<Message> next = new CompletableFuture<>();
      synchronized (this) {
        Message first = kept.poll();
        if (first != null) {
          next.complete(first);
          return next;
        }
        waiting = next;
      }
      var timer = Clock.after(pause, () -> next.complete(AGAIN));
      next.whenComplete((message, error) -> timer.cancel(false));
      return next;
    }

    private void put(Message message) {
      CompletableFuture<Message> next;
      synchronized (this) {
        next = waiting;
        waiting = null;
        if ((next == null || next.isDone()) && kept.size() < MOST_KEPT) {
          kept.add(message);
        }
      }
      if (next != null && !next.complete(message)) {
        put(message);
      }
    }
  }

  synchronized Ticket ticket(String key) {
    Ticket ticket = new Ticket(slot(key));
    tickets.put(ticket.tag, ticket);
    return ticket;
  }

  synchronized void forget(Ticket ticket) {
    if (ticket != null) {
      tickets.remove(ticket.tag);
    }
  }

  /** Ends all subscriptions. */
  void close() {
    List<Channel> all;
    synchronized (this) {
      all = List.copyOf(channels.values());
      channels.clear();
    }
    all.stream().map(channel -> channel.stop).filter(stop -> stop != null).forEach(Runnable::run);
  }

  private int slot(String key) {
    return server.topology.isCluster() ? slotOf(hashTag(key)) : 0;
  }

  /** A new channel in the slot of the key. */
  private String name(int slot, String key) {
    if (!server.topology.isCluster()) {
      return "waits:" + Protocol.draw();
    }
    String tag = hashTag(key);
    for (int n = 0; tag.contains("}"); n++) { // no name has this as its hash tag
      if (slotOf(Integer.toString(n)) == slot) {
        tag = Integer.toString(n);
      }
    }
    return "{" + tag + "}.waits:" + Protocol.draw();
  }

  /** The part of a key that tells its slot. */
  private static String hashTag(String key) {
    int open = key.indexOf('{');
    int close = key.indexOf('}', open + 1);
    return open >= 0 && close > open + 1 ? key.substring(open + 1, close) : key;
  }

  /** The slot of a hash tag: CRC16/XMODEM, by the Redis Cluster specification. */
  static int slotOf(String tag) {
    int crc = 0;
    for (byte b : tag.getBytes(UTF_8)) {
      crc ^= (b & 0xff) << 8;
      for (int bit = 0; bit < 8; bit++) {
        crc = (crc & 0x8000) != 0 ? crc << 1 ^ 0x1021 : crc << 1;
      }
    }
    return (crc & 0xffff) % SLOTS;
  }
}
