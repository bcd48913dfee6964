//! When the office is to be called next: at the end of this turn of the event loop, or at a moment.
//!
//! There are at most two timers, one of each kind. Whoever is called early finds nothing to do and sets
//! the next alarm.

use std::cell::Cell;

use crate::office;
use crate::server::{TimerId, now, start_timer, stop_timer, wake_event_loop};

/// The timers that run.
#[derive(Clone, Copy, Default)]
struct Alarm {
    is_soon: bool,
    at: Option<(TimerId, u64)>,
}

thread_local! {
    static ALARM: Cell<Alarm> = Cell::default();
}

/// Has [`office::tick`] called at the end of this turn of the event loop.
pub fn ring_soon() {
    let alarm = ALARM.get();
    if !alarm.is_soon {
        ALARM.set(Alarm { is_soon: true, ..alarm });
        start_timer(0, |ctx| {
            ALARM.set(Alarm { is_soon: false, ..ALARM.get() });
            office::tick(ctx);
        });
        wake_event_loop();
    }
}

/// Has [`office::tick`] called at this moment, or before: an earlier alarm stays, and sets the next.
pub fn ring_at(at_ms: u64, wake: bool) {
    let alarm = ALARM.get();
    if alarm.at.is_some_and(|(_, set_ms)| set_ms <= at_ms) {
        return;
    }
    if let Some((timer, _)) = alarm.at {
        stop_timer(timer);
    }
    // Timers count from now; the clock may have gone on a little since the decision.
    let timer = start_timer(at_ms.saturating_sub(now().ms()), |ctx| {
        ALARM.set(Alarm { at: None, ..ALARM.get() });
        office::tick(ctx);
    });
    ALARM.set(Alarm { at: Some((timer, at_ms)), ..alarm });
    if wake {
        wake_event_loop();
    }
}
