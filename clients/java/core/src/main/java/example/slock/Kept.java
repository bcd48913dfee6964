package example.slock;

import static example.slock.Protocol.unwrap;

import example.slock.Acquisition.Grant;
import example.slock.Protocol.Owner;
import example.slock.SlockException.Reason;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ScheduledFuture;
import java.util.function.Consumer;
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
  /** The change of the mode that is open, or null. */
  private ServerAcquisition change;
  /** What the last renewal said, unless one has succeeded since. */
  private Throwable failed;
  /** It was warned of that nothing limits the hold. */
  private boolean isLong;
  /** Somebody would notice its end. */
  private boolean isWatched;
  private final CompletableFuture<SlockException> ended = new CompletableFuture<>();
  private ScheduledFuture<?> timer;
  /** When the last command that prolongs the hold was answered. */
  private CompletableFuture<Void> extending = CompletableFuture.completedFuture(null);

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
  private SlockException update(Runnable step) {
    SlockException problem;
    Acquisition left;
    long now = Clock.now();
    synchronized (this) {
      boolean wasLive = state == State.LIVE;
      if (wasLive && now >= Clock.plus(granted, settings.maxHold)) {
        lose(Reason.MAX_HOLD);
      } else if (wasLive && now >= until) {
        lose(locks.isClosing ? Reason.CLOSED : Reason.EXPIRED);
      } else if (wasLive) {
        step.run();
      }
      problem = problem();
      if (problem == null || !wasLive) {
        return problem;
      } else if (timer != null) {
        timer.cancel(false);
      }
      left = change;
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
    ended.complete(problem);
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
    synchronized (this) {
      isWatched = true;
      setTimer();
    }
    ended.thenAccept(told);
  }

  // --- the watchdog

  private boolean isRenewed() {
    return settings.isRenewed && !locks.isClosing;
  }

  /** Has the hold looked at when that is due next, if it is renewed or somebody would notice its end. It is guarded. */
  private void setTimer() {
    if (state == State.LIVE && timer == null && (settings.isRenewed || isWatched)) {
      long due = Math.min(until, Clock.plus(granted, settings.maxHold));
      timer = Clock.after((isRenewed() ? Math.min(due, renewAt) : due) - Clock.now(), this::look);
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
      setTimer();
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
      long patience = Math.min(Math.max(ttl / 4, Server.TRY / 2), Server.TRY);
      alone(() -> extend(0, now + patience)).whenComplete((done, error) -> {
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
    CompletableFuture<Void> mine = new CompletableFuture<>();
    CompletableFuture<Void> before;
    synchronized (this) {
      before = extending;
      extending = mine;
    }
    return before.thenCompose(none -> work.get()).whenComplete((done, error) -> mine.complete(null));
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

  /**
   * Makes a reader the writer, or the writer a reader, which it counts as from the first attempt on. If that is given up, it is
   * settled in the background. That is waited for if the server replies, but not for long.
   */
  Acquisition.Running<Void> change(Mode to, long wait) {
    Settings.require(keeper instanceof Server && owner.keys().size() == 1, "the mode changes for one key on one server");
    Server server = (Server) keeper;
    long length;
    long named;
    synchronized (this) {
      Settings.require(change == null, "another change of the mode is open");
      length = ttl;
      named = named();
      change = new ServerAcquisition(server, owner, owner.change(to, length, named), settings.with(s -> {
        s.wait = wait;
        s.ttl = length;
      }), false);
    }
    ServerAcquisition acquisition = change;
    SlockException gone = update(() -> {
      isOpen = true;
      mode = to == Mode.READ ? to : mode;
    });
    if (gone != null) {
      close();
      throw gone;
    }
    CompletableFuture<Void> result = new CompletableFuture<>();
    locks.run(acquisition).whenComplete((grant, failure) -> {
      Throwable error = unwrap(failure);
      boolean isUnsettled = error != null && acquisition.isOpen();
      SlockException problem = update(() -> {
        if (error == null) {
          grant(to, grant.fence(), grant.from());
        } else if (error instanceof SlockException.NotHeld || String.valueOf(error).contains("WRONGTYPE")) {
          lose(Reason.GONE);
        } else {
          isOpen = isUnsettled || named == 0;
        }
      });
      Throwable end = problem != null ? problem : error;
      CompletableFuture<?> settled = isUnsettled && problem == null ? settle(server, to, acquisition)
          : CompletableFuture.completedFuture(null);
      settled.whenComplete((done, none) -> {
        close();
        complete(result, end);
      });
      if (isUnsettled) {
        Clock.after(error instanceof SlockException.TimedOut ? ServerAcquisition.LATE_REPLY : 0, () -> complete(result, end));
      }
    });
    return new Acquisition.Running<>(acquisition, result);
  }

  private synchronized void close() {
    change = null;
  }

  private static void complete(CompletableFuture<Void> result, Throwable error) {
    if (error == null) {
      result.complete(null);
    } else {
      result.completeExceptionally(error);
    }
  }

  /** Withdraws an upgrade and learns the mode that the hold has after that, or sends a downgrade until it is answered. */
  private CompletableFuture<?> settle(Server server, Mode to, ServerAcquisition acquisition) {
    return server.ask(owner.names(), Protocol.REFUSE, owner.withdraw()).thenCompose(withdrawn -> withdrawn.number() > 0
        ? CompletableFuture.completedFuture(withdrawn) : server.ask(owner.names(), Protocol.REFUSE,
            to == Mode.READ ? acquisition.call : owner.adopt(to, acquisition.wanted.ttl)).thenApply(held -> {
              if (held.number() > 0) {
                update(() -> grant(to, held.number(), held.sent()));
              }
              return held;
            }));
  }
}
