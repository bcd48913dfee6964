//! Has holds looked after: one thread of the process has those renewed that are due, each on the runtime that acquired it,
//! and has those ended whose time is over.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Condvar, LazyLock, Mutex, Weak};
use std::time::Duration;

use futures_util::future::BoxFuture;

use crate::clock::Moment;
use crate::errors::Error;

/// How long the thread sleeps at most: its timer stands still while the machine sleeps, and a hold may be over by then.
pub(crate) const LONGEST_SLEEP: Duration = Duration::from_secs(1);

/// A hold, as it is looked after. What takes time it does on its own runtime.
pub(crate) trait Watched: Send + Sync {
    /// Renews it if that is due, and ends it if its time is over.
    fn look(self: Arc<Self>);
    /// Asks the server whether it has the hold.
    fn confirm(self: Arc<Self>);
    /// Releases it.
    fn close(self: Arc<Self>) -> BoxFuture<'static, Result<(), Error>>;
}

/// The holds of one `Locks`.
#[derive(Default)]
pub(crate) struct Holds(Mutex<HashMap<u64, Weak<dyn Watched>>>);

impl Holds {
    pub(crate) fn add(&self, id: u64, hold: &Arc<dyn Watched>) {
        self.0.lock().expect("nothing panics here").insert(id, Arc::downgrade(hold));
    }

    pub(crate) fn remove(&self, id: u64) {
        self.0.lock().expect("nothing panics here").remove(&id);
    }

    pub(crate) fn list(&self) -> Vec<Arc<dyn Watched>> {
        self.0.lock().expect("nothing panics here").values().filter_map(Weak::upgrade).collect()
    }

    /// Extends all holds: the primary may be another one, which has not all of them.
    pub(crate) fn confirm(&self) {
        self.list().into_iter().for_each(|hold| hold.confirm());
    }
}

/// What is due when, of all holds of the process that are renewed.
#[derive(Default)]
struct Watchdog {
    due: Mutex<Due>,
    wake: Condvar,
}

#[derive(Default)]
struct Due {
    holds: BTreeMap<(Moment, u64), Weak<dyn Watched>>,
    /// When the thread looks next, unless it is woken.
    next: Moment,
}

static WATCHDOG: LazyLock<Watchdog> = LazyLock::new(|| {
    let thread = std::thread::Builder::new().name("slock-watchdog".into());
    thread.spawn(|| WATCHDOG.run()).expect("the system has a thread for the library");
    Watchdog::default()
});

/// Notes when a hold is due next, instead of before.
pub(crate) fn watch(id: u64, before: Moment, at: Moment, hold: &Arc<dyn Watched>) {
    let mut due = WATCHDOG.due.lock().expect("nothing panics here");
    due.holds.remove(&(before, id));
    due.holds.insert((at, id), Arc::downgrade(hold));
    if at < due.next {
        WATCHDOG.wake.notify_one();
    }
}

pub(crate) fn unwatch(id: u64, at: Moment) {
    WATCHDOG.due.lock().expect("nothing panics here").holds.remove(&(at, id));
}

impl Watchdog {
    fn run(&self) -> ! {
        let mut due = self.due.lock().expect("nothing panics here");
        loop {
            let now = Moment::now();
            let later = due.holds.split_off(&(now, u64::MAX));
            for hold in
                std::mem::replace(&mut due.holds, later).into_values().filter_map(|hold| hold.upgrade())
            {
                hold.look();
            }
            let first = due.holds.first_key_value().map_or(Moment::NEVER, |((at, _), _)| *at);
            due.next = first.min(now.after(LONGEST_SLEEP));
            let sleep = due.next.since(now);
            due = self.wake.wait_timeout(due, sleep).expect("nothing panics here").0;
        }
    }
}
