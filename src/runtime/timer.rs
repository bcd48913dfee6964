//! When the queues are to be served next: at the end of this turn of the event loop, or at a moment.
//!
//! There are at most two timers, one of each kind. Whoever is called early finds nothing to do and
//! schedules the next call.

use crate::server::{OwnCtx, TimerId, now, start_timer, stop_timer, wake_event_loop};

/// See the module.
pub struct Timer {
    on_soon: fn(OwnCtx<'_>),
    on_due: fn(OwnCtx<'_>),
    is_soon: bool,
    /// The timer, and its moment on the monotonic clock.
    due: Option<(TimerId, u64)>,
}

impl Timer {
    /// Timers that call these: `on_soon` has to report [`Timer::soon_has_fired`], `on_due`
    /// [`Timer::due_has_fired`].
    pub fn new(on_soon: fn(OwnCtx<'_>), on_due: fn(OwnCtx<'_>)) -> Self {
        Self { on_soon, on_due, is_soon: false, due: None }
    }

    /// Calls `on_soon` at the end of this turn of the event loop; from within a timer, of the next.
    pub fn schedule_now(&mut self) {
        if !self.is_soon {
            self.is_soon = true;
            start_timer(0, self.on_soon);
            wake_event_loop();
        }
    }

    /// Calls `on_due` at this moment of the monotonic clock, or before: an earlier call stays, and schedules
    /// the next.
    pub fn schedule_at(&mut self, at_ms: u64) {
        if self.due.is_some_and(|(_, due_ms)| due_ms <= at_ms) {
            return;
        }
        if let Some((timer, _)) = self.due {
            stop_timer(timer);
        }
        let timer = start_timer(at_ms.saturating_sub(now().monotonic_ms()), self.on_due);
        self.due = Some((timer, at_ms));
        wake_event_loop();
    }

    /// The call of [`Timer::schedule_now`] has come.
    pub fn soon_has_fired(&mut self) {
        self.is_soon = false;
    }

    /// The call of [`Timer::schedule_at`] has come.
    pub fn due_has_fired(&mut self) {
        self.due = None;
    }
}
