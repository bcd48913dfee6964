//! Has holds looked after: one task of each runtime renews those that are due, and ends those whose time is over.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::runtime::{Handle, Id};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::clock::Moment;
use crate::hold::Inner;

/// How long the task sleeps at most: timers stand still while the machine sleeps, and a hold may be over by then.
pub(crate) const LONGEST_SLEEP: Duration = Duration::from_secs(1);

type Running = (Arc<Watchdog>, JoinHandle<()>);

/// The holds of one `Locks`.
#[derive(Default)]
pub(crate) struct Holds {
    all: Mutex<HashMap<u64, Weak<Inner>>>,
    /// By the runtime, with their tasks.
    watchdogs: Mutex<HashMap<Id, Running>>,
}

impl Holds {
    pub(crate) fn add(&self, id: u64, hold: &Arc<Inner>) {
        self.all.lock().expect("nothing panics here").insert(id, Arc::downgrade(hold));
    }

    pub(crate) fn remove(&self, id: u64) {
        self.all.lock().expect("nothing panics here").remove(&id);
    }

    pub(crate) fn list(&self) -> Vec<Arc<Inner>> {
        self.all.lock().expect("nothing panics here").values().filter_map(Weak::upgrade).collect()
    }

    /// Extends all holds: the primary may be another one, which has not all of them.
    pub(crate) fn confirm(&self) {
        for hold in self.list() {
            hold.runtime.clone().spawn(hold.confirm());
        }
    }

    /// The watchdog of this runtime.
    pub(crate) fn watchdog(&self, runtime: &Handle) -> Arc<Watchdog> {
        let mut watchdogs = self.watchdogs.lock().expect("nothing panics here");
        if let Some((watchdog, task)) = watchdogs.get(&runtime.id())
            && !task.is_finished()
        {
            return watchdog.clone();
        }
        watchdogs.retain(|_, (_, task)| !task.is_finished());
        let watchdog = Arc::<Watchdog>::default();
        let task = runtime.spawn(watchdog.clone().run());
        watchdogs.insert(runtime.id(), (watchdog.clone(), task));
        watchdog
    }
}

impl Drop for Holds {
    fn drop(&mut self) {
        self.watchdogs.get_mut().expect("nothing panics here").values().for_each(|(_, task)| task.abort());
    }
}

/// What is due when, on one runtime.
#[derive(Default)]
pub(crate) struct Watchdog {
    due: Mutex<Due>,
    wake: Notify,
}

#[derive(Default)]
struct Due {
    holds: BTreeMap<(Moment, u64), Weak<Inner>>,
    /// When the task looks next, unless it is woken.
    next: Moment,
}

impl Watchdog {
    /// Notes when a hold is due instead of before.
    pub(crate) fn set(&self, id: u64, before: Moment, at: Moment, hold: &Weak<Inner>) {
        let mut due = self.due.lock().expect("nothing panics here");
        due.holds.remove(&(before, id));
        due.holds.insert((at, id), hold.clone());
        if at < due.next {
            self.wake.notify_one();
        }
    }

    pub(crate) fn remove(&self, id: u64, at: Moment) {
        self.due.lock().expect("nothing panics here").holds.remove(&(at, id));
    }

    async fn run(self: Arc<Self>) {
        loop {
            let (looked_at, sleep) = {
                let mut due = self.due.lock().expect("nothing panics here");
                let now = Moment::now();
                let later = due.holds.split_off(&(now, u64::MAX));
                let looked_at = std::mem::replace(&mut due.holds, later);
                let first = due.holds.first_key_value().map_or(Moment::NEVER, |((at, _), _)| *at);
                due.next = first.min(now.after(LONGEST_SLEEP));
                (looked_at, due.next.since(now))
            };
            for hold in looked_at.into_values().filter_map(|hold| hold.upgrade()) {
                tokio::spawn(hold.look());
            }
            let _ = timeout(sleep, self.wake.notified()).await;
        }
    }
}
