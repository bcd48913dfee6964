// SPDX-License-Identifier: MIT OR Apache-2.0

package example.slock;

import example.slock.Protocol.Message;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicBoolean;

/**
 * The channels by which requests wait: one for a server, one for each slot in a cluster. Each copy of a request has a ticket with
 * a secret tag, so that its message reaches it and nobody else can send one.
 */
final class Listener {
  /** How long a channel may have no subscription before that is a warning. */
  private static final long TRIAL = 3 * Clock.SECOND;
  /** How long before there is another channel in its place. */
  private static final long RETRY = 30 * Clock.SECOND;

  /** A message that says that one may have been missed. */
  static final Message AGAIN = new Message("", 0, null);

  private final Server server;
  /** By slot. */
  private final Map<Integer, Channel> channels = new ConcurrentHashMap<>();
  private final AtomicBoolean isWarned = new AtomicBoolean();

  Listener(Server server) {
    this.server = server;
  }

  static final class Channel {
    final String name;
    private final Map<String, Ticket> tickets = new ConcurrentHashMap<>();
    /** Since when the server has not confirmed the subscription; NEVER: it has. */
    private volatile long downSince = Clock.now();
    private final CompletableFuture<Runnable> stop = new CompletableFuture<>();

    private Channel(String name) {
      this.name = name;
    }

    boolean isUp() {
      return downSince == Clock.NEVER;
    }

    Ticket ticket() {
      Ticket ticket = new Ticket();
      tickets.put(ticket.tag, ticket);
      return ticket;
    }

    void forget(Ticket ticket) {
      tickets.remove(ticket.tag);
      ticket.heard.complete(AGAIN);
    }
  }

  /** The channel for a key, or null. With {@code open} it subscribes to one if there is none. */
  Channel channel(String key, boolean open) {
    int slot = server.transport.slot(key);
    Channel known = channels.get(slot);
    long down = known == null || known.isUp() ? 0 : Clock.now() - known.downSince;
    if (down > TRIAL && !isWarned.getAndSet(true)) {
      server.locks.report.polls("the server confirms no subscription: may the user use the channels?");
    }
    if (!open || known != null && down <= RETRY) {
      return known;
    } else if (known != null) {
      close(known);
    }
    Channel made = new Channel(name(slot));
    Channel other = channels.putIfAbsent(slot, made);
    if (other != null) {
      return other;
    }
    // Others may send to the channel: a tag that is not known is ignored.
    made.stop.complete(server.transport.listen(made.name, payload -> {
      Message message = Message.of(payload);
      Ticket ticket = made.tickets.get(message.tag());
      if (ticket != null) {
        ticket.heard.complete(message);
      }
    }, () -> again(made)));
    return made;
  }

  /** Notes that a request was refused because of its channel, and tells whether it has to poll. */
  boolean failed(Channel channel, Throwable error) {
    String code = Protocol.code(error);
    boolean isDenied = code.equals("NOPERM") && error.getMessage().contains("channel");
    if (isDenied) {
      channel.downSince = Math.min(channel.downSince, Clock.now());
    } else if (code.equals("NOSUBSCRIBER")) { // the server that has the key may be another one
      close(channel);
    }
    return isDenied;
  }

  /** Has all requests of a channel sent again. */
  private void again(Channel channel) {
    channel.downSince = Clock.NEVER;
    isWarned.set(false);
    channel.tickets.values().forEach(ticket -> ticket.heard.complete(AGAIN));
    if (server.topology.hasFailover()) {
      server.locks.confirm();
    }
  }

  /** What receives the message of one copy. */
  static final class Ticket {
    final String tag = Protocol.draw();
    private final CompletableFuture<Message> heard = new CompletableFuture<>();

    /** The message; AGAIN after a time without one. */
    CompletableFuture<Message> next(long pause) {
      var timer = Clock.after(pause, () -> heard.complete(AGAIN));
      heard.whenComplete((message, error) -> timer.cancel(false));
      return heard;
    }
  }

  /** Ends a channel, unless that has happened. What waits by it is sent again, by another one. */
  private void close(Channel channel) {
    if (channels.values().remove(channel)) {
      channel.stop.thenAccept(Runnable::run);
      channel.tickets.values().forEach(ticket -> ticket.heard.complete(AGAIN));
    }
  }

  /** Ends all subscriptions. */
  void close() {
    channels.values().forEach(this::close);
  }

  /** A new channel in the slot. */
  private String name(int slot) {
    String name = "waits:" + Protocol.draw();
    for (int n = 0; slot >= 0; n++) {
      String inSlot = "{" + n + "}." + name;
      if (server.transport.slot(inSlot) == slot) {
        return inSlot;
      }
    }
    return name;
  }
}
