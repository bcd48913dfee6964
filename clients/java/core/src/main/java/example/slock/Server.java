package example.slock;

import static example.slock.Protocol.unwrap;

import example.slock.Acquisition.Grant;
import example.slock.Protocol.Owner;
import example.slock.Protocol.Signal;
import example.slock.Transport.Call;
import example.slock.Transport.ErrorReply;
import java.util.ArrayDeque;
import java.util.List;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executor;
import java.util.concurrent.TimeoutException;
import java.util.function.LongFunction;

/** One server, or one cluster: sends commands, repeats them, and delivers ends that nobody waits for. */
final class Server implements Backend, Keeper {
  /** How long one try waits for its reply. Then the command is sent again, perhaps over another connection. */
  static final long TRY = 800 * Clock.MS;
  /** How many ends are on their way at once. During an outage the others cost their memory. */
  private static final int MOST_ENDING = 8;

  /**
   * A reply that is a number; null is 0.
   *
   * @param sent before the copy was sent that was answered
   * @param isAlone no other copy was sent
   */
  record Answer(long number, long sent, boolean isAlone) {}

  final Transport transport;
  final Transport.Topology topology;
  final Locks locks;
  final Settings settings;
  final Listener listener;
  private final ArrayDeque<End> ends = new ArrayDeque<>();
  private int ending;

  Server(Transport transport, Locks locks) {
    this.transport = transport;
    this.topology = transport.topology();
    this.locks = locks;
    this.settings = locks.settings;
    this.listener = new Listener(this);
  }

  /** Sends a call once, and waits for the reply until a moment. Completing the future otherwise ends that. */
  CompletableFuture<Transport.Reply> send(Call call, long until, Executor on) {
    CompletableFuture<Transport.Reply> result = new CompletableFuture<>();
    long limit = until - Clock.now();
    CompletableFuture<Transport.Reply> sent;
    try {
      sent = transport.call(new Call(call.key(), call.keyAt(), call.words(), call.then(), Math.max(limit, Clock.MS)),
          on instanceof Caller caller ? caller::block : null).toCompletableFuture();
    } catch (RuntimeException | Error e) {
      sent = CompletableFuture.failedFuture(e);
    }
    CompletableFuture<Transport.Reply> reply = sent;
    if (!reply.isDone()) {
      Runnable timer = Clock.limit(until, () -> result.completeExceptionally(silent()));
      result.whenComplete((value, error) -> {
        timer.run();
        if (error != null) {
          reply.cancel(true);
        }
      });
    }
    reply.whenComplete((value, failure) -> {
      Throwable error = unwrap(failure);
      boolean isLate = error instanceof CancellationException || error instanceof TimeoutException;
      if (error == null) {
        result.complete(value);
      } else {
        result.completeExceptionally(isLate ? silent() : error);
      }
    });
    result.whenComplete((value, error) -> {
      if (unwrap(error) != Signal.LEFT) {
        locks.report.reached(unwrap(error));
      }
    });
    return result;
  }

  private static TimeoutException silent() {
    return new TimeoutException("the connection is silent");
  }

  static boolean isSilent(Throwable error) {
    return error instanceof TimeoutException;
  }

  /** The later of two errors, unless it only says that nothing came. */
  static Throwable moreTelling(Throwable last, Throwable error) {
    return last != null && isSilent(error) ? last : error;
  }

  /** Sends one command once. An error reply is the error of the future. */
  CompletableFuture<Answer> number(Call call, long until, Executor on) {
    long sent = Clock.now();
    CompletableFuture<Transport.Reply> reply = send(call, until, on);
    return linked(reply, reply.thenApply(r -> new Answer(number(r.value()), sent, r.isAlone())));
  }

  static long number(Object value) {
    if (value instanceof ErrorReply error) {
      throw error;
    }
    return value instanceof Long number ? number : 0;
  }

  /** Who completes the result leaves the source, too. */
  private static <T> CompletableFuture<T> linked(CompletableFuture<?> source, CompletableFuture<T> result) {
    result.whenComplete((value, error) -> {
      if (!source.isDone()) {
        source.completeExceptionally(unwrap(error) == null ? Signal.LEFT : unwrap(error));
      }
    });
    return result;
  }

  /** Sends one command until it is answered, for a time. */
  CompletableFuture<Answer> ask(List<String> names, long limit, Call call, Executor on) {
    return repeat(names, limit, until -> number(call, until, on), on);
  }

  /** Tries until there is an answer, for a time. Then the error is a {@link SlockException.NoAnswer} about the names. */
  <T> CompletableFuture<T> repeat(List<String> names, long limit, LongFunction<CompletableFuture<T>> attempt, Executor on) {
    CompletableFuture<T> result = new CompletableFuture<>();
    new Repetition<>(names, limit, attempt, on, result).run();
    return result;
  }

  private final class Repetition<T> implements Runnable {
    private final List<String> names;
    private final long limit;
    private final LongFunction<CompletableFuture<T>> attempt;
    private final Executor on;
    private final CompletableFuture<T> result;
    private final long began = Clock.now();
    private Throwable last;
    private int failures;

    Repetition(List<String> names, long limit, LongFunction<CompletableFuture<T>> attempt, Executor on,
        CompletableFuture<T> result) {
      this.names = names;
      this.limit = limit;
      this.attempt = attempt;
      this.on = on;
      this.result = result;
    }

    @Override
    public void run() {
      CompletableFuture<T> sent = attempt.apply(Math.min(Clock.plus(began, limit), Clock.now() + TRY));
      sent.whenCompleteAsync((value, error) -> next(value, unwrap(error)), on);
    }

