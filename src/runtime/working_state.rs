// SPDX-License-Identifier: MIT OR Apache-2.0

//! What operations work with, and what the server has told us meanwhile.

use std::cell::RefCell;
use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;

use slock_core::{LockId, LockIdRef, LockManager, NamePosition, OwnerPosition, Timestamp};

use super::schedule::{Schedule, Sweep};
use super::waiting_clients::WaitingClients;
use super::write_gate::WriteGate;

use crate::keyspace;
use crate::server::now;
use crate::state::STATE;

/// What operations work with.
#[derive(Default)]
pub struct Runtime {
    /// The rules: who holds, who waits, who is next.
    pub manager: LockManager,
    /// The clients that wait.
    pub clients: WaitingClients,
    /// When the queues are served next.
    pub schedule: Schedule,
    /// Whether the timer may write.
    pub write_gate: WriteGate,
    /// Locks that came by `RESTORE` or `COPY`, whose keys may lack an expiry.
    pub restored: BTreeSet<LockId>,
    /// When the grace period began, on the monotonic clock.
    pub started_ms: u64,
    /// Whether the server may evict locks.
    pub may_evict: bool,
    /// The look for channels without a subscriber; see `end_of_turn`.
    pub channels: Sweep<Rc<[u8]>>,
    /// The look at the names that are waited for; see `end_of_turn`.
    pub names: Sweep<NamePosition>,
    /// The look around each owner that waits.
    pub owners: Sweep<OwnerPosition>,
}

impl Runtime {
    /// Takes note of something that the server has told us.
    fn note(&mut self, change: impl FnOnce(&mut Self)) {
        change(self);
        self.reschedule(now());
    }

    /// Begins the grace period, from now on.
    pub fn begin_grace(&mut self) {
        self.started_ms = now().monotonic_ms();
        self.apply_settings();
    }

    /// A setting of this module has another value.
    pub fn apply_settings(&mut self) {
        let settings = &STATE.settings;
        let places = usize::try_from(settings.max_waiters.get()).unwrap_or(0);
        let of_user = usize::try_from(settings.max_waiters_per_user.get()).unwrap_or(0);
        self.manager.bounds.places = places;
        // Without a limit of its own, one user leaves the others a tenth.
        self.manager.bounds.places_of_user = if of_user == 0 { places - places / 10 } else { of_user };
        let grace_ms = settings.restart_grace_ms.get();
        self.manager.set_grace((grace_ms > 0).then(|| self.started_ms + grace_ms.unsigned_abs()));
    }

    /// After an operation: sees to it that the queues are served when they have to be.
    #[inline(always)]
    pub fn reschedule(&mut self, now: Timestamp) {
        if self.manager.is_idle() && !self.clients.blocked.has_left_over() && self.restored.is_empty() {
            return;
        }
        if self.has_work() {
            self.schedule.at_end_of_turn();
        } else if let Some(due_ms) = self.next_due_ms(now) {
            self.schedule.at(due_ms);
        }
    }

    /// When the queues have to be served next if nothing happens, on the monotonic clock.
    fn next_due_ms(&self, now: Timestamp) -> Option<u64> {
        let waitlist = self.manager.waitlist();
        let first_look_ms = waitlist.oldest_since_ms().map(|since_ms| since_ms + LOOK_EVERY_MS);
        let looks_ms = first_look_ms.map(|at_ms| at_ms.max(self.names.next_ms.min(self.owners.next_ms)));
        let channels_ms = waitlist.channels(None).next().map(|_| self.channels.next_ms);
        [self.manager.next_due_ms(now), looks_ms, channels_ms].into_iter().flatten().min()
    }

    /// Whether the timer has something to do that does not wait for time to pass.
    pub fn has_work(&self) -> bool {
        self.manager.has_work()
            || self.manager.has_answers()
            || self.clients.blocked.has_left_over()
            || !self.restored.is_empty()
    }
}

/// How often the module looks at each name that is waited for, and around each owner that waits. Servers do not report
/// to modules what comes under a free name, that a key expires earlier, or that a slot has gone.
pub const LOOK_EVERY_MS: u64 = 1000;

/// What the server has told us while the runtime was in use: takes note of it.
type Notice = Box<dyn FnOnce(&mut Runtime)>;

/// The runtime, and what came while it was in use.
#[derive(Default)]
struct Shared {
    runtime: RefCell<Runtime>,
    notices: RefCell<VecDeque<Notice>>,
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
        let next_notice = || shared.notices.borrow_mut().pop_front();
        while let Some(notice) = next_notice() {
            runtime.note(notice);
        }
        STATE.last_fence.set(runtime.manager.fences.last());
        Some(result)
    })
}

/// Takes note of what the server has told us: at once, or when the runtime is free. Whether it was at once.
pub fn notice(change: impl FnOnce(&mut Runtime) + 'static) -> bool {
    let mut change = Some(change);
    try_with_runtime(|runtime| change.take().map(|change| runtime.note(change)));
    if let Some(change) = change {
        SHARED.with(|shared| shared.notices.borrow_mut().push_back(Box::new(change)));
        return false;
    }
    true
}

/// A lock has come or gone, and not by an operation of the manager. Costs next to nothing while nobody waits.
pub fn key_changed(lock: LockIdRef<'_>) {
    let is_waited_for = || {
        SHARED.with(|shared| {
            shared.runtime.try_borrow().ok().map(|runtime| !runtime.manager.waitlist().is_empty())
        })
    };
    if !is_waited_for().unwrap_or(true) {
        return;
    }
    let owned = LockId::from(lock);
    if !notice(move |runtime| runtime.manager.key_changed(owned.as_ref())) {
        keyspace::note_change(Some(lock));
    }
}

/// All keys of some databases have changed.
pub fn databases_changed(change: impl FnOnce(&mut LockManager) + 'static) {
    if !notice(move |runtime| change(&mut runtime.manager)) {
        keyspace::note_change(None);
    }
}
