package example.slock;

import static example.slock.Protocol.unwrap;

import example.slock.Acquisition.Grant;
import example.slock.Protocol.Owner;
import example.slock.SlockException.Reason;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ScheduledFuture;
import java.util.function.Consumer;
import java.util.function.Function;
import java.util.function.LongFunction;
import java.util.function.Predicate;
import java.util.function.Supplier;

/** What is behind a {@link Hold}: it is renewed, and ended when its time is over. It does not refer to the hold. */
final class Kept {
  /** After which time a hold without a maximum is worth a warning. */
  private static final long LONG = 3600 * Clock.SECOND;

  private enum State { LIVE, OVER, LOST }

  final Locks locks;
  final Keeper keeper;
  final Owner owner;
  final Settings settings;
  /** When it was granted, at the earliest. */
  private final long granted;
  private State state = State.LIVE;
  private Reason reason;
  private Mode mode;
  private long fence;
  private long ttl;
  /** Valid until then. */
  private long until;
  /** When the next renewal is due. */
  private long renewAt;
  /** The server may have changed the mode and the fence: renewals name no fence. */
  private boolean isOpen;
  /** A change of the mode is under way. */
  private boolean isChanging;
  /** The upgrade under way, or null. */
  private Acquisition upgrade;
  /** What the last renewal said, unless one has succeeded since. */
  private Throwable failed;
  /** It was warned of that nothing limits the hold. */
  private boolean isLong;
  private final List<Consumer<SlockException>> ends = new ArrayList<>();
  private ScheduledFuture<?> timer;
  private long timerAt;
  /** When the last command that prolongs the hold was answered. */
  private CompletableFuture<?> extending = CompletableFuture.completedFuture(null);

  Kept(Locks locks, Settings settings, Mode mode, Grant grant) {
    this.locks = locks;
    this.keeper = grant.keeper();
    this.owner = grant.owner();
    this.settings = settings;
    this.granted = grant.from();
    this.ttl = settings.ttl;
    grant(mode, grant.fence(), grant.from());
    locks.watch(this);
    synchronized (this) {
      setTimer();
    }
  }

  /**
   * The part of a ttl that counts for the validity: a clock that is slewed runs up to 500 ppm fast, on both sides, and the
   * server counts in milliseconds.
   */
  static long counted(long ttl) {
    return ttl - ttl / 1000 - Clock.MS;
  }

  synchronized Mode mode() {
    return mode;
  }

  synchronized long fence() {
    return fence;
  }

  synchronized long remaining() {
    return state == State.LIVE ? Math.max(0, until - Clock.now()) : 0;
  }

  /** The fence that renewals name. */
  private synchronized long named() {
    return isOpen ? 0 : fence;
  }

  String label() {
    return settings.label != null ? settings.label : owner.names().get(0);
  }

  // --- what changes it. All is guarded

  /** The server gave the hold in a mode, by a command that was sent then. */
  private void grant(Mode mode, long fence, long from) {
    this.mode = mode;
    this.fence = fence;
    isOpen = false;
    lengthen(from, ttl);
  }

  /** The server lets the hold live for a ttl, or longer, from a moment on. */
  private void lengthen(long from, long atLeast) {
    ttl = Math.max(ttl, atLeast);
    until = Math.max(until, Clock.plus(from, locks.counted(atLeast)));
    renewAt = Clock.plus(from, ttl / 3);
    failed = null;
  }

  private void lose(Reason reason) {
    state = State.LOST;
    this.reason = reason;
  }

  /** Null while the hold is live. */
  private SlockException problem() {
    return switch (state) {
      case LIVE -> null;
      case OVER -> new SlockException.NotHeld(owner.names(), mode);
      case LOST -> new SlockException.Lost(owner.names(), reason, reason == Reason.EXPIRED ? failed : null);
    };
  }

