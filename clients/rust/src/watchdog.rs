// SPDX-License-Identifier: MIT OR Apache-2.0

//! Has holds looked after: one thread of the process has those renewed that are due, each on the runtime that acquired it,
//! and has those ended whose time is over.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, Weak};
use std::time::Duration;

use futures_util::future::BoxFuture;

use crate::clock::Moment;
use crate::errors::Result;
use crate::shared::Shared;

/// How long the thread sleeps at most: its timer stands still while the machine sleeps, and a hold may be over by then.
pub(crate) const LONGEST_SLEEP: Duration = Duration::from_secs(1);

/// A hold, as it is looked after.
pub(crate) trait Watched: Send + Sync {
    fn shared(&self) -> &Arc<Shared>;
    /// Renews it in the background if that is due, and ends it if its time is over. If it is in doubt whether the server has
    /// the hold, that is asked.
    fn look(self: Arc<Self>, is_in_doubt: bool);
    fn release(self: Arc<Self>) -> BoxFuture<'static, Result<()>>;
}

/// When something of a hold is due, and the number of the hold.
pub(crate) type Due = (Moment, u64);

static LIVE: Mutex<BTreeMap<Due, Weak<dyn Watched>>> = Mutex::new(BTreeMap::new());
/// Something is due before all that the thread waits for.
static SOONER: Condvar = Condvar::new();
static THREAD: LazyLock<()> = LazyLock::new(|| {
    let thread = std::thread::Builder::new().name("slock-watchdog".into());
    thread.spawn(run).expect("the system has a thread for the library");
});

/// What a new hold has: nothing is due, and it has a number of its own.
pub(crate) fn never() -> Due {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    (Moment::NEVER, NEXT.fetch_add(1, Ordering::Relaxed))
}

fn live() -> MutexGuard<'static, BTreeMap<Due, Weak<dyn Watched>>> {
    LIVE.lock().expect("nothing panics here")
}

/// Has a live hold looked at when something is due, instead of before.
pub(crate) fn watch(before: Due, due: Due, hold: Weak<dyn Watched>) {
    LazyLock::force(&THREAD);
    let mut live = live();
    live.remove(&before);
    live.insert(due, hold);
    let earlier = live.range(..due).next_back();
    if earlier.is_none_or(|((at, _), _)| *at <= Moment::now()) {
        SOONER.notify_one();
    }
}

pub(crate) fn unwatch(due: Due) {
    live().remove(&due);
}

/// The live holds of a `Locks`.
pub(crate) fn holds(locks: &Arc<Shared>) -> Vec<Arc<dyn Watched>> {
    let all: Vec<_> = live().values().filter_map(Weak::upgrade).collect();
    all.into_iter().filter(|hold| Arc::ptr_eq(hold.shared(), locks)).collect()
}

fn run() {
    let mut live = live();
    loop {
        let now = Moment::now();
        for hold in live.range(..=(now, u64::MAX)).filter_map(|(_, hold)| hold.upgrade()) {
            hold.look(false);
        }
        let later = live.range((now, u64::MAX)..).next().map_or(Moment::NEVER, |((at, _), _)| *at);
        let sleep = later.since(now).min(LONGEST_SLEEP);
        live = SOONER.wait_timeout(live, sleep).expect("nothing panics here").0;
    }
}
