//! The module's state, in one structure with one owner.
//!
//! Commands and the timer borrow the [`Runtime`] for one operation. The server may call us back in the
//! middle of it: a key that is opened expires, and a subscriber of another module runs commands. What such
//! a callback has to say is a [`Notice`]; it is taken note of at once where the runtime is free, else when
//! it is. The few things that a callback must be able to read at any time stand beside the runtime.
//!
//! | of the state | where |
//! |---|---|
//! | the queues, the fences, which hold ends with which connection | the core's `LockManager` |
//! | the clients that wait, who asked | `waiting_clients` |
//! | when the queues are served next: the timer | `schedule`, `sleep_watch` |
//! | whether they may be served now | `write_gate` |
//! | the values of the settings | `settings` |
//! | what is counted | `metrics` |
//!
//! The clock is nobody's: it is read once for each decision, by `server::now`.

mod blocked_clients;
mod callers;
mod metrics;
mod reset_watch;
mod schedule;
mod settings;
mod sleep_watch;
mod waiting_clients;
mod write_gate;

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use slock_core::{ConnectionId, LockId, LockIdRef, LockManager, ProbePosition, Timestamp};

pub use callers::WaitingCommand;
pub use metrics::Metrics;
pub use reset_watch::ResetWatch;
pub use schedule::Schedule;
pub use settings::{Settings, TTL_MAX_MS};
pub use sleep_watch::SleepWatch;
pub use waiting_clients::{WaitingClients, without_subscriber};
pub use write_gate::{WriteBlock, WriteGate};

use crate::server::{Ctx, HandleKey, now};

/// What operations work with.
#[derive(Default)]
pub struct Runtime {
    /// The rules: who holds, who waits, who is next.
    pub manager: LockManager,
    /// The clients that wait.
    pub clients: WaitingClients,
    /// When the queues are served next. `None` until the module has been loaded.
    pub schedule: Option<Schedule>,
    /// Whether the timer may write.
    pub write_gate: WriteGate,
    /// Locks that came by `RESTORE`, whose keys may lack an expiry.
    pub restored: BTreeSet<LockId>,
    /// When the grace period began, on the monotonic clock.
    pub started_ms: u64,
    /// Whether this is a node of a cluster.
    pub is_cluster: bool,
    /// Whether the server may evict locks.
    pub may_evict: bool,
    /// Whether somebody has waited since the start. What only waiting clients need is asked for then.
    pub has_waited: bool,
    /// Notices `CONFIG RESETSTAT`.
    pub reset_watch: ResetWatch,
    /// How far the look for channels without a subscriber has come; see `runtime::end_of_turn`.
    pub subscribers: SubscriberCheck,
    /// How far the look for slots that have gone has come; see `runtime::end_of_turn`.
    pub probe: Probe,
}

/// How far the look at all names that are waited for has come.
#[derive(Default)]
pub struct Probe {
    /// Where it goes on, in the middle of a pass.
    pub position: Option<ProbePosition>,
    /// When it goes on or begins anew, on the monotonic clock.
    pub next_ms: u64,
}

/// How far the look at all channels on which requests are answered has come.
#[derive(Default)]
pub struct SubscriberCheck {
    /// The channel that was looked at last, in the middle of a pass.
    pub after: Option<Rc<[u8]>>,
    /// When it goes on or begins anew, on the monotonic clock.
    pub next_ms: u64,
}

/// Something that the server has told us.
pub enum Notice {
    /// This key appeared, went, or has another expiry.
    KeyChanged(LockId),
    /// A lock came under this name by `RESTORE`.
    LockRestored(LockId),
    /// Something happened to all keys of this database, or of every one.
    DatabaseChanged(Option<i32>),
    /// These databases have changed places.
    DatabasesSwapped(i32, i32),
    /// This connection has closed.
    ConnectionClosed(ConnectionId),
    /// The client that waits has gone, or the server has answered it.
    WaiterGone(HandleKey),
    /// `CLIENT UNBLOCK`: the wait of this client is over.
    WaiterUnblocked(HandleKey),
    /// This fence was given elsewhere or before.
    FenceSeen(u64),
    /// A setting of this module has another value.
    SettingsChanged,
    /// Something that concerns the whole server has changed: its role, its data set, its own configuration.
    ServerChanged(fn(&mut Runtime)),
}

