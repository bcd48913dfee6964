package example.slock;

import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.atomic.AtomicBoolean;

/**
 * One use of a request, or one change of the mode of a hold, from its first command to a grant or an error: its limits of
 * time, its pauses, and what each answer leads to. All its attempts have one token and one tag, so whichever of them is
 * carried out, its answer counts.
 *
 * <p>No thread waits, but a caller for the result: each step begins when the one before has its answer, or a limit of time
 * has passed. It ends once; a step that comes after the end leads to nothing.
 */
final class Acquisition {
  /** How often a request that waits asks again while a command of it has no answer: that may be the request then. */
  private static final long ASK_IN_DOUBT = 5 * Clock.SECOND;
  /** How often the server of a wait by blocking is tested, if there is so much time. */
  private static final long TEST_EVERY = 5 * Clock.SECOND;

  /** The grant, or an error; null when a try is refused. */
  final CompletableFuture<Lease.Grant> result = new CompletableFuture<>();
  private final AtomicBoolean isOver = new AtomicBoolean();
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

  // what is known so far; only the current step changes it
  private long contact = Clock.NONE;
  /** A command that asks for the lock is under way. */
  private volatile Call asked;
  private volatile boolean isUnderWay;
  /** Such a command had no answer. */
  volatile boolean doubt;
  /** The request stands in the queue of the server, or was granted there. */
  private volatile boolean isQueued;
  private long sent = Clock.NONE;
  private boolean wasRefused;
  private Throwable last;
  private int failures;
  private int polls;

  private volatile Listener.Channel channel;
  private volatile String tag;
  /** The end of the wait that was asked for last. What came before it was asked for does not count. */
  private volatile CompletableFuture<Reply> inbox = new CompletableFuture<>();
  /** A test of the wait by blocking had no answer. */
  private volatile boolean isSilent;

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

  /** Whether something may be left on the server. */
  boolean isOpen() {
    return isUnderWay || doubt || isQueued;
  }

  /** Gives it up. What was granted before stays so. */
  void cancel(Throwable why) {
    finish(null, why);
  }

  private void finish(Lease.Grant grant, Throwable error) {
    if (isOver.getAndSet(true)) {
      // With a token of its own the server takes off what it gives after the end. Else the fence tells what to release.
      if (grant != null && owner.given() && !isChange) {
        locks.repeat("release", owner, Clock.in(wanted.ttl),
            by -> locks.send(owner, owner.release(mode, grant.fence()), by));
      }
      return;
    }
    if (tag != null) {
      locks.listener.removeTag(tag);
    }
    if (grant == null && isOpen() && !isChange) {
      locks.giveUp(owner, wanted.ttl, channel);
    }
    if (error == null) {
      result.complete(grant);
    } else {
      result.completeExceptionally(Answers.named(error));
    }
    inbox.complete(Reply.failed(Answers.TAKEN)); // nobody waits for a message any more
  }

  // --- attempts

  /** Begins the first attempt, or another one. */
  void attempt() {
    if (isOver.get()) {
      return;
    }
    CompletableFuture<Reply> answer =
        isChange ? byItsWay() : locks.ifPermitted(owner, mode, answerBy(), isOver::get, this::byItsWay);
    answer.whenComplete((reply, failed) -> {
      if (failed != null) {
        finish(null, failed);
      } else if (reply.error() == null) {
        confirm(reply.number());
      } else {
        judge(reply.error());
      }
    });
  }

