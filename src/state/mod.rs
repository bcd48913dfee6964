//! What may be read at any time, also by a callback in the middle of an operation. What operations work with is in
//! `runtime`.
//!
//! | of the state | where |
//! |---|---|
//! | the values of the settings | `settings` |
//! | what is counted outside of the core | `metrics` |
//! | when the server sleeps | `sleep_watch` |

mod metrics;
mod settings;
mod sleep_watch;

use std::cell::Cell;
use std::rc::Rc;

pub use metrics::Metrics;
pub use settings::{Settings, TTL_MAX_MS};
pub use sleep_watch::SleepWatch;

/// See the module.
#[derive(Default)]
pub struct State {
    /// Whether the server loads a data set.
    pub is_loading: Cell<bool>,
    /// Whether the server is a replica.
    pub is_replica: Cell<bool>,
    /// The last fence that was given or seen.
    pub last_fence: Cell<u64>,
    /// What is counted outside of the manager.
    pub metrics: Metrics,
    /// The values of the settings.
    pub settings: Settings,
    /// Whether the server has to be woken for a new timer.
    pub sleep_watch: Rc<SleepWatch>,
    /// Whether anybody listens to what is replicated; `None` when it has to be looked at again.
    pub has_listeners: Cell<Option<bool>>,
}

thread_local! {
    static STATE: State = State::default();
}

/// The state.
pub fn with<R>(look: impl FnOnce(&State) -> R) -> R {
    STATE.with(look)
}

impl State {
    /// Whether this server only follows what was decided before or elsewhere: it is a replica, or loads.
    pub fn only_follows(&self) -> bool {
        self.is_replica.get() || self.is_loading.get()
    }

    /// The last fence that was given or seen.
    pub fn last_fence(&self) -> u64 {
        self.last_fence.get()
    }
}
