// SPDX-License-Identifier: MIT OR Apache-2.0

package example.slock;

import static example.slock.Protocol.unwrap;

import example.slock.Acquisition.Grant;
import example.slock.Protocol.Owner;
import example.slock.Transport.Call;
import example.slock.Transport.ErrorReply;
import java.util.ArrayDeque;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeoutException;
import java.util.function.LongFunction;
import java.util.regex.Pattern;

/** One server, or one cluster: sends commands, repeats them, and delivers ends that nobody waits for. */
final class Server implements Backend, Keeper {
  private static final Pattern TIMED_OUT = Pattern.compile("timed? ?out", Pattern.CASE_INSENSITIVE);
  /** How long one try waits for its reply. Then the command is sent again, perhaps over another connection. */
  static final long TRY = 800 * Clock.MS;
  /** How long after the end of a wait a reply is still waited for. */
  static final long LATE_REPLY = 500 * Clock.MS;
  /** How long after the end of its time an attempt ends only if the process stood still. */
  private static final long LATE = 100 * Clock.MS;
  /** How much more time such a process gets at most. */
  private static final long MOST_MORE = 3 * Clock.SECOND;
  /** How many ends are on their way at once. During an outage the others cost their memory. */
  private static final int MOST_ENDING = 8;

  /**
   * A reply that is a number; null is 0.
   *
   * @param sent before the copy was sent that was answered
   * @param isAlone no other copy was sent
   */
  record Answer(long number, long sent, boolean isAlone) {}

  private record End(List<Call> calls, long until) {}

  final Transport transport;
  final Transport.Topology topology;
  final Locks locks;
  final Listener listener = new Listener(this);
  private final ArrayDeque<End> ends = new ArrayDeque<>();
  private int ending;

  Server(Transport transport, Locks locks) {
    this.transport = transport;
    this.topology = transport.topology();
    this.locks = locks;
  }

  /** Sends a call once, and waits for the reply until a moment. */
  CompletableFuture<Transport.Reply> send(Call call, long until) {
    CompletableFuture<Transport.Reply> reply;
    // Nodes of a quorum are asked at once, and a thread that waits for replicas could not be interrupted.
    boolean mayBlock = Caller.isWaiting() && locks.backend == this && call.then().isEmpty();
    try {
      reply = transport.call(call, Math.max(until - Clock.now(), Clock.MS), mayBlock).toCompletableFuture();
    } catch (RuntimeException | Error e) {
      reply = CompletableFuture.failedFuture(e);
    }
    return reply.handle((value, failure) -> {
      Throwable error = isSilent(unwrap(failure)) ? new TimeoutException("the connection is silent") : unwrap(failure);
      locks.report.reached(error);
      if (error != null) {
        throw Protocol.failure(error);
      }
      return value;
    });
  }

  static boolean isSilent(Throwable error) {
    return error instanceof TimeoutException;
  }

  /** Whether a connection has ended. */
  static boolean isBroken(Throwable error) {
    return Protocol.passes(error) && !isSilent(error) && !(error instanceof ErrorReply);
  }

  /** The later of two errors, unless it only says that nothing came in time, also by a limit of the Redis client library. */
  static Throwable moreTelling(Throwable last, Throwable error) {
    boolean isLate = isSilent(error)
        || !(error instanceof ErrorReply) && TIMED_OUT.matcher(String.valueOf(error.getMessage())).find();
    return last != null && isLate ? last : error;
  }

  /** Sends one command once. An error reply is the error of the future. */
  CompletableFuture<Answer> number(Call call, long until) {
    long sent = Clock.now();
    return send(call, until).thenApply(reply -> new Answer(number(reply.value()), sent, reply.isAlone()));
  }

  /** Asks once whether the server takes {@code atLeast} as a ttl. The server only speaks of a ttl. */
  CompletableFuture<Answer> question(Call question, long until) {
    return number(question, until).exceptionally(failure -> {
      Throwable error = unwrap(failure);
      boolean isAboutTtl = Protocol.code(error).equals("ERR") && error.getMessage().contains("ttl");
      throw Protocol.failure(isAboutTtl ? new IllegalArgumentException("atLeast: " + error.getMessage(), error.getCause()) : error);
    });
  }

  static long number(Object value) {
    if (value instanceof ErrorReply error) {
      throw error;
    }
    return value instanceof Long number ? number : 0;
  }

  /** Sends one command until it is answered, for a time. */
  CompletableFuture<Answer> ask(List<String> names, long time, Call call) {
    return repeat(names, time, until -> number(call, until));
  }

  /** Tries until there is an answer, for a time. Then the error is a {@link SlockException.NoAnswer} about the names. */
  <T> CompletableFuture<T> repeat(List<String> names, long time, LongFunction<CompletableFuture<T>> attempt) {
    long end = Clock.plus(Clock.now(), time);
    return repeat(names, time, end, end, 0, null, attempt);
  }

  private <T> CompletableFuture<T> repeat(List<String> names, long time, long first, long end, int failures, Throwable last,
      LongFunction<CompletableFuture<T>> attempt) {
    boolean isOver = last != null && (Clock.now() >= end || locks.isClosed);
    CompletableFuture<T> sent = isOver ? CompletableFuture.failedFuture(noAnswer(names, time, last))
        : attempt.apply(Math.min(end, Clock.now() + TRY));
    return sent.exceptionallyCompose(failure -> {
      Throwable error = unwrap(failure);
      if (!Protocol.passes(error)) {
        throw Protocol.failure(Protocol.explain(error, names));
      }
      long until = end == first ? extended(first) : end;
      return Clock.later(Math.min(Polling.AFTER_ERRORS.pause(failures), until - Clock.now()))
          .thenCompose(over -> repeat(names, time, first, until, failures + 1, moreTelling(last, error), attempt));
    });
  }

