package example.slock;

import static example.slock.Protocol.unwrap;

import example.slock.Protocol.Owner;
import example.slock.Protocol.Signal;
import example.slock.Transport.Call;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executor;
import java.util.concurrent.ThreadLocalRandom;

/**
 * An acquisition at a server. All its commands have one owner token, so each may be sent again: it is the same hold, or the
 * same request in its place in the queue.
 */
final class ServerAcquisition extends Acquisition {
  /** How long a request waits for its message before it is sent again: a lost message costs no more. */
  private static final long SEND_AGAIN = 5 * Clock.SECOND;
  /** How long after the end of a wait a reply is still waited for. */
  static final long LATE_REPLY = 500 * Clock.MS;
  /** How long after the end of a wait the message that says so is still waited for. */
  private static final long LATE_MESSAGE = 50 * Clock.MS;
  /** How long the confirmation of a new channel is waited for before the request is sent. */
  private static final long SUBSCRIBING = 100 * Clock.MS;
  /** How long a call that has timed out waits to learn who has the lock. */
  private static final long HOLDERS_REPLY = 250 * Clock.MS;

  private final Server server;
  private final Owner owner;
  private final Call ask;
  /** Others had the lock, so it waits by a message from now on. */
  private boolean isWaiting;
  /** By which it waits; null: it has not waited. */
  private Listener.Ticket ticket;
  /** A copy may be on its way to the server. */
  private boolean isLoose;
  /** It waits on the server, or is held. */
  private boolean isQueued;

  ServerAcquisition(Server server, Owner owner, Call ask, Settings wanted, boolean isTry, Executor on) {
    super(server.settings, owner.names(), wanted, isTry, on);
    this.server = server;
    this.owner = owner;
    this.ask = ask;
  }

  @Override
  CompletableFuture<Grant> start() {
    CompletableFuture<Grant> result = super.start();
    result.whenComplete((got, error) -> server.listener.forget(ticket));
    return result;
  }

  /** Whether something may be left on the server if there was no grant. */
  boolean isOpen() {
    return isLoose || isQueued;
  }

  @Override
  Keeper keeper() {
    return server;
  }

  @Override
  Owner owner() {
    return owner;
  }

  @Override
  void abandon() {
    if (isOpen()) {
      server.deliver(owner.end(0), Protocol.REFUSE);
    }
  }

  @Override
  CompletableFuture<Throwable> failed(boolean isTimedOut) {
    long waited = Clock.now() - began;
    if (!isTimedOut) {
      return CompletableFuture.completedFuture(Server.noAnswer(owner.names(), waited, last));
    }
    return holders(0, Clock.now() + HOLDERS_REPLY).handle((holders, error) -> new SlockException.TimedOut(owner.names(),
        "timed out after " + Clock.text(waited), error == null ? holders : List.of(), null));
  }

  /** Those of the first key that somebody holds, if the server tells in time. */
  private CompletableFuture<List<Info.Holder>> holders(int n, long until) {
    if (n == owner.keys().size() || Clock.now() >= until) {
      return CompletableFuture.completedFuture(List.of());
    }
    String key = owner.keys().get(n);
    return server.send(new Call(key, 1, List.of("SLOCK.INFO", key, "FULL", "COUNT", 10L), List.of(), 0), until, on)
        .thenCompose(reply -> {
          List<Info.Holder> holders = Info.of(reply.value()).holders();
          boolean isKnown = !holders.isEmpty() || reply.value() instanceof Transport.ErrorReply;
          return isKnown ? CompletableFuture.completedFuture(holders) : holders(n + 1, until);
        });
  }

  @Override
  CompletableFuture<Grant> send() {
    if (isOnce) {
      return ask(null);
    }
    Listener.Found channel = server.listener.channel(owner.keys().get(0), isWaiting);
    if (channel.name() != null) {
      // A message that is late may tell of a hold that ended before this copy is sent.
      server.listener.forget(ticket);
      ticket = server.listener.ticket(owner.keys().get(0));
    }
    if (!channel.isNew()) {
      return ask(channel.name());
    }
    return pend(ticket.next(SUBSCRIBING)).thenComposeAsync(confirmed -> ask(channel.name()), on);
  }

