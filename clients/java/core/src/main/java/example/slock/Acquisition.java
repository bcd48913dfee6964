package example.slock;

import java.util.List;
import java.util.Objects;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Future;
import java.util.stream.IntStream;

/**
 * One use of a request, or one change of the mode of a hold, from its first command to a grant or an error: its limits of
 * time, its pauses, and what each answer leads to. All its attempts have one token and one tag, so whichever of them is
 * carried out, its answer counts.
 *
 * <p>It goes on in steps, one at a time: each is a future that ends with an answer, at a limit of time, or when somebody
 * gives the acquisition up. No thread waits, but a caller for the result.
 */
final class Acquisition {
  /** How often a request that waits asks again while a command of it has no answer: that may be the request then. */
  private static final long ASK_IN_DOUBT = 5 * Clock.SECOND;
  /** How long after the beginning of a wait by blocking the server is tested first, if there is so much time. */
  private static final long TEST_AFTER = Clock.SECOND;
  private static final long TEST_EVERY = 5 * Clock.SECOND;

  /** The grant, or an error; null when a try is refused. */
  final CompletableFuture<Lease.Grant> result = new CompletableFuture<>();
  private final Locks locks;
  private final Commands owner;
  private final Options wanted;
  private final Mode mode;
  private final List<String> ask;
  /** Its caller takes a refusal for an answer. */
  private final boolean isTry;
  private final boolean isOnce;
  /** What is given up of a change of mode is not released. */
  private final boolean isChange;
  private final long deadline;
  private final long limit;

  private volatile Throwable left;
  private volatile CompletableFuture<Reply> step;

  // what is known so far; only the current step changes it
  private long contact = Clock.NONE;
  /** A command had no answer. */
  boolean doubt;
  /** The request stands in the queue of the server, or was granted there. */
  private boolean isQueued;
  private long sent = Clock.NONE;
  private boolean wasRefused;
  private Throwable last;
  private int failures;
  private int polls;

  private volatile Listener.Channel channel;
  private String tag;
  /** The end of the wait that was asked for last. What came before it was asked for does not count. */
  private volatile CompletableFuture<Reply> inbox;
  /** Of the last test of a wait by blocking; null before the first. */
  private volatile Boolean isReached;

  Acquisition(Locks locks, Commands owner, Request request, List<String> ask, boolean isTry, boolean isChange) {
    this.locks = locks;
    this.owner = owner;
    this.ask = ask;
    this.isTry = isTry;
    this.isChange = isChange;
    mode = request.mode;
    wanted = request.options;
    isOnce = isTry || wanted.wait == 0;
    deadline = isTry ? Clock.NONE : Clock.in(wanted.wait);
    limit = Clock.in(wanted.retryFor);
  }

  void start() {
    if (left != null) {
      finish(null, Answers.LEFT);
    } else if (isChange || locks.permitted.contains(permission())) {
      attempt();
    } else {
      askPermission();
    }
  }

  /** Gives it up. What was granted before stays so. */
  void cancel(Throwable why) {
    if (left == null) {
      left = why;
    }
    CompletableFuture<Reply> current = step;
    if (current != null) {
      current.complete(Reply.LEFT);
    }
  }

  /** A step that ends at a limit of time, and with LEFT when the acquisition is given up. */
  private CompletableFuture<Reply> begin(long until) {
    CompletableFuture<Reply> begun = new CompletableFuture<>();
    step = begun;
    if (left != null) {
      begun.complete(Reply.LEFT);
    } else if (until != Clock.NONE) {
      Future<?> timer = Timers.at(until, () -> begun.complete(Reply.NO_ANSWER));
      begun.whenComplete((reply, error) -> timer.cancel(false));
    }
    return begun;
  }

  /** Whether something may be left on the server. */
  boolean isOpen() {
    return doubt || isQueued;
  }

  private void finish(Lease.Grant grant, Throwable error) {
    if (tag != null) {
      locks.listener.removeTag(tag);
    }
    if (grant == null && isOpen() && !isChange) {
      Runnable giveUp = () -> locks.giveUp(owner, wanted.ttl, channel);
      if (wanted.open == null) {
        giveUp.run();
      } else {
        wanted.open.accept(giveUp);
      }
    }
    if (error == null) {
      result.complete(grant);
    } else {
      result.completeExceptionally(Answers.named(error == Answers.LEFT ? left : error));
    }
  }

