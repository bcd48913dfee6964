// SPDX-License-Identifier: MIT OR Apache-2.0

package example.slock;

import static example.slock.Protocol.unwrap;

import example.slock.Acquisition.Grant;
import example.slock.Protocol.Owner;
import example.slock.SlockException.Reason;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.Consumer;
import java.util.function.Supplier;

/** What is behind a {@link Hold}: it is renewed, and ended when its time is over. It does not refer to the hold. */
final class Kept {
  /** After which time a hold without a maximum is worth a warning. */
  private static final long LONG = 3600 * Clock.SECOND;

  final Request request;
  final Locks locks;
  final Settings settings;
  final Keeper keeper;
  final Owner owner;
  /** When the grant was known. */
  private final long granted;
  // These change in update.
  volatile Mode mode;
  volatile long fence;
  /** Valid until then. */
  private volatile long until;
  private volatile long ttl;
  /** The server may have changed the mode and the fence: renewals name no fence. */
  private volatile boolean isOpen;
  /** What the last renewal said, unless one has succeeded since. */
  private volatile Throwable failed;
  /** Gives what is wrong with it; null while it is live. */
  private volatile Supplier<SlockException> ending;
  /** When the next renewal is due. */
  private long renewAt;
  private long warnAt;
  /** The change of the mode that is open, or null. */
  private ServerAcquisition change;
  /** Somebody would notice its end. */
  private boolean isWatched;
  private ScheduledFuture<?> timer;
  private final CompletableFuture<SlockException> ended = new CompletableFuture<>();
  /** Is done when the last command that prolongs the hold was answered. */
  private final AtomicReference<CompletableFuture<Void>> extending = new AtomicReference<>(CompletableFuture.completedFuture(null));

  Kept(Request request, Grant grant) {
    this.request = request;
    locks = request.locks;
    settings = request.settings;
    keeper = grant.keeper();
    owner = grant.owner();
    granted = Clock.now();
    warnAt = settings.maxHold == Clock.NEVER ? granted + LONG : Clock.NEVER;
    ttl = settings.ttl;
    grant(request.mode, grant.fence(), grant.from());
    locks.holds.add(this);
    locks.backend.follow(owner.keys().get(0));
    setTimer();
  }

  long remaining() {
    return ending == null ? Math.max(0, Math.min(until, Clock.plus(granted, settings.maxHold)) - Clock.now()) : 0;
  }

  /** The fence that renewals name. */
  private long named() {
    return isOpen ? 0 : fence;
  }

  /** How long it has to last even if it is released. */
  private long least() {
    return settings.atLeast - (Clock.now() - granted);
  }

