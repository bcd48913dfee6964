//! The one task that renews.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Instant;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::lease::Lease;
use crate::{Error, Reason};

/// What one kind of holds needs to be renewed.
pub(crate) trait Renewal: Send + Sync + 'static {
    type Held: Send + Sync + 'static;

    fn lease(held: &Self::Held) -> &Lease;

    /// Renews holds that are due at once. Gives for each how it went, in their order; nothing where an
    /// extension was under way already. A lease is told of its new deadline while no other extension can be
    /// under way: an answer must not replace a later one.
    fn renew(held: Vec<Arc<Self::Held>>) -> impl Future<Output = Vec<Option<Renewed>>> + Send;
}

#[derive(Clone)]
pub(crate) enum Renewed {
    /// The server took a new deadline, and the lease knows it.
    Extended,
    /// The token does not hold any more.
    Gone,
    /// No answer, or an error: try again soon.
    Failed(Error),
}

/// All holds that are to be renewed, by the moment at which something has to be done.
pub(crate) struct Watchdog<R: Renewal> {
    shared: Arc<Shared<R>>,
    task: Mutex<Task>,
}

enum Task {
    NotStarted,
    Started(AbortHandle),
    Stopped,
}

struct Shared<R: Renewal> {
    schedule: Mutex<Schedule<R::Held>>,
    changed: Notify,
}

struct Schedule<H> {
    items: HashMap<u64, Item<H>>,
    /// The numbers of the items, by the moment at which each is due.
    due: BTreeSet<(Instant, u64)>,
    last_number: u64,
    /// Until when the task sleeps; nothing when it sleeps until it is woken.
    sleeps_until: Option<Instant>,
}

struct Item<H> {
    held: Weak<H>,
    due: Instant,
    /// A renewal is on its way. Until it is answered only the end of the validity matters.
    renewing: bool,
}

/// A hold for which something is due, with the number of its item.
struct Due<H> {
    number: u64,
    held: Arc<H>,
    /// A renewal is on its way already.
    renewing: bool,
}

impl<R: Renewal> Default for Watchdog<R> {
    fn default() -> Self {
        let schedule =
            Schedule { items: HashMap::new(), due: BTreeSet::new(), last_number: 0, sleeps_until: None };
        let shared = Shared { schedule: Mutex::new(schedule), changed: Notify::new() };
        Self { shared: Arc::new(shared), task: Mutex::new(Task::NotStarted) }
    }
}

impl<R: Renewal> Drop for Watchdog<R> {
    fn drop(&mut self) {
        self.stop();
    }
}

impl<R: Renewal> Watchdog<R> {
    /// Renews this hold from now on, until it is lost or removed. The first one starts the task. Gives the
    /// number for the removal.
    pub(crate) fn add(&self, held: &Arc<R::Held>) -> u64 {
        self.start();
        let mut schedule = self.shared.schedule();
        schedule.last_number += 1;
        let number = schedule.last_number;
        let due = R::lease(held).next_renewal();
        schedule.items.insert(number, Item { held: Arc::downgrade(held), due, renewing: false });
        schedule.due.insert((due, number));
        drop(schedule);
        self.shared.wake_before(due);
        number
    }

    /// Starts the task, also when the runtime on which it was has shut down.
    fn start(&self) {
        let mut task = self.task();
        let runs = match &*task {
            Task::Started(handle) => !handle.is_finished(),
            Task::Stopped => true,
            Task::NotStarted => false,
        };
        if !runs && let Ok(runtime) = Handle::try_current() {
            *task = Task::Started(runtime.spawn(watch(self.shared.clone())).abort_handle());
        }
    }

    fn task(&self) -> MutexGuard<'_, Task> {
        self.task.lock().expect("no panic while the task is locked")
    }

    /// The validity of this hold changes until the result is dropped.
    pub(crate) fn reschedule_later<'a>(
        &'a self,
        number: Option<&u64>,
        held: &'a R::Held,
    ) -> Rescheduled<'a, R> {
        Rescheduled { watchdog: self, number: number.copied(), held }
    }

    fn reschedule(&self, number: u64, held: &R::Held) {
        self.start();
        let due = R::lease(held).next_renewal();
        self.shared.put_off(number, due, false);
        self.shared.wake_before(due);
    }

    pub(crate) fn remove(&self, number: u64) {
        self.shared.forget(number);
    }

    /// Nothing is renewed any more, also what is added later.
    pub(crate) fn stop(&self) {
        if let Task::Started(handle) = std::mem::replace(&mut *self.task(), Task::Stopped) {
            handle.abort();
        }
    }
}