  // --- attempts

  /** The command that will release, which the user has to be permitted. */
  private String permission() {
    return owner.release(mode, 1).get(0);
  }

  /**
   * Asks, before anything is held, whether the user may release what is asked for: a token that nobody has asks for the
   * end of a hold that nobody has. After any answer but NOPERM it does not ask again.
   */
  private void askPermission() {
    Commands nobody = new Commands(owner.keys(), Commands.newToken(), true);
    List<List<String>> commands = nobody.cancel();
    commands.add(nobody.release(mode, Commands.NO_FENCE));
    commands.add(nobody.releaseInAnyMode("FENCE", Commands.NO_FENCE));
    send(commands, Call.Use.COMMANDS, answerBy()).thenAccept(all -> {
      Throwable refusal = IntStream.range(0, commands.size()).mapToObj(n -> all.at(n).error())
          .filter(error -> Answers.hasCode(error, "NOPERM")).findFirst().orElse(null);
      if (refusal != null) {
        finish(null, refusal);
        return;
      }
      if (all.error() == null) {
        locks.permitted.add(permission());
      }
      note(all.error());
      attempt();
    });
  }

  private void attempt() {
    if (left != null) {
      finish(null, Answers.LEFT);
      return;
    }
    Options.Waiting waiting = locks.options.waiting;
    CompletableFuture<Reply> answer;
    if (isOnce || waiting == Options.Waiting.POLL) {
      answer = ask(ask);
    } else if (waiting == Options.Waiting.BLOCK || locks.listener.isForbidden(owner.key())) {
      answer = byBlocking();
    } else {
      answer = byNotify();
    }
    answer.whenComplete((reply, failed) -> {
      if (failed != null) {
        finish(null, failed);
      } else if (reply.error() == null) {
        isQueued = true;
        confirm(reply.number());
      } else {
        judge(reply.error());
      }
    });
  }

  /** Asks again, with the same token, or ends. */
  private void judge(Throwable error) {
    long pause = 0;
    boolean hasMore = false;
    if (error == Answers.TAKEN && isTry) {
      finish(null, null);
      return;
    } else if (error == Answers.TAKEN) {
      last = null;
      // Else the wait has run out on the server, or was withdrawn there.
      if (!isOnce && locks.options.waiting == Options.Waiting.POLL) {
        pause = locks.options.polling.pause(polls);
        hasMore = locks.options.polling.hasMore(polls++) && Clock.until(deadline) >= pause;
      }
    } else if (Answers.isTemporary(error)) {
      note(error);
      long rest = Clock.until(end());
      pause = Math.min(Polling.AFTER_ERRORS.pause(failures++), rest);
      hasMore = rest > 0;
    } else {
      finish(null, error);
      return;
    }
    if (hasMore) {
      begin(Clock.in(pause)).thenAccept(reply -> attempt()); // which looks whether it was given up
    } else {
      finish(null, new SlockException.TimedOut(isChange ? "change of mode" : "lock", owner.keys(), Answers.cause(last)));
    }
  }

  /** Keeps an error after which the request is asked again. One that says only that nothing came tells the least. */
  private void note(Throwable error) {
    boolean isTold = Answers.isTemporary(error) && error != Answers.ASK_AGAIN;
    if (isTold && (last == null || error != Answers.NO_ANSWER)) {
      last = error;
    }
  }

  /** Until when the request is asked again while no answer comes. */
  private long end() {
    boolean wasAnswered = !isOnce && contact != Clock.NONE;
    return Math.min(deadline, wasAnswered ? contact + locks.options.retryWaitFor : limit);
  }

  /** Until when an answer is waited for: for no longer than {@link Options#retryFor}. */
  private long answerBy() {
    return Math.min(end(), locks.retryEnd()) + Repetition.LATE_ANSWER;
  }

  /** Until when the end of a wait is waited for. */
  private long waitBy() {
    return Clock.plus(deadline, Repetition.LATE_ANSWER);
  }

  private void touch() {
    contact = Clock.now();
  }

  /** Sends commands that give no hold, as a step. */
  private CompletableFuture<Reply> send(List<List<String>> commands, Call.Use use, long until) {
    return locks.send(owner, commands, use, until, begin(Clock.NONE), late -> {});
  }

