// SPDX-License-Identifier: MIT OR Apache-2.0

package example.slock;

import static example.slock.Protocol.unwrap;

import example.slock.Protocol.Owner;
import example.slock.Protocol.Signal;
import example.slock.Transport.Call;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ThreadLocalRandom;

/**
 * An acquisition at a server. All its commands have one owner token, so each may be sent again: it is the same hold, or the
 * same request in its place in the queue.
 */
final class ServerAcquisition extends Acquisition {
  /** How long a request waits for its message before it is sent again: a lost message costs no more. */
  private static final long SEND_AGAIN = 5 * Clock.SECOND;
  /** How long after the end of a wait the message that says so is still waited for. */
  private static final long LATE_MESSAGE = 50 * Clock.MS;
  /** How long a call that has timed out waits to learn who has the lock. */
  private static final long HOLDERS_REPLY = 250 * Clock.MS;

  private final Server server;
  private final Owner owner;
  final Call call;
  /** What the server has to take before the lock is asked for; null from then on. */
  Call question;
  /** Others had the lock, so it waits by a message from now on. */
  private boolean isWaiting;
  private Listener.Channel channel;
  /** Of the last copy: a message that is late may tell of a hold that ended before that was sent. */
  private Listener.Ticket ticket;
  /** A copy may be on its way to the server. */
  private boolean isLoose;
  /** It waits on the server, or is held. */
  private boolean isQueued;

  ServerAcquisition(Server server, Owner owner, Call call, Settings wanted, boolean isTry) {
    super(server.locks, owner.names(), wanted, isTry);
    this.server = server;
    this.owner = owner;
    this.call = call;
  }

  @Override
  CompletableFuture<Grant> start() {
    return super.start().whenComplete((got, error) -> forget());
  }

  /** Whether something may be left on the server if there was no grant. */
  boolean isOpen() {
    return isLoose || isQueued;
  }

  @Override
  void abandon() {
    if (isOpen()) {
      // The end of a token of the program's does not withdraw it.
      server.deliver(Protocol.REFUSE, owner.isGiven() ? List.of(owner.withdraw(), owner.end(0)) : List.of(owner.end(0)));
    }
  }

  @Override
  CompletableFuture<Grant> failed(boolean isPastDeadline) {
    return isPastDeadline && last == null && hasReply ? timedOut() : super.failed(isPastDeadline);
  }

  private CompletableFuture<Grant> timedOut() {
    String text = "timed out after " + Clock.text(Clock.now() - began);
    return holders(0, Clock.now() + HOLDERS_REPLY).exceptionally(error -> List.of()).thenCompose(
        holders -> CompletableFuture.failedFuture(new SlockException.TimedOut(names, text, holders, null)));
  }

  /** Those of the first key that somebody holds, if the server tells in time. */
  private CompletableFuture<List<Info.Holder>> holders(int n, long until) {
    if (n == owner.keys().size() || Clock.now() >= until) {
      return CompletableFuture.completedFuture(List.of());
    }
    String key = owner.keys().get(n);
    return server.send(new Call(key, List.of("SLOCK.INFO", key, "FULL", "COUNT", 10L), List.of()), until).thenCompose(reply -> {
      List<Info.Holder> holders = Info.of(reply.value()).holders();
      boolean isKnown = !holders.isEmpty() || reply.value() instanceof Transport.ErrorReply;
      return isKnown ? CompletableFuture.completedFuture(holders) : holders(n + 1, until);
    });
  }

  private void forget() {
    if (channel != null) {
      channel.forget(ticket);
    }
  }

  @Override
  CompletableFuture<Grant> attempt() {
    if (question == null) {
      return request();
    }
    return pend(server.question(question, until())).handle((reply, failure) -> {
      Throwable error = unwrap(failure);
      if (error == null || !Protocol.code(error).isEmpty()) {
        noteReply();
      }
      if (error != null) {
        throw Protocol.failure(error);
      }
      question = null;
      last = null;
      failures = 0;
      return reply;
    }).thenCompose(reply -> request());
  }