  /** Most locks are free: only a request that has to wait needs a channel, or a connection of its own. */
  private CompletableFuture<Reply> byItsWay() {
    Options.Waiting waiting = locks.options.waiting;
    if (isOnce || waiting == Options.Waiting.POLL) {
      return ask(ask, Call.Use.COMMANDS, answerBy());
    }
    boolean blocks = waiting == Options.Waiting.BLOCK || locks.listener.isForbidden(owner.key());
    Listener.Channel found = blocks ? null : locks.listener.channel(owner.key(), wasRefused);
    if (found == null && !wasRefused) {
      return ask(ask, Call.Use.COMMANDS, answerBy()).thenCompose(reply -> {
        wasRefused = reply.error() == Answers.TAKEN;
        return wasRefused ? byItsWay() : CompletableFuture.completedFuture(reply);
      });
    }
    return blocks ? byBlocking() : byNotify(found);
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
      Timers.at(Clock.in(pause), this::attempt);
    } else {
      finish(null, new SlockException.TimedOut(isChange ? "change of mode" : "lock", owner.keys(), Answers.cause(last)));
    }
  }

  /** Keeps an error after which the request is asked again. One that says only that nothing came tells the least. */
  private void note(Throwable error) {
    if (error != Answers.ASK_AGAIN && (last == null || error != Answers.NO_ANSWER)) {
      last = error;
    }
  }

  /** Until when the request is asked again while no answer comes. */
  private long end() {
    return Math.min(deadline, outageEnd());
  }

  /** Until when an outage is survived. */
  private long outageEnd() {
    return isOnce || contact == Clock.NONE ? limit : contact + locks.options.retryWaitFor;
  }

  /** Until when an answer is waited for: for no longer than {@link Options#retryFor}. */
  private long answerBy() {
    return Math.min(end(), locks.retryEnd()) + Repetition.LATE_ANSWER;
  }

  /** Until when the end of a wait is waited for. */
  private long waitBy() {
    return deadline + Repetition.LATE_ANSWER;
  }

  private void touch() {
    contact = Clock.now();
  }

  private Call send(List<List<String>> commands, Call.Use use, long until) {
    return locks.call(owner, commands, use, until, isOver::get);
  }

  /** Sends one command that asks for the lock, and gives its fence, TAKEN for 0, or null. */
  private CompletableFuture<Reply> ask(List<String> command, Call.Use use, long until) {
    long before = Clock.now();
    isUnderWay = true;
    asked = send(List.of(command), use, until);
    return asked.answer.thenApply(all -> {
      Reply reply = all.at(0);
      boolean isTaken = reply.value() instanceof Long fence && fence == 0;
      doubt |= Answers.mayRunLater(reply.error());
      if (sent == Clock.NONE || !doubt && !isQueued) {
        sent = before; // else an earlier copy may be the one that is granted
      }
      isQueued |= reply.error() == null && !isTaken;
      isUnderWay = false;
      if (!Answers.isConnectionError(reply.error())) {
        touch();
      }
      return isTaken ? Reply.failed(Answers.TAKEN) : reply;
    });
  }

  /**
   * Makes sure of how long the hold is valid, and that enough replicas have it: the ttl began at a grant that may be long
   * ago, if there was a wait.
   */
  private void confirm(long fence) {
    int replicas = wanted.minReplicas;
    if (isOver.get() || replicas == 0 && Clock.now() - sent <= wanted.ttl / 3) {
      finish(new Lease.Grant(mode, fence, sent, doubt), null);
      return;
    }
    // The server counts the replicas that have what this connection wrote last: the extension. To the same millisecond
    // that would write nothing, and any replica would do.
    long before = Clock.now();
    List<String> wait = List.of("WAIT", "" + replicas, "" + Clock.milliseconds(wanted.replicaTimeout));
    Call confirming = replicas == 0
        ? send(List.of(owner.extend(wanted.ttl, fence)), Call.Use.COMMANDS, answerBy())
        : send(List.of(owner.extend(wanted.ttl + Clock.MS, fence), wait), Call.Use.ALONE,
            Clock.in(wanted.replicaTimeout) + Repetition.LATE_ANSWER);
    confirming.answer.thenAccept(all -> {
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
    long left = deadline >= Clock.NONE ? 0 : Math.max(1, Clock.milliseconds(Clock.until(deadline)));
    return Commands.waiting(ask, left, rest);
  }

  // --- by a connection of its own

  /**
   * No reply to a wait is too late, so other commands tell whether the server is in reach. When it is not, the request is
   * asked again: nobody would tell a connection that has nothing to send that its server was restarted.
   */
  private CompletableFuture<Reply> byBlocking() {
    isSilent = false;
    CompletableFuture<Reply> answer = ask(waiting(), Call.Use.ALONE, waitBy());
    Call wait = asked;
    Timers.at(Math.min(Clock.in(TEST_EVERY), outageEnd()), () -> test(wait));
    return answer.thenApply(reply -> {
      if (Answers.mayRunLater(reply.error()) && !isSilent) {
        touch(); // it was there until now
      }
      return reply;
    });
  }

  private void test(Call wait) {
    if (wait.answer.isDone()) {
      return;
    }
    long answerBy = Math.min(Clock.in(TEST_EVERY), outageEnd() + Repetition.LATE_ANSWER);
    locks.send(owner, List.of("PING"), answerBy).thenAccept(reply -> {
      if (!Answers.isConnectionError(reply.error())) {
        touch();
        Timers.at(Math.min(Clock.in(TEST_EVERY), outageEnd()), () -> test(wait));
      } else {
        isSilent = true;
        // Whether the PING was sent says nothing of the wait.
        wait.expire(new Answers.Unanswered(Answers.cause(reply.error()), true));
      }
    });
  }

  // --- by NOTIFY

  /** Asks, and waits for the message that says how the wait ended. */
  private CompletableFuture<Reply> byNotify(Listener.Channel found) {
    if (tag == null) {
      tag = locks.listener.addTag(this); // the message may arrive before the null
    }
    if (isOver.get()) {
      locks.listener.removeTag(tag);
    }
    channel = found;
    return Timers.limit(found.ready.copy(), answerBy()).thenCompose(this::askByNotify);
  }

  private CompletableFuture<Reply> askByNotify(Reply subscribed) {
    if (subscribed.error() != null) {
      return CompletableFuture.completedFuture(subscribed);
    }
    touch();
    inbox = new CompletableFuture<>();
    return ask(waiting("NOTIFY", channel.name, tag), Call.Use.COMMANDS, answerBy()).thenCompose(reply -> {
      if (Answers.hasCode(reply.error(), "NOSUBSCRIBER")) {
        locks.listener.remove(channel, reply.error());
      } else if (Answers.isAboutChannels(reply.error())) {
        return CompletableFuture.completedFuture(locks.listener.forbid(reply.error()));
      }
      return reply.isNull() ? message() : CompletableFuture.completedFuture(reply);
    });
  }

  /** Waits for the message. */
  private CompletableFuture<Reply> message() {
    isQueued = true;
    last = null;
    failures = 0;
    boolean asksAgain = doubt && Clock.in(ASK_IN_DOUBT) < waitBy();
    if (locks.listener.channel(owner.key(), false) != channel) { // it is gone
      inbox.complete(Reply.ASK_AGAIN);
    }
    return Timers.limit(inbox, asksAgain ? Clock.in(ASK_IN_DOUBT) : waitBy()).thenApply(reply -> {
      if (reply.error() == Answers.NO_ANSWER) {
        return asksAgain ? Reply.ASK_AGAIN : reply;
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
    if (channel == gone) {
      inbox.complete(Reply.ASK_AGAIN);
    }
  }
}