  /** Sends one command that asks for the lock, and gives its fence, TAKEN for 0, or null. */
  private CompletableFuture<Reply> ask(List<String> command) {
    long before = Clock.now();
    return locks.send(owner, List.of(command), Call.Use.COMMANDS, answerBy(), begin(Clock.NONE), this::late)
        .thenApply(all -> answered(before, all.at(0)));
  }

  /** Notes what an answer says of the acquisition. */
  private Reply answered(long before, Reply reply) {
    doubt |= Answers.mayRunLater(reply.error());
    if (sent == Clock.NONE || !isOpen()) {
      sent = before; // else an earlier copy may be the one that is granted
    }
    if (!Answers.isConnectionError(reply.error()) && reply.error() != Answers.LEFT) {
      touch();
    }
    boolean isTaken = reply.value() instanceof Long fence && fence == 0;
    return isTaken ? Reply.failed(Answers.TAKEN) : reply;
  }

  /**
   * An answer that came when nobody waited for it any more. With a token of its own the server has taken off what it gave.
   * Else the fence tells what to release.
   */
  private void late(Reply all) {
    long fence = all.at(0).number();
    // Whoever has a future gives it up also when it is done; that ends no hold.
    boolean isOver = result.isDone() ? result.isCompletedExceptionally() : left != null;
    if (owner.given() && fence > 0 && !isChange && isOver) {
      long end = Clock.in(wanted.ttl);
      locks.repeat("release", owner, end, by -> locks.send(owner, owner.release(mode, fence), by));
    }
  }

  /**
   * Makes sure of how long the hold is valid, and that enough replicas have it: the ttl began at a grant that may be long
   * ago, if there was a wait.
   */
  private void confirm(long fence) {
    int replicas = wanted.minReplicas;
    if (replicas == 0 && Clock.now() - sent <= wanted.ttl / 3) {
      finish(new Lease.Grant(mode, fence, sent, doubt), null);
      return;
    }
    // The server counts the replicas that have what this connection wrote last: the extension. To the same millisecond
    // that would write nothing, and any replica would do.
    long before = Clock.now();
    List<String> wait = List.of("WAIT", "" + replicas, "" + Clock.milliseconds(wanted.replicaTimeout));
    CompletableFuture<Reply> asked = replicas == 0
        ? send(List.of(owner.extend(wanted.ttl, fence)), Call.Use.COMMANDS, answerBy())
        : send(List.of(owner.extend(wanted.ttl + Clock.MS, fence), wait), Call.Use.ALONE,
            Clock.in(wanted.replicaTimeout) + Repetition.LATE_ANSWER);
    asked.thenAccept(all -> {
      Throwable error = all.at(0).error();
      if (error == null && (all.at(0).number() == 0
          || Clock.now() - before >= Lease.Drift.ONE_SERVER.counted(wanted.ttl))) {
        sent = Clock.NONE; // it is over by now
        isQueued = doubt;
        error = Answers.ASK_AGAIN;
      }
      if (error == null && replicas > 0) {
        Reply confirmed = all.at(1);
        error = confirmed.error() != null ? confirmed.error() : confirmed.number() >= replicas ? null
            : new SlockException.TooFewReplicas(confirmed.number(), replicas);
      }
      if (error == null) {
        finish(new Lease.Grant(mode, fence, before, doubt), null);
      } else {
        judge(error);
      }
    });
  }

  /** The command with what is left of the wait. The server takes 0 as a wait without end. */
  private List<String> waiting(Object... rest) {
    long left = deadline == Clock.NONE ? 0 : Math.max(1, Clock.milliseconds(Clock.until(deadline)));
    return Commands.waiting(ask, left, rest);
  }

  // --- by a connection of its own

  /**
   * No reply to a wait is too late, so other commands tell whether the server is in reach. When it is not, the request is
   * asked again: nobody would tell a connection that has nothing to send that its server was restarted.
   */
  private CompletableFuture<Reply> byBlocking() {
    long before = Clock.now();
    isReached = null;
    CompletableFuture<Reply> wait = begin(waitBy());
    locks.send(owner, List.of(waiting()), Call.Use.ALONE, Clock.NONE, wait, this::late);
    isQueued = true;
    Timers.at(Clock.in(Math.max(0, Math.min(TEST_AFTER, Clock.until(end()) / 3))), () -> test(wait));
    return wait.thenApply(all -> {
      Reply reply = answered(before, all.at(0));
      boolean isLost = Answers.isConnectionError(all.error()) && Answers.mayRunLater(all.error());
      if (isLost && Objects.requireNonNullElse(isReached, contact == Clock.NONE)) {
        touch(); // it was there until now
      }
      isQueued &= reply.error() == null || doubt;
      return reply;
    });
  }