  /** Changes a live hold, and does what follows if that ends it. It gives what is wrong with the hold after that. */
  private SlockException update(Runnable change) {
    SlockException problem;
    List<Consumer<SlockException>> told;
    Acquisition left;
    long now = Clock.now();
    synchronized (this) {
      boolean wasLive = state == State.LIVE;
      if (wasLive && now >= Clock.plus(granted, settings.maxHold)) {
        lose(Reason.MAX_HOLD);
      } else if (wasLive && now >= until) {
        lose(locks.isClosing ? Reason.CLOSED : Reason.EXPIRED);
      } else if (wasLive) {
        change.run();
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
      left = upgrade;
      ends.clear();
    }
    locks.unwatch(this);
    if (left != null) {
      left.leave(problem);
    }
    if (problem instanceof SlockException.Lost loss) {
      keeper.endLater(owner, fence(), 0); // by the fence, because another hold of a token of the program's stays
      locks.report.lost(label(), loss);
    }
    locks.report.held(label(), now - granted);
    told.forEach(one -> one.accept(problem));
    return problem;
  }

  /** Null while the hold is valid. */
  SlockException check() {
    return update(() -> {});
  }

  /** Ends a live hold here, before anything is sent. Else it gives what had ended it. */
  SlockException finish() {
    boolean[] wasLive = {false};
    SlockException problem = update(() -> {
      state = State.OVER;
      wasLive[0] = true;
    });
    return wasLive[0] ? null : problem;
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
    if (state != State.LIVE || !settings.isRenewed && ends.isEmpty()) {
      return;
    }
    long due = Math.min(until, Clock.plus(granted, settings.maxHold));
    due = isRenewed() ? Math.min(due, renewAt) : due;
    if (timer == null || due != timerAt) {
      cancelTimer();
      timerAt = due;
      timer = Clock.after(due - Clock.now(), this::look);
    }
  }

  /** Ends a hold whose time is over or whose owner has gone, and renews it if that is due. */
  private void look() {
    long now = Clock.now();
    boolean isDue;
    boolean isWorthAWarning;
    boolean isFree;
    synchronized (this) {
      timer = null;
      isDue = isRenewed() && now >= renewAt;
      isWorthAWarning = isDue && !isLong && now - granted > LONG && settings.maxHold == Clock.NEVER;
      isLong |= isWorthAWarning;
      isFree = extending.isDone();
      renewAt = isDue ? now + ttl / 10 : renewAt;
    }
    if (check() != null || !isDue) {
      return;
    } else if (!settings.isOwned.getAsBoolean()) {
      abandon();
      return;
    } else if (isWorthAWarning) {
      locks.report.heldLong(label(), owner.names());
    }
    if (isFree) {
      alone(() -> extend(0, now + Math.min(ttl / 4, Server.TRY))).whenComplete((done, error) -> {
        if (error != null && check() == null) {
          locks.report.renewalFailed(label(), owner.names(), Protocol.explain(unwrap(error), owner.names()));
        }
      });
    }
  }

  /** Ends a hold that nobody refers to, or whose thread is dead. What was never renewed lasts until its ttl. */
  void abandon() {
    if (finish() == null && settings.isRenewed) {
      keeper.endLater(owner, named(), settings.atLeast - (Clock.now() - granted));
      locks.report.abandoned(label(), owner.names());
    }
  }

  /** Runs when what prolonged the hold before has ended. */
  private CompletableFuture<Void> alone(Supplier<CompletableFuture<Void>> work) {
    CompletableFuture<Void> turn = new CompletableFuture<>();
    CompletableFuture<?> before;
    CompletableFuture<Void> mine = turn.thenCompose(none -> work.get());
    synchronized (this) {
      before = extending;
      extending = mine;
    }
    before.whenComplete((value, error) -> turn.complete(null));
    return mine;
  }

  /** Extends to at least the ttl, until it is answered. */
  CompletableFuture<Void> extend(long ttl) {
    return alone(() -> locks.repeat(owner.names(), end -> extend(ttl, end)));
  }

  /** Sends one extension to at least the ttl. What is wrong with the hold comes before another error. */
  private CompletableFuture<Void> extend(long atLeast, long end) {
    SlockException problem = check();
    if (problem != null) {
      return CompletableFuture.failedFuture(problem);
    }
    long wanted;
    long most;
    long named;
    synchronized (this) {
      wanted = Math.max(ttl, atLeast);
      most = Math.min(end, until);
      named = named();
    }
    return keeper.extend(owner, wanted, named, settings, most).handle((answer, failure) -> {
      Throwable error = unwrap(failure);
      boolean isGone = error == null ? answer.number() == 0 : Protocol.code(error).equals("WRONGTYPE");
      SlockException wrong = update(() -> {
        if (isGone && named == named()) { // else it was about another fence
          lose(Reason.GONE);
        } else if (error != null) {
          failed = Protocol.explain(error, owner.names());
        } else if (!isGone) {
          lengthen(answer.sent(), wanted);
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
    extend(0);
  }

  // --- the end

  CompletableFuture<Void> release() {
    SlockException problem = finish();
    if (problem != null) {
      return CompletableFuture.failedFuture(problem);
    }
    return keeper.end(owner, named(), settings.atLeast - (Clock.now() - granted)).handle((wasHeld, failure) -> {
      Throwable error = unwrap(failure);
      if (error != null) {
        locks.report.releaseFailed(label(), owner.names(), error);
        throw Protocol.failure(error);
      } else if (!wasHeld) {
        SlockException.Lost loss;
        synchronized (this) {
          lose(Reason.GONE);
          loss = (SlockException.Lost) problem();
        }
        locks.report.lost(label(), loss);
        throw loss;
      }
      return null;
    });
  }

  // --- changes of mode. While one is open the hold is renewed without its fence: the server may have given another one

  /** An upgrade under way. */
  record Upgrade(Acquisition acquisition, CompletableFuture<Void> result) {}

  /** Makes a reader the writer. If it is given up, the mode is found out. */
  Upgrade upgrade(Duration wait) {
    Settings.require(wait == null || !wait.isNegative(), "the wait must not be negative, not %s", wait);
    Change change = open();
    Settings wanted = settings.with(s -> {
      s.wait = wait == null ? Clock.NEVER : Clock.nanos(wait);
      s.ttl = change.ttl;
    });
    ServerAcquisition acquisition = new ServerAcquisition(change.server, owner,
        owner.change(Mode.WRITE, change.ttl, change.named), wanted, false);
    synchronized (this) {
      upgrade = acquisition;
    }
    Function<Transport.Call, CompletableFuture<Server.Answer>> ask =
        call -> change.server.ask(owner.names(), Protocol.REFUSE, call);
    CompletableFuture<Void> result = end(change, Mode.WRITE, locks.run(acquisition), error -> acquisition.isOpen(),
        () -> ask.apply(owner.withdraw()).thenCompose(withdrawn -> withdrawn.number() > 0
            ? CompletableFuture.completedFuture(null) : grant(change, ask.apply(owner.adopt(Mode.WRITE, wanted)))));
    return new Upgrade(acquisition, result);
  }

  /** Makes the writer a reader. It counts as one from the first attempt on, and is sent until it is answered. */
  CompletableFuture<Void> downgrade() {
    Change change = open();
    update(() -> mode = Mode.READ);
    LongFunction<CompletableFuture<Grant>> ask = time -> grant(change,
        change.server.ask(owner.names(), time, owner.change(Mode.READ, change.ttl, change.named)));
    return end(change, Mode.READ, ask.apply(locks.settings.retryFor), error -> error instanceof SlockException.NoAnswer,
        () -> ask.apply(Protocol.REFUSE));
  }

  /** What an answer gives; null: nothing. */
  private CompletableFuture<Grant> grant(Change change, CompletableFuture<Server.Answer> asked) {
    return asked.thenApply(a -> a.number() == 0 ? null : new Grant(change.server, owner, a.number(), a.sent()));
  }

  /** The ttl of a hold, and the fence that renewals named, when a change of its mode began. */
  private record Change(Server server, long ttl, long named) {}

  /** Begins a change of mode, unless another one is open. */
  private Change open() {
    Settings.require(keeper instanceof Server && owner.keys().size() == 1, "the mode changes for one key on one server");
    Change change;
    synchronized (this) {
      Settings.require(!isChanging, "another change of the mode is open");
      isChanging = true;
      change = new Change((Server) keeper, ttl, named());
    }
    SlockException problem = update(() -> isOpen = true);
    if (problem != null) {
      close();
      throw problem;
    }
    return change;
  }

  private synchronized void close() {
    isChanging = false;
    upgrade = null;
  }

  /**
   * Ends a change of mode. One that is still open is settled in the background; that is waited for if the server replies,
   * but not for long.
   *
   * @param isUnsettled whether the server may have changed the mode, or may still do so, after an error
   * @param settle learns the mode that the hold has after that
   */
  private CompletableFuture<Void> end(Change change, Mode to, CompletableFuture<Grant> asked, Predicate<Throwable> isUnsettled,
      Supplier<CompletableFuture<Grant>> settle) {
    CompletableFuture<Void> result = new CompletableFuture<>();
    asked.whenComplete((grant, failure) -> {
      Throwable error = unwrap(failure);
      boolean isStillOpen = error != null && isUnsettled.test(error);
      boolean isGone = error instanceof SlockException.NotHeld || String.valueOf(error).contains("WRONGTYPE");
      SlockException problem = update(() -> {
        if (error == null) {
          grant(to, grant.fence(), grant.from());
        } else if (isGone) {
          lose(Reason.GONE);
        } else {
          isOpen = isStillOpen || change.named == 0;
        }
      });
      Throwable end = problem != null ? problem : error;
      CompletableFuture<Grant> settling =
          isStillOpen && problem == null ? settle.get() : CompletableFuture.completedFuture(null);
      settling.whenComplete((settled, none) -> {
        if (settled != null) {
          update(() -> grant(to, settled.fence(), settled.from()));
        }
        close();
        complete(result, end);
      });
      if (isStillOpen) {
        Clock.after(error instanceof SlockException.TimedOut ? ServerAcquisition.LATE_REPLY : 0, () -> complete(result, end));
      }
    });
    return result;
  }

  private static void complete(CompletableFuture<Void> result, Throwable error) {
    if (error == null) {
      result.complete(null);
    } else {
      result.completeExceptionally(error);
    }
  }
}
