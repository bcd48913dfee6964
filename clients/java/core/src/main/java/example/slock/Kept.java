package example.slock;

import static example.slock.Protocol.unwrap;

import example.slock.Acquisition.Grant;
import example.slock.Protocol.Owner;
import example.slock.SlockException.Reason;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executor;
import java.util.concurrent.ScheduledFuture;
import java.util.function.Consumer;
import java.util.function.Supplier;

/** What is behind a {@link Hold}: it is renewed, and ended when its time is over. It does not refer to the hold. */
final class Kept {
  /** After which time a hold without a maximum is worth a warning. */
  private static final long LONG = 3600 * Clock.SECOND;

  final Locks locks;
  final Keeper keeper;
  final Owner owner;
  final Settings settings;
  private final Lease lease;
  private final List<Consumer<SlockException>> ends = new ArrayList<>();
  private ScheduledFuture<?> timer;
  private long timerAt;
  /** When the last command that prolongs the hold was answered. */
  private CompletableFuture<?> extending = CompletableFuture.completedFuture(null);
  private boolean isChanging;

  Kept(Locks locks, Keeper keeper, Owner owner, Settings settings, Mode mode, Grant grant) {
    this.locks = locks;
    this.keeper = keeper;
    this.owner = owner;
    this.settings = settings;
    this.lease = new Lease(locks, mode, settings.ttl, grant);
    locks.watch(this);
    synchronized (this) {
      setTimer();
    }
  }

  synchronized Lease snapshot() {
    return lease.copy();
  }

  String label() {
    return settings.label != null ? settings.label : owner.names().get(0);
  }

  /** Null while the hold is live. It is guarded. */
  private SlockException problem() {
    return switch (lease.state) {
      case LIVE -> null;
      case OVER -> new SlockException.NotHeld(owner.names(), lease.mode);
      case LOST -> new SlockException.Lost(owner.names(), lease.reason, lease.reason == Reason.EXPIRED ? lease.failed : null);
    };
  }

  /** Null while the hold is valid. */
  SlockException check() {
    return update(l -> {});
  }

  /**
   * Changes the lease of a live hold, and does what follows if that ends it. It gives what is wrong with the hold after that.
   */
  SlockException update(Consumer<Lease> change) {
    SlockException problem;
    List<Consumer<SlockException>> told;
    long now = Clock.now();
    synchronized (this) {
      boolean wasLive = lease.state == Lease.State.LIVE;
      if (wasLive && now >= Clock.plus(lease.granted, settings.maxHold)) {
        lease.lose(Reason.MAX_HOLD);
      } else if (wasLive && now >= lease.until) {
        lease.lose(locks.isClosing ? Reason.CLOSED : Reason.EXPIRED);
      } else if (wasLive) {
        change.accept(lease);
      }
      problem = problem();
      if (problem == null) {
        setTimer();
        return null;
      } else if (!wasLive) {
        return problem;
      }
      cancelTimer();
      told = List.copyOf(ends);
      ends.clear();
    }
    locks.unwatch(this);
    if (problem instanceof SlockException.Lost loss) {
      // By the fence, because another hold of a token of the program's stays.
      keeper.end(owner, snapshot().fence, 0, false, Runnable::run);
      locks.report.lost(label(), loss);
    }
    locks.report.held(label(), now - lease.granted);
    told.forEach(one -> one.accept(problem));
    return problem;
  }

  /** Calls once when the hold ends, also if that was before. What is called must not block. */
  void onEnd(Consumer<SlockException> told) {
    SlockException problem;
    synchronized (this) {
      problem = problem();
      if (problem == null) {
        ends.add(told);
        setTimer();
      }
    }
    if (problem != null) {
      told.accept(problem);
    }
  }

  // --- the watchdog

  private void cancelTimer() {
    if (timer != null) {
      timer.cancel(false);
      timer = null;
    }
  }

  private boolean isRenewed() {
    return settings.isRenewed && !locks.isClosing;
  }

  /** Has the hold looked at when that is due next, if it is renewed or somebody would notice its end. It is guarded. */
  private void setTimer() {
    if (lease.state != Lease.State.LIVE || !settings.isRenewed && ends.isEmpty()) {
      return;
    }
    long due = Math.min(lease.until, Clock.plus(lease.granted, settings.maxHold));
    due = isRenewed() ? Math.min(due, lease.renewAt) : due;
    if (timer == null || due != timerAt) {
      cancelTimer();
      timerAt = due;
      timer = Clock.after(due - Clock.now(), this::look);
    }
  }