  private void test(CompletableFuture<Reply> wait) {
    if (wait.isDone()) {
      return;
    }
    locks.send(owner, List.of("PING"), Math.min(Clock.in(TEST_EVERY), answerBy())).thenAccept(reply -> {
      isReached = !Answers.isConnectionError(reply.error());
      if (isReached) {
        touch();
        Timers.at(Clock.in(TEST_EVERY), () -> test(wait));
      } else {
        // Whether the PING was sent says nothing of the wait.
        wait.complete(Reply.failed(new Answers.Unanswered(Answers.cause(reply.error()), true)));
      }
    });
  }

  // --- by NOTIFY

  /**
   * Asks, and waits for the message that says how the wait ended. As long as there is no subscription, the first command
   * goes without a wait, so that a program subscribes only when a request has to wait.
   */
  private CompletableFuture<Reply> byNotify() {
    Listener.Channel found = locks.listener.channel(owner.key(), wasRefused);
    if (found == null) {
      return ask(ask).thenCompose(reply -> {
        wasRefused = reply.error() == Answers.TAKEN;
        return wasRefused ? byNotify() : CompletableFuture.completedFuture(reply);
      });
    }
    if (tag == null) {
      tag = locks.listener.addTag(this); // the message may arrive before the null
    }
    channel = found;
    CompletableFuture<Reply> subscribed = begin(answerBy());
    found.ready.thenAccept(subscribed::complete);
    return subscribed.thenCompose(this::askByNotify);
  }

  private CompletableFuture<Reply> askByNotify(Reply subscribed) {
    if (subscribed.error() != null) {
      boolean isForbidden = Answers.hasCode(subscribed.error(), "NOPERM"); // then it blocks
      return CompletableFuture.completedFuture(isForbidden ? Reply.ASK_AGAIN : subscribed);
    }
    touch();
    inbox = new CompletableFuture<>();
    return ask(waiting("NOTIFY", channel.name, tag)).thenCompose(reply -> {
      if (Answers.hasCode(reply.error(), "NOSUBSCRIBER")) {
        locks.listener.remove(channel, reply.error());
      } else if (Answers.isAboutChannels(reply.error())) {
        locks.listener.forbid(reply.error());
        return CompletableFuture.completedFuture(Reply.ASK_AGAIN);
      }
      return reply.isNull() ? message() : CompletableFuture.completedFuture(reply);
    });
  }

  /** Waits for the message. */
  private CompletableFuture<Reply> message() {
    isQueued = true;
    last = null;
    failures = 0;
    long until = doubt ? Math.min(waitBy(), Clock.in(ASK_IN_DOUBT)) : waitBy();
    CompletableFuture<Reply> message = begin(until);
    inbox.thenAccept(message::complete);
    if (channel.isGone) {
      message.complete(Reply.ASK_AGAIN);
    }
    return message.thenApply(reply -> {
      if (reply.error() == Answers.NO_ANSWER || reply.error() == Answers.LEFT) {
        return until == waitBy() || reply.error() == Answers.LEFT ? reply : Reply.ASK_AGAIN;
      }
      touch(); // what ended the channel says nothing about this request
      if (reply.error() == Answers.ASK_AGAIN) {
        doubt = true; // the server may not have noticed yet, and grant what waits there
      } else {
        isQueued = reply.number() > 0;
      }
      return reply.error() == null && reply.number() == 0 ? Reply.failed(Answers.TAKEN) : reply;
    });
  }

  /** A message with the tag of this acquisition. */
  void deliver(String text) {
    inbox.complete(Answers.message(text));
  }

  /** The channel is gone: asks again, if it waits for a message there. */
  void lost(Listener.Channel gone) {
    if (channel == gone && inbox != null) {
      inbox.complete(Reply.ASK_AGAIN);
    }
  }
}
