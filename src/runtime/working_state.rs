//! What operations work with, and what the server has told us meanwhile.

use std::cell::RefCell;
use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;
use std::time::{Duration, Instant};

use slock_core::{ConnectionId, LockId, LockIdRef, LockManager, ProbePosition, Timestamp};

use super::schedule::{Schedule, Sweep};
use super::waiting_clients::WaitingClients;
use super::write_gate::WriteGate;

use crate::keyspace;
use crate::server::{Ctx, HandleKey, TOTALS, now};
use crate::state::{STATE, SleepWatch, with_sleep_watch};

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
    /// Notices `CONFIG RESETSTAT`.
    pub reset_watch: ResetWatch,
    /// The look for channels without a subscriber; see `notify`.
    pub channels: Sweep<Rc<[u8]>>,
    /// The look for slots that have gone; see `end_of_turn`.
    pub slots: Sweep<ProbePosition>,
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
                    self.manager.abandon(request);
                }
            }
            Notice::WaiterUnblocked(handle) => {
                if let Some(request) = self.clients.blocked.remove(handle) {
                    self.manager.time_out(request);
                }
            }
            Notice::FenceSeen(fence) => self.manager.fences.see(fence),
            Notice::SettingsChanged => self.apply_settings(),
            Notice::ServerChanged(change) => change(self),
        }
        self.reschedule(now());
    }

    /// Begins the grace period anew.
    pub fn begin_grace(&mut self) {
        self.started_ms = now().monotonic_ms();
        self.apply_settings();
    }

    fn apply_settings(&mut self) {
        let (max_waiters, grace_ms) =
            (STATE.settings.max_waiters.get(), STATE.settings.restart_grace_ms.get());
        self.manager.bounds.waiters = usize::try_from(max_waiters).unwrap_or(0);
        self.manager.set_grace((grace_ms > 0).then(|| self.started_ms + grace_ms.unsigned_abs()));
    }

    /// Begins to count anew if the server has done so.
    pub fn follow_reset(&mut self, ctx: Ctx<'_>) {
        if self.reset_watch.was_reset(ctx) {
            self.manager.reset_counters();
            STATE.metrics.reset();
        }
    }

    /// After an operation: sees to it that the queues are served when they have to be.
    #[inline(always)]
    pub fn reschedule(&mut self, now: Timestamp) {
        let watches_sleep =
            || STATE.hears_of_keys.get() && with_sleep_watch(SleepWatch::next_due_ms).is_some();
        if self.manager.is_idle()
            && !self.clients.blocked.has_left_over()
            && self.restored.is_empty()
            && !watches_sleep()
        {
            return;
        }
        if self.has_work() {
            self.schedule_end_of_turn();
        } else if let Some(due_ms) = self.next_due_ms(now) {
            self.schedule_at(due_ms);
        }
    }

    /// When the queues have to be served next if nothing happens, on the monotonic clock.
    fn next_due_ms(&self, now: Timestamp) -> Option<u64> {
        let waitlist = self.manager.waitlist();
        let slots_ms = (self.is_cluster && !waitlist.is_empty()).then_some(self.slots.next_ms);
        let channels_ms = waitlist.channels(None).next().map(|_| self.channels.next_ms);
        let idle_ms = with_sleep_watch(SleepWatch::next_due_ms);
        [self.manager.next_due_ms(now), slots_ms, channels_ms, idle_ms].into_iter().flatten().min()
    }

    /// Whether the timer has something to do that does not wait for time to pass.
    pub fn has_work(&self) -> bool {
        self.manager.has_work()
            || self.manager.has_answers()
            || self.clients.blocked.has_left_over()
            || !self.restored.is_empty()
    }

    /// Has the timer called at the end of this turn of the event loop.
    pub fn schedule_end_of_turn(&mut self) {
        if let Some(schedule) = &mut self.schedule {
            schedule.at_end_of_turn();
        }
    }

    /// Has the timer called again when the server has had time for commands.
    pub fn schedule_next_slice(&mut self) {
        if let Some(schedule) = &mut self.schedule {
            schedule.at_next_slice();
        }
    }

    /// Has the timer called at this moment of the monotonic clock, or before.
    pub fn schedule_at(&mut self, at_ms: u64) {
        if let Some(schedule) = &mut self.schedule {
            schedule.at(at_ms);
        }
    }
}

/// To look takes the server some ten microseconds, so this is the rarest that operators do not notice: what is counted
/// between a reset and the look is lost.
const LOOK_FOR_RESET_EVERY: Duration = Duration::from_secs(1);

/// Notices `CONFIG RESETSTAT`, which no server announces, by what the server had counted at the last look.
#[derive(Default)]
pub struct ResetWatch {
    totals: [u64; TOTALS.len()],
    looked: Option<Instant>,
}

impl ResetWatch {
    /// Whether the last look was a while ago. To look costs some microseconds.
    pub fn is_due(&self) -> bool {
        self.looked.is_none_or(|looked| looked.elapsed() >= LOOK_FOR_RESET_EVERY)
    }

    /// Whether the server has begun to count anew since the last look: one of its totals has become less.
    pub fn was_reset(&mut self, ctx: Ctx<'_>) -> bool {
        self.looked = Some(Instant::now());
        let totals = ctx.totals();
        let before = std::mem::replace(&mut self.totals, totals);
        totals.iter().zip(before).any(|(now, before)| *now < before)
    }
}

/// The runtime, and what came while it was in use.
#[derive(Default)]
struct Shared {
    runtime: RefCell<Runtime>,
    notices: RefCell<VecDeque<Notice>>,
}

impl Shared {
    fn next_notice(&self) -> Option<Notice> {
        self.notices.borrow_mut().pop_front()
    }
}

thread_local! {
    static SHARED: Shared = Shared::default();
}

/// Borrows the runtime for an operation. `None` if one is under way: a command was run from within a
/// notification of another.
pub fn try_with_runtime<R>(operate: impl FnOnce(&mut Runtime) -> R) -> Option<R> {
    SHARED.with(|shared| {
        let mut runtime = shared.runtime.try_borrow_mut().ok()?;
        let result = operate(&mut runtime);
        while let Some(notice) = shared.next_notice() {
            runtime.note(notice);
        }
        STATE.last_fence.set(runtime.manager.fences.last());
        Some(result)
    })
}

/// Takes note of what the server has told us: at once, or when the runtime is free.
pub fn notice(notice: Notice) {
    let mut notice = Some(notice);
    let noted = try_with_runtime(|runtime| notice.take().map(|notice| runtime.note(notice)));
    if let (None, Some(notice)) = (noted, notice) {
        match &notice {
            Notice::DatabaseChanged(_) | Notice::DatabasesSwapped(..) => keyspace::note_removal(None),
            Notice::KeyChanged(lock) => keyspace::note_removal(Some(lock.as_ref())),
            _ => {}
        }
        SHARED.with(|shared| shared.notices.borrow_mut().push_back(notice));
    }
}

/// A key has changed, and not by an operation of the manager. Costs next to nothing while nobody waits.
pub fn key_changed(lock: LockIdRef<'_>) {
    let is_waited_for = || {
        SHARED.with(|shared| {
            shared.runtime.try_borrow().ok().map(|runtime| !runtime.manager.waitlist().is_empty())
        })
    };
    if !keyspace::is_own_change(lock) && is_waited_for().unwrap_or(true) {
        notice(Notice::KeyChanged(lock.into()));
    }
}