  /** Ends a hold whose time is over or whose owner has gone, and renews it if that is due. */
  private void look() {
    boolean[] is = new boolean[2];
    synchronized (this) {
      timer = null;
    }
    SlockException problem = update(l -> {
      is[0] = isRenewed() && Clock.now() >= l.renewAt;
      is[1] = is[0] && !l.isLong && Clock.now() - l.granted > LONG && settings.maxHold == Clock.NEVER;
      l.isLong |= is[1];
      l.renewAt = is[0] ? Clock.now() + l.ttl / 10 : l.renewAt;
    });
    if (problem != null || !is[0]) {
      return;
    }
    if (!settings.isOwned.getAsBoolean()) {
      abandon();
      return;
    }
    if (is[1]) {
      locks.report.heldLong(label(), owner.names());
    }
    boolean isFree;
    synchronized (this) {
      isFree = extending.isDone();
    }
    if (isFree) {
      Lease now = snapshot();
      long wait = Math.min(Math.min(now.ttl / 4, Server.TRY), now.until - Clock.now());
      alone(() -> extend(now.ttl, Clock.now() + wait, Runnable::run)).whenComplete((done, error) -> {
            if (error != null && check() == null) {
              locks.report.renewalFailed(label(), owner.names(), Protocol.explain(unwrap(error), owner.names()));
            }
          });
    }
  }

  /** Ends a hold that nobody refers to, or whose thread is dead. What was never renewed lasts until its ttl. */
  void abandon() {
    Lease last = finish();
    if (last != null && settings.isRenewed) {
      keeper.end(owner, last.named(), settings.atLeast - (Clock.now() - last.granted), false, Runnable::run);
      locks.report.abandoned(label(), owner.names());
    }
  }

  /** Runs when what prolonged the hold before has ended. */
  private <T> CompletableFuture<T> alone(Supplier<CompletableFuture<T>> work) {
    CompletableFuture<Void> turn = new CompletableFuture<>();
    CompletableFuture<?> before;
    CompletableFuture<T> mine = turn.thenCompose(none -> work.get());
    synchronized (this) {
      before = extending;
      extending = mine;
    }
    before.whenComplete((value, error) -> turn.complete(null));
    return mine;
  }

  /** Extends to at least the ttl, until it is answered. */
  CompletableFuture<Void> extend(long ttl, Executor on) {
    return alone(() -> locks.repeat(owner.names(),
        until -> extend(ttl, Math.min(until, snapshot().until), on), on));
  }

  /** Sends one extension to at least the ttl. What is wrong with the hold comes before another error. */
  private CompletableFuture<Void> extend(long ttl, long until, Executor on) {
    SlockException problem = check();
    if (problem != null) {
      return CompletableFuture.failedFuture(problem);
    }
    Lease now = snapshot();
    Keeper.Extension extension = new Keeper.Extension(Math.max(now.ttl, ttl), now.named(), settings);
    return keeper.extend(owner, extension, until, on).handle((answer, failure) -> {
      Throwable error = unwrap(failure);
      boolean isGone = error == null ? answer.number() == 0 : Protocol.code(error).equals("WRONGTYPE");
      SlockException wrong = update(l -> {
        l.renewAt = Clock.now() + l.ttl / 10;
        if (isGone && extension.fence() == l.named()) { // else it was about another fence
          l.lose(Reason.GONE);
        } else if (error != null) {
          l.failed = Protocol.explain(error, owner.names());
        } else if (!isGone) {
          l.lengthen(answer.sent(), extension.ttl());
        }
      });
      if (wrong != null || error != null && !isGone) {
        throw Protocol.failure(wrong != null ? wrong : error);
      }
      return null;
    });
  }

  /** Confirms a hold whose server may be another one. */
  void confirm() {
    extend(settings.ttl, Runnable::run);
  }

  // --- the end

  /** Ends a live hold here, before anything is sent, and gives what was known; null: it had ended. */
  Lease finish() {
    Lease[] last = {null};
    update(l -> {
      last[0] = l.copy();
      l.state = Lease.State.OVER;
    });
    return last[0];
  }

  CompletableFuture<Void> release(Executor on) {
    SlockException problem = check();
    Lease last = problem == null ? finish() : null;
    if (last == null) {
      return CompletableFuture.failedFuture(problem != null ? problem : check());
    }
    long after = settings.atLeast - (Clock.now() - last.granted);
    return keeper.end(owner, last.named(), after, true, on).handle((wasHeld, failure) -> {
      Throwable error = unwrap(failure);
      if (error == null && !wasHeld) {
        SlockException.Lost loss;
        synchronized (this) {
          lease.lose(Reason.GONE);
          loss = (SlockException.Lost) problem();
        }
        locks.report.lost(label(), loss);
        error = loss;
      } else if (error != null) {
        locks.report.releaseFailed(label(), owner.names(), error);
      }
      if (error != null) {
        throw Protocol.failure(error);
      }
      return null;
    });
  }