    private void next(T value, Throwable error) {
      if (error == null) {
        result.complete(value);
      } else if (!Protocol.passes(error)) {
        result.completeExceptionally(Protocol.explain(error, names));
      } else {
        last = moreTelling(last, error);
        long pause = Polling.AFTER_ERRORS.pause(failures++);
        if (Clock.now() + pause - began >= limit || locks.isClosed) {
          result.completeExceptionally(noAnswer(names, limit, last));
        } else {
          Clock.after(pause, () -> on.execute(this));
        }
      }
    }
  }

  static SlockException noAnswer(List<String> names, long within, Throwable last) {
    String text = last instanceof ErrorReply ? "the server granted nothing within " : "no reply from the server within ";
    return new SlockException.NoAnswer(names, text + Clock.text(within), last == null ? null : Protocol.explain(last, names));
  }

  // --- ends

  private static final class End {
    final Call call;
    final long until;
    long due;
    int failures;

    End(Call call, long until) {
      this.call = call;
      this.until = until;
    }
  }

  /** Sends a command in the background until it is answered, for a time, with growing pauses. */
  void deliver(Call call, long time) {
    End end = new End(new Call(call.key(), call.keyAt(), call.words(), List.of(), 0), Clock.now() + time);
    synchronized (ends) {
      ends.addFirst(end);
      if (ending == MOST_ENDING) {
        return;
      }
      ending++;
    }
    deliverNext();
  }

  /** Takes the next end, or leaves. It runs for up to so many at once. */
  private void deliverNext() {
    End end;
    synchronized (ends) {
      end = ends.poll();
      if (end == null) {
        ending--;
        return;
      }
    }
    if (end.due > Clock.now() && !locks.isClosed) {
      Clock.after(end.due - Clock.now(), () -> deliver(end));
    } else {
      deliver(end);
    }
  }

  private void deliver(End end) {
    number(end.call, Math.min(end.until, Clock.now() + TRY), Runnable::run).whenComplete((answer, error) -> {
      end.due = Clock.now() + Polling.AFTER_ERRORS.pause(end.failures++);
      if (Protocol.passes(unwrap(error)) && end.due < end.until && !locks.isClosed) {
        synchronized (ends) {
          ends.addLast(end);
        }
      }
      Clock.after(0, this::deliverNext);
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
  public Acquisition acquisition(Request r, boolean isTry, Executor on) {
    Owner owner = Owner.of(r.keys, r.settings);
    return new ServerAcquisition(this, owner, owner.lock(r.mode, r.settings), r.settings, isTry, on);
  }

  @Override
  public CompletableFuture<Adopted> adopt(Request r, Executor on) {
    Owner owner = Owner.of(r.keys, r.settings);
    return ask(r.keys, settings.retryFor, owner.adopt(r.mode, r.settings), on).handle((answer, failure) -> {
      boolean isWrong = unwrap(failure) instanceof SlockException.WrongMode;
      if (failure != null && !isWrong) {
        throw Protocol.failure(unwrap(failure));
      } else if (isWrong || answer.number() == 0) {
        throw new SlockException.NotHeld(r.keys, r.mode);
      }
      return new Adopted(this, owner, new Grant(answer.number(), answer.sent()));
    });
  }

  @Override
  public CompletableFuture<Integer> release(Request r, Executor on) {
    return ask(r.keys, settings.retryFor, Owner.of(r.keys, r.settings).end(0), on).thenApply(answer -> (int) answer.number());
  }

  @Override
  public void follow(String key) {
    if (topology.hasFailover()) {
      listener.channel(key, true);
    }
  }

  // --- as a keeper of holds

  @Override
  public CompletableFuture<Answer> extend(Owner owner, Extension e, long until, Executor on) {
    Settings s = e.wanted();
    if (s.minReplicas == 0) {
      return number(owner.extend(e.ttl(), e.fence(), true), until, on);
    }
    // WAIT counts the replicas that have what its connection wrote last. An extension to the same millisecond would write
    // nothing, and any replica would do.
    Call call = owner.extend(e.ttl() + Clock.MS, e.fence(), true);
    call = new Call(call.key(), call.keyAt(), call.words(),
        List.of("WAIT", (long) s.minReplicas, Clock.millis(s.replicaTimeout)), 0);
    long sent = Clock.now();
    CompletableFuture<Transport.Reply> reply = send(call, Clock.plus(until, s.replicaTimeout), on);
    return linked(reply, reply.thenApply(r -> {
      long extended = number(r.value());
      if (extended > 0 && number(r.then()) < s.minReplicas) {
        throw new SlockException.TooFewReplicas(owner.names(),
            r.then() + " of " + s.minReplicas + " replicas acknowledged", null);
      }
      return new Answer(extended, sent, false);
    }));
  }

  @Override
  public CompletableFuture<Boolean> end(Owner owner, long fence, long after, boolean isWaitedFor, Executor on) {
    Call call = after > 0 ? owner.extend(after, fence, false) : owner.end(fence);
    long whole = after > 0 ? 1 : owner.keys().size();
    long most = after > 0 ? after : Protocol.REFUSE;
    if (!isWaitedFor) {
      deliver(call, most);
      return CompletableFuture.completedFuture(true);
    }
    boolean[] wasAlone = {true};
    CompletableFuture<Answer> answer = repeat(owner.names(), settings.retryFor,
        until -> number(call, until, on).whenComplete((a, error) -> wasAlone[0] &= error == null && a.isAlone()), on);
    return answer.whenComplete((a, error) -> {
      if (unwrap(error) instanceof SlockException.NoAnswer) {
        deliver(call, most);
      } // The server does not remember the end of a token of the program's: of two copies the second finds nothing.
    }).thenApply(a -> a.number() == whole || owner.isGiven() && !wasAlone[0]);
  }
}