impl Runtime {
    /// Takes note.
    pub fn note(&mut self, notice: Notice) {
        match notice {
            Notice::KeyChanged(lock) => self.manager.key_changed(lock.as_ref()),
            Notice::LockRestored(lock) => drop(self.restored.insert(lock)),
            Notice::DatabaseChanged(db) => self.manager.database_changed(db),
            Notice::DatabasesSwapped(first, second) => self.manager.databases_swapped(first, second),
            Notice::ConnectionClosed(connection) => self.manager.connection_closed(connection),
            Notice::WaiterGone(handle) => {
                if let Some(request) = self.clients.blocked.remove(handle) {
                    self.manager.cancel(request);
                }
            }
            Notice::WaiterUnblocked(handle) => {
                if let Some(request) = self.clients.blocked.remove(handle) {
                    self.manager.time_out(request);
                }
            }
            Notice::FenceSeen(fence) => self.manager.fences.see(fence),
            Notice::SettingsChanged => {
                self.apply_settings();
                return self.reschedule(now());
            }

            Notice::ServerChanged(change) => {
                change(self);
                return self.reschedule(now());
            }
        }
        self.reschedule_if_work();
    }

    /// Begins the grace period anew.
    pub fn begin_grace(&mut self) {
        self.started_ms = now().monotonic_ms();
        self.apply_settings();
    }

    fn apply_settings(&mut self) {
        let (max_waiters, grace_ms) =
            with(|state| (state.settings.max_waiters.get(), state.settings.restart_grace_ms.get()));
        self.manager.max_waiters = usize::try_from(max_waiters).unwrap_or(0);
        self.manager.set_grace((grace_ms > 0).then(|| self.started_ms + grace_ms.unsigned_abs()));
    }

    /// Begins to count anew if the server has done so.
    pub fn follow_reset(&mut self, ctx: Ctx<'_>) {
        if self.reset_watch.was_reset(ctx) {
            self.manager.reset_counters();
            with(|state| state.metrics.reset());
        }
    }

    /// After an operation: sees to it that the queues are served when they have to be.
    pub fn reschedule(&mut self, now: Timestamp) {
        let watches_sleep = with(|state| state.sleep_watch.next_due_ms().is_some());
        if self.manager.is_idle()
            && !self.clients.blocked.has_left_over()
            && self.restored.is_empty()
            && !watches_sleep
        {
            return;
        }
        self.reschedule_if_work();
        if let (Some(due_ms), Some(schedule)) = (self.next_due_ms(now), &mut self.schedule) {
            schedule.at(due_ms);
        }
    }

    /// When the queues have to be served next if nothing happens, on the monotonic clock.
    pub fn next_due_ms(&self, now: Timestamp) -> Option<u64> {
        let probes = self.is_cluster && !self.manager.waitlist().is_empty();
        let probe_ms = probes.then_some(self.probe.next_ms);
        let has_channels = self.manager.waitlist().channels(None).next().is_some();
        let channels_ms = has_channels.then_some(self.subscribers.next_ms);
        let idle_ms = with(|state| state.sleep_watch.next_due_ms());
        let due = [self.manager.next_due_ms(now), probe_ms, channels_ms, idle_ms];
        due.into_iter().flatten().min()
    }

    /// Whether the timer has something to do that does not wait for time to pass.
    pub fn has_work(&self) -> bool {
        self.manager.has_work()
            || self.manager.has_answers()
            || self.clients.blocked.has_left_over()
            || !self.restored.is_empty()
    }

    /// On a replica: goes on sending away those who waited.
    pub fn reschedule_if_resigning(&mut self) {
        if self.manager.is_resigning()
            && let Some(schedule) = &mut self.schedule
        {
            schedule.at_end_of_turn();
        }
    }

    fn reschedule_if_work(&mut self) {
        if self.has_work()
            && let Some(schedule) = &mut self.schedule
        {
            schedule.at_end_of_turn();
        }
    }
}

#[derive(Default)]
struct OwnChange {
    is_under_way: bool,
    db: i32,
    name: Vec<u8>,
}

#[derive(Default)]
struct Removals {
    keys: Vec<LockId>,
    /// All keys of a database, or they changed places.
    all: bool,
}