/// Looks at the validity of a hold when this is dropped, as with the future that changes it.
pub(crate) struct Rescheduled<'a, R: Renewal> {
    watchdog: &'a Watchdog<R>,
    /// Nothing for a hold that is not renewed.
    number: Option<u64>,
    held: &'a R::Held,
}

impl<R: Renewal> Drop for Rescheduled<'_, R> {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            self.watchdog.reschedule(number, self.held);
        }
    }
}

/// A tenth of the sure ttl from now, and not after the end of the validity.
fn next_try(lease: &Lease) -> Instant {
    let end = lease.valid_until();
    end.min(Instant::now() + lease.sure_ttl() / 10)
}

impl<R: Renewal> Shared<R> {
    fn schedule(&self) -> MutexGuard<'_, Schedule<R::Held>> {
        self.schedule.lock().expect("no panic while the schedule is locked")
    }

    fn wake_before(&self, due: Instant) {
        let mut schedule = self.schedule();
        if schedule.sleeps_until.is_none_or(|until| due < until) {
            schedule.sleeps_until = Some(due);
            drop(schedule);
            self.changed.notify_one();
        }
    }

    /// Looks at the hold again at this moment.
    fn put_off(&self, number: u64, due: Instant, renewing: bool) {
        let mut schedule = self.schedule();
        let schedule = &mut *schedule;
        if let Some(item) = schedule.items.get_mut(&number) {
            schedule.due.remove(&(item.due, number));
            schedule.due.insert((due, number));
            (item.due, item.renewing) = (due, renewing);
        }
    }

    fn forget(&self, number: u64) {
        let mut schedule = self.schedule();
        if let Some(item) = schedule.items.remove(&number) {
            schedule.due.remove(&(item.due, number));
        }
    }

    /// What is due by now, and when to look again.
    fn take_due(&self) -> (Vec<Due<R::Held>>, Option<Instant>) {
        let now = Instant::now();
        let mut schedule = self.schedule();
        let schedule = &mut *schedule;
        let mut due = Vec::new();
        while let Some((moment, number)) = schedule.due.first().copied()
            && moment <= now
        {
            schedule.due.pop_first();
            let item = schedule.items.get(&number);
            match item.and_then(|item| Some((item.held.upgrade()?, item.renewing))) {
                Some((held, renewing)) => due.push(Due { number, held, renewing }),
                None => drop(schedule.items.remove(&number)),
            }
        }
        schedule.sleeps_until = schedule.due.first().map(|(moment, _)| *moment);
        (due, schedule.sleeps_until)
    }

    fn settle(&self, Due { number, held, .. }: Due<R::Held>, renewed: Option<Renewed>) {
        let lease = R::lease(&held);
        let next = match renewed {
            Some(Renewed::Extended) => lease.next_renewal(),
            Some(Renewed::Gone) => {
                lease.lose(Reason::Gone);
                return self.forget(number);
            }
            Some(Renewed::Failed(error)) => {
                lease.not_extended(error);
                next_try(lease)
            }
            None => next_try(lease),
        };
        self.put_off(number, next, false);
    }
}

async fn watch<R: Renewal>(shared: Arc<Shared<R>>) {
    let mut rounds = FuturesUnordered::new();
    loop {
        let (due, next) = shared.take_due();
        let mut round = Vec::new();
        for due in due {
            let lease = R::lease(&due.held);
            // This is where a hold whose validity has passed is lost.
            if lease.check().is_err() {
                shared.forget(due.number);
                continue;
            }
            shared.put_off(due.number, lease.valid_until(), true);
            if !due.renewing {
                round.push(due);
            }
        }
        if !round.is_empty() {
            rounds.push(renew::<R>(round));
            continue;
        }
        tokio::select! {
            Some(answered) = rounds.next() => {
                for (due, renewed) in answered {
                    shared.settle(due, renewed);
                }
            }
            () = shared.changed.notified() => {}
            () = sleep_until(next) => {}
        }
    }
}

async fn renew<R: Renewal>(round: Vec<Due<R::Held>>) -> Vec<(Due<R::Held>, Option<Renewed>)> {
    let renewed = R::renew(round.iter().map(|due| due.held.clone()).collect()).await;
    std::iter::zip(round, renewed).collect()
}

/// Never ends without a moment.
async fn sleep_until(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment.into()).await,
        None => std::future::pending().await,
    }
}