  // --- changes of mode. While one is open the hold is renewed without its fence: the server may have given another one

  /** An upgrade under way. */
  record Upgrade(ServerAcquisition acquisition, CompletableFuture<Void> result) {}

  /** Makes a reader the writer. If it is given up, the mode is found out. */
  Upgrade upgrade(Duration wait, Executor on) {
    Settings.require(wait == null || !wait.isNegative(), "the wait must not be negative, not %s", wait);
    Lease was = open();
    Server server = (Server) keeper;
    Settings wanted = settings.with(s -> {
      s.wait = wait == null ? Clock.NEVER : Clock.nanos(wait);
      s.ttl = was.ttl;
    });
    ServerAcquisition acquisition = new ServerAcquisition(server, owner,
        owner.change(Mode.WRITE, was.ttl, was.named()), wanted, false, on);
    locks.begin(acquisition);
    onEnd(problem -> acquisition.leave(problem));
    CompletableFuture<Void> result = acquisition.start().handle((grant, failure) -> {
      locks.end(acquisition);
      Throwable error = unwrap(failure);
      boolean isOpen = error != null && acquisition.isOpen();
      update(l -> {
        if (error == null) {
          l.grant(Mode.WRITE, grant);
        } else if (!isOpen) {
          l.isOpen = was.isOpen;
        }
      });
      return settled(error, isOpen, () -> settleUpgrade(server, was.ttl));
    }).thenCompose(done -> done);
    return new Upgrade(acquisition, result);
  }

  /** Withdraws an upgrade, and learns the mode that the hold has after that. */
  private CompletableFuture<?> settleUpgrade(Server server, long ttl) {
    return server.ask(owner.names(), Protocol.REFUSE, owner.withdraw(), Runnable::run).thenCompose(withdrawn ->
        withdrawn.number() > 0 ? CompletableFuture.completedFuture(null)
            : server.ask(owner.names(), Protocol.REFUSE, owner.adopt(Mode.WRITE, settings.with(s -> s.ttl = ttl)),
                Runnable::run).thenAccept(held -> {
                  if (held.number() > 0) {
                    update(l -> l.grant(Mode.WRITE, new Grant(held.number(), held.sent())));
                  }
                }));
  }

  /** Makes the writer a reader. It counts as one from the first attempt on, and is sent until it is answered. */
  CompletableFuture<Void> downgrade(Executor on) {
    Lease was = open();
    Server server = (Server) keeper;
    update(l -> l.mode = Mode.READ);
    return downgrade(server, was, settings.retryFor, on).handle((done, failure) -> {
      Throwable error = unwrap(failure);
      return settled(error, error instanceof SlockException.NoAnswer,
          () -> downgrade(server, was, Protocol.REFUSE, Runnable::run));
    }).thenCompose(done -> done);
  }

  private CompletableFuture<Void> downgrade(Server server, Lease was, long limit, Executor on) {
    return server.ask(owner.names(), limit, owner.change(Mode.READ, was.ttl, was.named()), on).thenAccept(answer ->
        update(l -> l.grant(Mode.READ, new Grant(answer.number(), answer.sent()))));
  }

  /** Begins a change of mode, unless another one is open. */
  private Lease open() {
    Settings.require(keeper instanceof Server && owner.keys().size() == 1, "the mode changes for one key on one server");
    Lease was = snapshot();
    synchronized (this) {
      Settings.require(!isChanging, "another change of the mode is open");
      isChanging = true;
    }
    SlockException problem = update(l -> l.isOpen = true);
    if (problem != null) {
      close();
      throw problem;
    }
    return was;
  }

  private synchronized void close() {
    isChanging = false;
  }

  /**
   * Ends a change of mode. One that is still open is settled in the background; that is waited for if the server replies,
   * but not for long.
   */
  private CompletableFuture<Void> settled(Throwable error, boolean isOpen, Supplier<CompletableFuture<?>> settle) {
    if (error instanceof SlockException.NotHeld || error != null && String.valueOf(error.getMessage()).startsWith("WRONGTYPE")) {
      update(l -> l.lose(Reason.GONE));
    }
    SlockException problem = check();
    Throwable end = problem != null ? problem : error;
    CompletableFuture<?> settling = isOpen && problem == null ? settle.get() : CompletableFuture.completedFuture(null);
    CompletableFuture<Void> result = new CompletableFuture<>();
    Runnable complete = () -> {
      if (end == null) {
        result.complete(null);
      } else {
        result.completeExceptionally(end);
      }
    };
    settling.whenComplete((done, failure) -> {
      close();
      complete.run();
    });
    if (isOpen) {
      Clock.after(error instanceof SlockException.TimedOut ? ServerAcquisition.LATE_REPLY : 0, complete);
    }
    return result;
  }
}