  /** Until when a reply to what is sent now is waited for. */
  private long until() {
    return Math.min(end(), Clock.now() + Server.TRY);
  }

  /** Sends the request, and waits for what comes of it. */
  private CompletableFuture<Grant> request() {
    forget();
    channel = isOnce ? null : server.listener.channel(owner.keys().get(0), isWaiting);
    ticket = channel == null ? null : channel.ticket();
    boolean isUp = channel != null && channel.isUp();
    if (isUp || channel == null || !isWaiting) {
      return ask(isUp);
    }
    // It polls until the server has confirmed the subscription, which may be never.
    long pause = Math.min(Polling.REFUSED.pause(polls++), deadline - Clock.now());
    return pend(ticket.next(pause)).thenCompose(confirmed -> {
      forget();
      ticket = channel.ticket();
      return ask(channel.isUp());
    });
  }

  private CompletableFuture<Grant> ask(boolean byMessage) {
    long wait = Math.min(Protocol.SERVER_WAIT, Math.max(deadline - Clock.now(), Clock.MS));
    boolean wasLoose = isLoose;
    isLoose = true;
    return pend(server.number(byMessage ? Protocol.waiting(call, wait, channel.name, ticket.tag) : call, until()))
        .handle((reply, failure) -> {
          Throwable error = unwrap(failure);
          if (error == null || !Protocol.code(error).isEmpty()) {
            noteReply();
            // The end of a token of the program's might end another hold of it, so there only copies count that are known.
            isLoose = wasLoose || reply != null && !reply.isAlone() && !owner.isGiven();
          }
          if (error != null) {
            boolean isDenied = byMessage && server.listener.failed(channel, error);
            return CompletableFuture.<Grant>failedFuture(isDenied ? Signal.AGAIN : error);
          }
          return reply.number() > 0 ? confirm(reply.number(), reply.sent(), false) : refused(reply.sent(), byMessage, wait);
        }).thenCompose(next -> next);
  }

  private CompletableFuture<Grant> refused(long sent, boolean byMessage, long wait) {
    last = null;
    failures = 0;
    if (byMessage) {
      isQueued = isWaiting = true;
      return await(sent, wait);
    } else if (isTry) {
      return CompletableFuture.completedFuture(null);
    } else if (isOnce) {
      return timedOut();
    }
    isWaiting = true;
    return CompletableFuture.failedFuture(Signal.AGAIN);
  }

  /** Waits for the message of a request that is in the queue. */
  private CompletableFuture<Grant> await(long sent, long wait) {
    long most = SEND_AGAIN - ThreadLocalRandom.current().nextLong(SEND_AGAIN / 5);
    long pause = Math.min(Math.min(most, locks.settings.retryWaitFor / 4), Clock.plus(deadline - Clock.now(), LATE_MESSAGE));
    return pend(ticket.next(pause)).thenCompose(message -> {
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
      return Clock.now() - sent < wait ? timedOut() : CompletableFuture.failedFuture(Signal.AGAIN);
    });
  }

  /**
   * Makes sure of how long the hold is valid, and that enough replicas have it. The ttl began at a grant that may be long ago,
   * if a message told of it, and at a server that may not be the primary any more.
   */
  private CompletableFuture<Grant> confirm(long fence, long sent, boolean byMessage) {
    isQueued = true;
    long since = Clock.now() - sent;
    boolean isSure = !byMessage || since <= wanted.ttl / 3 && !server.topology.hasFailover();
    if (wanted.minReplicas == 0 && isSure && since < server.counted(wanted.ttl)) {
      return CompletableFuture.completedFuture(new Grant(server, owner, fence, sent));
    }
    return pend(server.extend(owner, wanted.ttl, fence, wanted, Clock.now() + Server.TRY)).thenCompose(
        answer -> answer.number() == 0 ? CompletableFuture.failedFuture(Signal.AGAIN) // it is over by now
            : CompletableFuture.completedFuture(new Grant(server, owner, fence, answer.sent())));
  }
}