  /** Sends the request, and waits by the channel if there is one. */
  private CompletableFuture<Grant> ask(String channel) {
    long now = Clock.now();
    long wait = Math.min(Protocol.SERVER_WAIT, Math.max(deadline - now, Clock.MS));
    Call call = channel == null ? ask : Protocol.waiting(ask, wait, channel, ticket.tag);
    long until = Math.min(Math.min(limit(), now + Server.TRY), Clock.plus(deadline, LATE_REPLY));
    return pend(server.number(call, until, on)).handle((reply, error) -> heard(reply, unwrap(error), channel, wait))
        .thenCompose(next -> next);
  }

  private CompletableFuture<Grant> heard(Server.Answer reply, Throwable error, String channel, long wait) {
    if (error == null && reply.number() > 0) {
      return confirm(reply.number(), reply.sent(), false);
    }
    boolean isAnswered = error == null || !Protocol.code(error).isEmpty();
    // The end of a token of the program's might end another hold of it, so there only copies count that are known.
    isLoose |= !isAnswered || reply != null && !reply.isAlone() && !owner.isGiven();
    if (isAnswered) {
      contact = Clock.now();
    }
    if (error != null) {
      boolean isDenied = channel != null && server.listener.failed(owner.keys().get(0), error);
      return CompletableFuture.failedFuture(isDenied ? Signal.AGAIN : error);
    }
    heard();
    if (channel != null) {
      isQueued = isWaiting = true;
      return await(reply.sent(), wait);
    } else if (isTry) {
      return CompletableFuture.completedFuture(null);
    } else if (isOnce) {
      return failed(true).thenCompose(CompletableFuture::failedFuture);
    }
    Signal next = isWaiting ? Signal.POLL : Signal.AGAIN; // it wants a channel, and may not have one
    isWaiting = true;
    return CompletableFuture.failedFuture(next);
  }

  /** Waits for the message of a request that is in the queue. */
  private CompletableFuture<Grant> await(long sent, long wait) {
    long most = SEND_AGAIN - ThreadLocalRandom.current().nextLong(SEND_AGAIN / 5);
    long pause = Math.min(Math.min(most, settings.retryWaitFor / 4), Clock.plus(deadline - Clock.now(), LATE_MESSAGE));
    return pend(ticket.next(pause)).thenComposeAsync(message -> {
      if (message == Listener.AGAIN) {
        return CompletableFuture.failedFuture(Signal.AGAIN);
      } else if (message.error() != null) {
        return CompletableFuture.failedFuture(message.error());
      } else if (message.fence() > 0) {
        return confirm(message.fence(), sent, true);
      }
      // The wait has run out on the server, which may be because no copy arrived in time. Before that, an operator has
      // withdrawn the request.
      isQueued = false;
      if (Clock.now() - sent < wait) {
        return failed(true).thenCompose(CompletableFuture::failedFuture);
      }
      return CompletableFuture.failedFuture(Signal.AGAIN);
    }, on);
  }

  /**
   * Makes sure of how long the hold is valid, and that enough replicas have it. The ttl began at a grant that may be long ago,
   * if a message told of it, and at a server that may not be the primary any more.
   */
  private CompletableFuture<Grant> confirm(long fence, long sent, boolean byMessage) {
    isQueued = true;
    contact = contact == Clock.NEVER ? began : contact;
    long since = Clock.now() - sent;
    boolean isSure = !byMessage || since <= wanted.ttl / 3 && !server.topology.hasFailover();
    if (isLeft()) {
      return CompletableFuture.failedFuture(Signal.LEFT);
    } else if (wanted.minReplicas == 0 && isSure && since < Lease.counted(wanted.ttl)) {
      return CompletableFuture.completedFuture(new Grant(fence, sent));
    }
    return pend(server.extend(owner, new Keeper.Extension(wanted.ttl, fence, wanted), Clock.now() + Server.TRY, on))
        .thenCompose(answer -> answer.number() == 0 ? CompletableFuture.failedFuture(Signal.AGAIN) // it is over by now
            : CompletableFuture.completedFuture(new Grant(fence, answer.sent())));
  }
}
