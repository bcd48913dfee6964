//! Whether the server has to be woken for a new timer.
//!
//! Redis 7.0 decides how long to sleep and then does its work before the sleep (`beforeSleep`), in which commands run too: of
//! clients that were unblocked, and with I/O threads of any. A timer that is started there is seen after the sleep.
//! To wake the server costs two system calls, so it is done only there, while the server says when it goes to sleep. It
//! says so in the middle of that work.

use std::cell::Cell;

use crate::server::{monotonic_ms, wake_event_loop, watch_sleep};

/// After so long without anybody who waits, the server need not say any more when it sleeps.
const IDLE_MS: u64 = 1000;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The server does not say.
    Unknown,
    /// A timer that is started now may or may not be seen before the sleep.
    Working,
    /// Our timer runs: what it starts is seen.
    InTimer,
    /// A timer that is started now is not seen before the sleep.
    GoingToSleep,
}

thread_local! {
    static SLEEP_WATCH: SleepWatch = const {
        SleepWatch {
            phase: Cell::new(Phase::Unknown),
            is_watching: Cell::new(false),
            has_new_timer: Cell::new(false),
            idle_since_ms: Cell::new(None),
        }
    };
}

/// The one there is.
pub fn with_sleep_watch<R>(look: impl FnOnce(&SleepWatch) -> R) -> R {
    SLEEP_WATCH.with(look)
}

/// See the module.
pub struct SleepWatch {
    phase: Cell<Phase>,
    is_watching: Cell<bool>,
    /// Whether a timer was started since the timers ran last.
    has_new_timer: Cell<bool>,
    /// Since when nobody has waited, on the monotonic clock.
    idle_since_ms: Cell<Option<u64>>,
}

impl SleepWatch {
    /// Somebody waits from now on.
    pub fn begin(&self) {
        self.idle_since_ms.set(None);
        if !self.is_watching.get() {
            self.is_watching.set(watch_sleep(true));
        }
    }

    /// Nobody waits now. Only from a timer: the server must not be inside of an event.
    pub fn note_idle(&self) {
        if !self.is_watching.get() {
            return;
        }
        let now_ms = monotonic_ms();
        match self.idle_since_ms.get() {
            None => self.idle_since_ms.set(Some(now_ms)),
            Some(since_ms) if now_ms < since_ms + IDLE_MS => {}
            Some(_) => {
                watch_sleep(false);
                self.is_watching.set(false);
                self.phase.set(Phase::Unknown);
            }
        }
    }

    /// When [`SleepWatch::note_idle`] has to be called if nobody waits until then, on the monotonic clock.
    pub fn next_due_ms(&self) -> Option<u64> {
        self.idle_since_ms.get().filter(|_| self.is_watching.get()).map(|since_ms| since_ms + IDLE_MS)
    }

    /// A timer has been started.
    pub fn timer_started(&self) {
        match self.phase.get() {
            Phase::InTimer => {}
            Phase::Working => self.has_new_timer.set(true),
            Phase::Unknown | Phase::GoingToSleep => wake_event_loop(),
        }
    }

    /// Runs a function of ours in a timer.
    pub fn in_timer<R>(&self, run: impl FnOnce() -> R) -> R {
        let phase = self.phase.replace(Phase::InTimer);
        self.has_new_timer.set(false);
        let result = run();
        if self.phase.get() == Phase::InTimer {
            self.phase.set(phase);
        }
        result
    }

    /// Whether a function of ours runs in a timer.
    pub fn is_in_timer(&self) -> bool {
        self.phase.get() == Phase::InTimer
    }

    /// The server is about to sleep.
    pub fn before_sleep(&self) {
        if self.has_new_timer.replace(false) {
            wake_event_loop();
        }
        self.phase.set(Phase::GoingToSleep);
    }

    /// The server has slept.
    pub fn after_sleep(&self) {
        self.phase.set(Phase::Working);
    }
}