  /**
   * The limit after an attempt without a reply. A process that stood still may have missed it. It gets the time for one more:
   * as much as it came late. This is not done twice.
   */
  static long extended(long until) {
    long now = Clock.now();
    return now < Clock.plus(until, LATE) ? until : now + Math.min(Math.max(now - until, LATE_REPLY), MOST_MORE);
  }

  static SlockException noAnswer(List<String> names, long within, Throwable last) {
    String text = last instanceof ErrorReply ? "only errors from the server within " : "no reply from the server within ";
    return new SlockException.NoAnswer(names, text + Clock.text(within), last == null ? null : Protocol.explain(last, names));
  }

  // --- ends

  /** Sends commands in order in the background, each until it is answered, for a time, with growing pauses. */
  void deliver(long time, List<Call> calls) {
    synchronized (ends) {
      ends.addFirst(new End(calls, Clock.plus(Clock.now(), time)));
      if (ending == MOST_ENDING) {
        return;
      }
      ending++;
    }
    deliverNext(0);
  }

  /** Takes the next end, or leaves. It runs for up to so many at once; each pauses after failures. */
  private void deliverNext(int failures) {
    End end;
    synchronized (ends) {
      end = ends.poll();
      if (end == null) {
        ending--;
        return;
      }
    }
    number(end.calls.get(0), Math.min(end.until, Clock.now() + TRY)).whenComplete((answer, error) -> {
      boolean isOpen = Protocol.passes(unwrap(error)) && Clock.now() < end.until && !locks.isClosed;
      synchronized (ends) {
        if (isOpen) {
          ends.addLast(end);
        } else if (end.calls.size() > 1) {
          ends.addFirst(new End(end.calls.subList(1, end.calls.size()), end.until));
        }
      }
      Clock.after(isOpen ? Polling.AFTER_ERRORS.pause(failures) : 0, () -> deliverNext(isOpen ? failures + 1 : 0));
    });
  }

  /** Whether all ends have been answered. */
  boolean isIdle() {
    synchronized (ends) {
      return ending == 0;
    }
  }

  // --- as the backend of requests

  @Override
  public Acquisition acquisition(Request r, boolean isTry) {
    Owner owner = Owner.of(r);
    ServerAcquisition acquisition = new ServerAcquisition(this, owner, owner.lock(r.mode, r.settings), r.settings, isTry);
    acquisition.question = owner.question(r.settings);
    return acquisition;
  }

  @Override
  public CompletableFuture<Grant> adopt(Request r) {
    Owner owner = Owner.of(r);
    Call question = owner.question(r.settings);
    Call call = owner.adopt(r.mode, r.settings.ttl, r.settings.metadata());
    CompletableFuture<?> asked = question == null ? CompletableFuture.completedFuture(null)
        : repeat(r.keys, locks.settings.retryFor, until -> question(question, until));
    return asked.thenCompose(yes -> ask(r.keys, locks.settings.retryFor, call)).handle((answer, failure) -> {
      if (failure == null) {
        return answer.number() == 0 ? null : new Grant(this, owner, answer.number(), answer.sent());
      } else if (unwrap(failure) instanceof SlockException.WrongMode) {
        return null;
      }
      throw Protocol.failure(unwrap(failure));
    });
  }

  @Override
  public CompletableFuture<Integer> release(Request r) {
    return ask(r.keys, locks.settings.retryFor, Owner.of(r).end(0)).thenApply(answer -> (int) answer.number());
  }

  @Override
  public void follow(String key) {
    if (topology.hasFailover() && !locks.isClosing) {
      listener.channel(key, true);
    }
  }

  // --- as a keeper of holds

  @Override
  public CompletableFuture<Answer> extend(Owner owner, long ttl, long fence, Settings s, long until) {
    if (s.minReplicas == 0) {
      return number(owner.extend(ttl, fence, true), until);
    }
    // WAIT counts the replicas that have what its connection wrote last. An extension to the same millisecond would write
    // nothing, and any replica would do.
    Call call = owner.extend(ttl + Clock.MS, fence, true);
    List<Object> then = List.of("WAIT", (long) s.minReplicas, Clock.millis(s.replicaTimeout));
    long sent = Clock.now();
    return send(new Call(call.key(), call.words(), then), Clock.plus(until, s.replicaTimeout)).thenApply(reply -> {
      long extended = number(reply.value());
      if (extended > 0 && number(reply.then()) < s.minReplicas) {
        throw new SlockException.TooFewReplicas(owner.names(),
            reply.then() + " of " + s.minReplicas + " replicas acknowledged", null);
      }
      return new Answer(extended, sent, false);
    });
  }

  @Override
  public CompletableFuture<Boolean> end(Owner owner, long fence, long after) {
    Call call = call(owner, fence, after);
    boolean[] wasAlone = {true};
    return repeat(owner.names(), locks.settings.retryFor,
        until -> number(call, until).whenComplete((answer, error) -> wasAlone[0] &= error == null && answer.isAlone()))
            .whenComplete((answer, error) -> {
              if (unwrap(error) instanceof SlockException.NoAnswer) {
                endLater(owner, fence, after);
              } // The server does not remember the end of a token of the program's: of two copies the second finds nothing.
            }).thenApply(answer -> answer.number() == (after > 0 ? 1 : owner.keys().size()) || owner.isGiven() && !wasAlone[0]);
  }

  @Override
  public void endLater(Owner owner, long fence, long after) {
    deliver(after > 0 ? after : Protocol.REFUSE, List.of(call(owner, fence, after)));
  }

  private static Call call(Owner owner, long fence, long after) {
    return after > 0 ? owner.extend(after, fence, false) : owner.end(fence);
  }
}