/// See the module.
#[derive(Default)]
pub struct State {
    runtime: RefCell<Runtime>,
    /// What came while the runtime was in use.
    notices: RefCell<Vec<Notice>>,
    /// Whether the server loads a data set.
    pub is_loading: Cell<bool>,
    /// Whether the server is a replica.
    pub is_replica: Cell<bool>,
    /// The key that the server is adding or removing because we told it to. The buffer is kept.
    own_change: RefCell<OwnChange>,
    /// What went while an operation was under way, and not by our doing; see `keyspace`.
    removals: RefCell<Removals>,
    has_removals: Cell<bool>,
    /// The last fence that was given or seen.
    last_fence: Cell<u64>,
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

/// The state, for what may be read at any time.
pub fn with<R>(look: impl FnOnce(&State) -> R) -> R {
    STATE.with(look)
}

/// Borrows the runtime for an operation. `None` if one is under way: a command was run from within a
/// notification of another.
pub fn try_with_runtime<R>(operate: impl FnOnce(&mut Runtime) -> R) -> Option<R> {
    STATE.with(|state| {
        let mut runtime = state.runtime.try_borrow_mut().ok()?;
        let result = operate(&mut runtime);
        let notices = state.notices.take();
        notices.into_iter().for_each(|notice| runtime.note(notice));
        state.last_fence.set(runtime.manager.fences.last());
        Some(result)
    })
}

/// Takes note of what the server has told us: at once, or when the runtime is free.
pub fn notice(notice: Notice) {
    STATE.with(|state| match state.runtime.try_borrow_mut() {
        Ok(mut runtime) => {
            runtime.note(notice);
            state.last_fence.set(runtime.manager.fences.last());
        }
        Err(_) => {
            if let Notice::DatabaseChanged(_) | Notice::DatabasesSwapped(..) = notice {
                state.removals.borrow_mut().all = true;
                state.has_removals.set(true);
            }
            state.notices.borrow_mut().push(notice);
        }
    });
}

/// A key has changed, and not by an operation of the manager. Costs next to nothing while nobody waits.
pub fn key_changed(lock: LockIdRef<'_>) {
    STATE.with(|state| {
        if state.is_own_change(lock) {
            return;
        }
        match state.runtime.try_borrow_mut() {
            Ok(runtime) if runtime.manager.waitlist().is_empty() => {}
            Ok(mut runtime) => {
                runtime.manager.key_changed(lock);
                runtime.reschedule_if_work();
            }
            Err(_) => {
                state.removals.borrow_mut().keys.push(lock.into());
                state.has_removals.set(true);
                state.notices.borrow_mut().push(Notice::KeyChanged(lock.into()));
            }
        }
    });
}

impl State {
    /// Whether this server only follows what was decided before or elsewhere: it is a replica, or loads.
    pub fn only_follows(&self) -> bool {
        self.is_replica.get() || self.is_loading.get()
    }

    /// Whether the server is changing this key because we told it to.
    pub fn is_own_change(&self, lock: LockIdRef<'_>) -> bool {
        let own = self.own_change.borrow();
        own.is_under_way && own.db == lock.db && *own.name == *lock.name
    }

    /// Runs a change of this key that is our own doing.
    pub fn as_own_change<R>(&self, lock: LockIdRef<'_>, change: impl FnOnce() -> R) -> R {
        struct Until<'s>(&'s RefCell<OwnChange>);
        impl Drop for Until<'_> {
            fn drop(&mut self) {
                self.0.borrow_mut().is_under_way = false;
            }
        }
        let mut own = self.own_change.borrow_mut();
        own.name.clear();
        own.name.extend_from_slice(lock.name);
        (own.db, own.is_under_way) = (lock.db, true);
        drop(own);
        let _until_the_end = Until(&self.own_change);
        change()
    }

    /// Whether a key for which `is_open` says so has gone since the last call, while an operation was under
    /// way and not by its doing.
    pub fn take_removals(&self, mut is_open: impl FnMut(LockIdRef<'_>) -> bool) -> bool {
        self.has_removals.replace(false) && {
            let removals = self.removals.take();
            removals.all || removals.keys.iter().any(|lock| is_open(lock.as_ref()))
        }
    }

    /// The last fence that was given or seen.
    pub fn last_fence(&self) -> u64 {
        self.last_fence.get()
    }
}