  // --- what changes it

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
    until = Math.max(until, Clock.plus(from, locks.backend.counted(atLeast)));
    renewAt = Clock.plus(from, ttl / 3);
    failed = null;
  }

  private void lose(Reason reason) {
    Throwable cause = reason == Reason.EXPIRED && failed != null ? Protocol.explain(failed, owner.names()) : null;
    ending = () -> new SlockException.Lost(owner.names(), reason, cause);
  }

  /** Changes a live hold, and does what follows if that or its time ends it. It gives what is wrong with the hold after that. */
  private SlockException update(Runnable step) {
    long now = Clock.now();
    Acquisition left;
    synchronized (this) {
      if (ending != null) {
        return ending.get();
      } else if (now >= Clock.plus(granted, settings.maxHold)) {
        lose(Reason.MAX_HOLD);
      } else if (now >= until) {
        lose(locks.isClosing ? Reason.CLOSED : Reason.EXPIRED);
      } else {
        step.run();
      }
      if (ending == null) {
        return null;
      } else if (timer != null) {
        timer.cancel(false);
      }
      left = change;
    }
    SlockException end = ending.get();
    locks.holds.remove(this);
    if (left != null) {
      left.leave(end);
    }
    if (end instanceof SlockException.Lost loss) {
      keeper.endLater(owner, fence, 0); // by the fence, because another hold of a token of the program's stays
      locks.report.lost(request.label(), loss);
    }
    locks.report.held(request.label(), now - granted);
    ended.complete(end);
    return end;
  }

  /** Null while the hold is valid. */
  SlockException check() {
    return update(() -> {});
  }

  /** Ends a live hold here, before anything is sent. Else it gives what had ended it. */
  SlockException finish() {
    Supplier<SlockException> over = () -> new SlockException.NotHeld(owner.names(), mode);
    SlockException problem = update(() -> ending = over);
    return ending == over ? null : problem;
  }

  /** Calls once when the hold ends, also if that was before. What is called must not block. */
  void onEnd(Consumer<SlockException> told) {
    isWatched = true;
    setTimer();
    ended.thenAccept(told);
  }

  // --- the watchdog

  boolean isRenewed() {
    return settings.isRenewed && !locks.isClosing;
  }

  /** Has the hold looked at when that is due next, if it is renewed or somebody would notice its end. */
  private synchronized void setTimer() {
    if (ending == null && timer == null && (settings.isRenewed || isWatched)) {
      long due = Math.min(until, Clock.plus(granted, settings.maxHold));
      timer = Clock.after((isRenewed() ? Math.min(due, renewAt) : due) - Clock.now(), this::look);
    }
  }

  /** Ends a hold whose time is over or whose owner has gone, and renews it if that is due. */
  private void look() {
    long now = Clock.now();
    boolean isDue;
    synchronized (this) {
      timer = null;
      isDue = isRenewed() && now >= renewAt;
      renewAt = isDue ? now + ttl / 10 : renewAt;
    }
    setTimer();
    if (check() != null || !isDue) {
      return;
    } else if (settings.thread != null && !settings.thread.isAlive()) {
      abandon();
      return;
    } else if (now >= warnAt) {
      warnAt = Clock.NEVER;
      locks.report.warn("a lock has been held for an hour and has no maximum hold time", request.label(), owner.names());
    }
    if (extending.get().isDone()) {
      long patience = Math.min(Math.max(ttl / 4, Server.TRY / 2), Server.TRY);
      alone(() -> extend(0, now + patience)).whenComplete((done, error) -> {
        if (error != null && check() == null) {
          locks.report.renewalFailed(request.label(), owner.names(), Protocol.explain(unwrap(error), owner.names()));
        }
      });
    }
  }

  /** Ends a hold that nobody refers to, or whose thread is dead. What was never renewed lasts until its ttl. */
  void abandon() {
    if (finish() == null && settings.isRenewed) {
      keeper.endLater(owner, named(), least());
      locks.report.warn("nobody refers to a hold any more that was not released; it is released now", request.label(), owner.names());
    }
  }

  /** Runs when what prolonged the hold before has ended. */
  private CompletableFuture<Void> alone(Supplier<CompletableFuture<Void>> work) {
    CompletableFuture<Void> mine = new CompletableFuture<>();
    return extending.getAndSet(mine).thenCompose(none -> work.get()).whenComplete((done, error) -> mine.complete(null));
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
    long wanted = Math.max(ttl, atLeast);
    long named = named();
    return keeper.extend(owner, wanted, named, settings, Math.min(end, until)).handle((answer, failure) -> {
      Throwable error = unwrap(failure);
      boolean isGone = error == null ? answer.number() == 0 : Protocol.code(error).equals("WRONGTYPE");
      SlockException wrong = update(() -> {
        if (isGone && named == named()) { // else it was about another fence
          lose(Reason.GONE);
        } else if (error != null) {
          failed = Server.moreTelling(failed, error);
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

  CompletableFuture<Void> release() {
    SlockException problem = finish();
    if (problem != null) {
      return CompletableFuture.failedFuture(problem);
    }
    return keeper.end(owner, named(), least()).handle((wasHeld, failure) -> {
      if (failure != null) {
        locks.report.releaseFailed(request.label(), owner.names(), unwrap(failure));
        throw Protocol.failure(unwrap(failure));
      } else if (!wasHeld) {
        lose(Reason.GONE);
        SlockException.Lost loss = (SlockException.Lost) ending.get();
        locks.report.lost(request.label(), loss);
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
    long length = ttl;
    long named = named();
    ServerAcquisition acquisition = new ServerAcquisition(server, owner, owner.change(to, length, named), settings.with(s -> {
      s.wait = wait;
      s.ttl = length;
    }), false);
    synchronized (this) {
      Settings.require(change == null, "another change of the mode is open");
      change = acquisition;
    }
    SlockException gone = update(() -> {
      isOpen = true;
      mode = to == Mode.READ ? to : mode;
    });
    if (gone != null) {
      closeChange();
      throw gone;
    }
    return new Acquisition.Running<>(acquisition, locks.run(acquisition).handle((grant, failure) -> {
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
      CompletableFuture<Void> settled = isUnsettled && problem == null ? settle(server, to, acquisition)
          : CompletableFuture.completedFuture(null);
      settled.whenComplete((done, none) -> closeChange());
      long most = error instanceof SlockException.TimedOut ? Server.LATE_REPLY : 0;
      return settled.copy().completeOnTimeout(null, most, TimeUnit.NANOSECONDS).<Void>handle((done, none) -> {
        if (problem != null || error != null) {
          throw Protocol.failure(problem != null ? problem : error);
        }
        return null;
      });
    }).thenCompose(end -> end));
  }

  private synchronized void closeChange() {
    change = null;
  }

  /** Withdraws an upgrade and learns the mode that the hold has after that, or sends a downgrade until it is answered. */
  private CompletableFuture<Void> settle(Server server, Mode to, ServerAcquisition acquisition) {
    return server.ask(owner.names(), Protocol.REFUSE, owner.withdraw()).thenCompose(withdrawn -> withdrawn.number() > 0
        ? CompletableFuture.completedFuture(null) : server.ask(owner.names(), Protocol.REFUSE,
            to == Mode.READ ? acquisition.call : owner.adopt(to, acquisition.wanted.ttl, "")).thenAccept(held -> {
              if (held.number() > 0) {
                update(() -> grant(to, held.number(), held.sent()));
              }
            }));
  }
}
