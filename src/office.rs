//! The desk, the clients that wait at it, and the timer that serves them.
//!
//! # How a waiting client gets its answer
//!
//! A command that frees a lock decides the next grant at once, inside the command, so that it is
//! stored and replicated in one unit with the release. The client is told from a timer of 0 ms at
//! the end of the same turn of the event loop ([`tick`]). Between the two it may still be killed or
//! unblocked: then the grant is told by that callback, or taken back and handed to the next.
//! It is not told for good until the reply has left the server: a connection that the server has
//! given up, without having closed it yet, takes replies and drops them ([`on_sent`]).
//! `RM_UnblockClient` is called from the timer only, because a client that is unblocked again before
//! the server has noticed the first time gets no reply on Redis 7.0, and stops Redis 7.2.
//!
//! What happens outside of our commands (a deadline, `DEL`, `FLUSHALL`, a closed connection) leaves
//! a mark or sets an alarm, and the same timer does the work. A grant made inside a notification
//! would be replicated before the command that caused it.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::time::{Duration, Instant};

use slock_core::{Answer, Ask, Desk, Lock, Moment, Outcome, Patience, Place, PlaceRef, Refusal, Ticket};

use crate::alarm::{ring_at, ring_soon};
use crate::keyspace::Keyspace;
use crate::marks::{self, Mark};
use crate::permission::{self, Hindrance};
use crate::server::{self, BlockedCallbacks, Ctx, DatatypeHooks, EventHooks, Handle, Reply, now};
use crate::{ephemerals, metrics, settings, wire};

/// How long to stay away while clients are paused.
const PAUSED_RETRY_MS: u64 = 10;

/// How long to stay away while a client's write would be refused.
const REFUSED_RETRY_MS: u64 = 100;

/// While anybody waits, the clock is looked at this often. Deadlines are times of the wall clock and
/// timers run on another: when the wall clock steps forward, a timer that was to end a wait in an hour
/// would still take its hour.
const HEARTBEAT_MS: u64 = 500;

/// How often a node of a cluster looks whether it still answers for the keys that are waited for. Not
/// every server tells its modules that a slot has gone or that the cluster is down.
const CLUSTER_PROBE: Duration = Duration::from_secs(1);

/// How far ahead of the clock a fence or a deadline may be that comes from outside: ten years. All
/// further fences are given above such a fence, and must not run out of numbers; a lock that has it must
/// stay loadable.
const AHEAD_MAX_MS: u64 = 10 * 365 * 24 * 3600 * 1000;

#[derive(Default)]
struct Office {
    desk: Desk,
    parked: HashMap<Ticket, Parked>,
    tickets: HashMap<Handle, Ticket>,
    /// Answered, to be told at the next tick.
    outbox: Vec<Ticket>,
    /// Told in this turn of the event loop: by connection, replies that have yet to leave the server.
    leaving: Vec<(u64, Ticket)>,
    /// Clients that have gone or were answered by a callback; the server's part is to be freed.
    leftovers: Vec<Handle>,
}

/// A client that waits.
struct Parked {
    handle: Handle,
    connection: u64,
    state: State,
}

/// How far a waiting client is.
enum State {
    Waits,
    /// To be told at the next tick.
    Answered(Answer),
    /// The answer is on its way: the server has been asked to unblock the client.
    Sent(Answer),
}

thread_local! {
    static OFFICE: RefCell<Office> = RefCell::default();
    static IS_OPEN: Cell<bool> = const { Cell::new(false) };
    static IS_LOADING: Cell<bool> = const { Cell::new(false) };
    static IS_REPLICA: Cell<bool> = const { Cell::new(false) };
    /// Whether somebody has waited since the start. What only waiting clients need is asked for then.
    static LISTENS: Cell<bool> = const { Cell::new(false) };
    static MAY_EVICT: Cell<bool> = const { Cell::new(false) };
    static IS_CLUSTER: Cell<bool> = const { Cell::new(false) };
    /// Whether the server may close clients to save memory (`maxmemory-clients`).
    static EVICTS_CLIENTS: Cell<bool> = const { Cell::new(false) };
    static PROBED: Cell<Option<Instant>> = const { Cell::new(None) };
    static STARTED_MS: Cell<u64> = const { Cell::new(0) };
}

/// What the data type tells us.
pub static DATATYPE_HOOKS: DatatypeHooks = DatatypeHooks {
    fence_seen: see_fence,
    is_plausible: |lock| {
        let fence = lock.highest_fence();
        only_follows() || (fence_is_plausible(fence) && deadline_is_plausible(lock.last_deadline_ms()))
    },
    arriving: |place| {
        if !only_follows() {
            mark(Mark::Arrived(place.db, place.name.into()));
        }
    },
    last_fence: || OFFICE.with_borrow(|office| office.desk.fences.last()),
    rewrite: |lock, emit| wire::rewrite(lock, consult(|desk| desk.fences.last()), emit),
    removed: on_removed,
};

/// What the server tells us.
pub static EVENT_HOOKS: EventHooks = EventHooks {
    key_touched: |db, name| key_changed(PlaceRef { db, name }),
    key_evicted: metrics::count_eviction,
    flushed: |db| {
        ephemerals::forget_database(db);
        mark(Mark::Database(db));
    },
    swapped: |first, second| {
        ephemerals::swap_databases(first, second);
        mark(Mark::Database(Some(first)));
        mark(Mark::Database(Some(second)));
    },
    role_changed: on_role_changed,
    loading: |ctx, is_loading| {
        IS_LOADING.set(is_loading);
        metrics::decides(!only_follows());
        // A long load must not use up the grace period.
        if !is_loading && !ctx.is_replica() {
            start_grace();
        }
    },
    configured: read_configuration,
    disconnected: on_disconnected,
    sent: on_sent,
};

static CLIENT_CALLBACKS: BlockedCallbacks =
    BlockedCallbacks { unblocked: on_unblocked, gone: on_gone, delivered: on_delivered };

/// Opens the office: called once, at load.
pub fn open(ctx: Ctx<'_>) {
    IS_OPEN.set(true);
    IS_REPLICA.set(ctx.is_replica());
    metrics::decides(!only_follows());
    IS_CLUSTER.set(ctx.is_cluster());
    start_grace();
    read_configuration(ctx);
}

/// Takes note of what the server's configuration means for locks.
fn read_configuration(ctx: Ctx<'_>) {
    permission::read_configuration(ctx);
    EVICTS_CLIENTS.set(ctx.config(c"maxmemory-clients").is_none_or(|text| text != "0"));
    warn_of_eviction(ctx);
}

/// Warns, once for each time that it becomes so, where locks are at risk.
fn warn_of_eviction(ctx: Ctx<'_>) {
    let may_evict = ctx.may_evict();
    if may_evict && !MAY_EVICT.get() {
        server::log_warning(
            "maxmemory-policy lets this server evict locks when memory runs out, and an evicted lock is \
             free for the next who asks; use noeviction for locks",
        );
    }
    MAY_EVICT.set(may_evict);
}

/// Whether this server only follows what was decided before or elsewhere: it is a replica, or loads.
pub fn only_follows() -> bool {
    IS_REPLICA.get() || IS_LOADING.get()
}

/// Whether a fence that comes from outside can be a real one. What this server or its primary has
/// written is not doubted.
pub fn fence_is_plausible(fence: u64) -> bool {
    only_follows() || fence <= now().us() + AHEAD_MAX_MS * 1000
}

/// Whether a deadline that comes from outside can be a real one: no lock lives for ever. What this server
/// or its primary has written is not doubted.
pub fn deadline_is_plausible(deadline_ms: u64) -> bool {
    only_follows() || deadline_ms <= now().ms() + AHEAD_MAX_MS
}

/// Learns of a fence that was given elsewhere or before.
pub fn see_fence(fence: u64) {
    OFFICE.with_borrow_mut(|office| office.desk.fences.see(fence));
}

/// A command that does not go through the desk has changed this key.
pub fn key_changed(place: PlaceRef<'_>) {
    let is_waited_for = || {
        OFFICE.with(|office| {
            office.try_borrow().map_or(true, |office| office.desk.waitlist().len_at(place) > 0)
        })
    };
    if marks::are_wanted() && is_waited_for() {
        mark(Mark::Key(place.db, place.name.into()));
    }
}

/// Applies the settings that the desk keeps. While the module is being loaded, [`open`] does so.
pub fn apply_settings() {
    if !IS_OPEN.get() {
        return;
    }
    OFFICE.with_borrow_mut(|office| {
        office.desk.max_waiters = settings::max_waiters();
        office.desk.closed_until_ms = match settings::restart_grace_ms() {
            0 => 0,
            grace_ms => STARTED_MS.get() + grace_ms,
        };
        // A shorter grace period may have ended just now.
        office.desk.mark_database(None);
    });
    ring_soon();
}

/// Looks at the desk.
pub fn consult<R>(look: impl FnOnce(&Desk) -> R) -> R {
    OFFICE.with_borrow(|office| look(&office.desk))
}

/// Has the desk do something for a command, sees to what follows from it, and tells subscribers.
pub fn serve<'c, R>(
    mut space: Keyspace<'c>,
    deal: impl FnOnce(&mut Desk, &mut Keyspace<'c>, Moment) -> R,
) -> R {
    let result = OFFICE.with_borrow_mut(|office| office.serve(&mut space, deal));
    space.announce();
    result
}

/// [`serve`]s a request for a hold, and leaves its client waiting if it has to. Where the client cannot
/// wait after all, it is as if it had not wanted to.
pub fn acquire<'c>(ctx: Ctx<'c>, mut space: Keyspace<'c>, ask: &Ask<'_>) -> Result<Outcome, Refusal> {
    let outcome = OFFICE.with_borrow_mut(|office| {
        let outcome = office.serve(&mut space, |desk, space, now| desk.acquire(space, now, ask));
        let Ok(Outcome::Parked(ticket)) = outcome else { return outcome };
        if office.park(ctx, ticket) {
            return outcome;
        }
        office.desk.withdraw(ticket);
        let ask = Ask { patience: Patience::None, ..*ask };
        office.serve(&mut space, |desk, space, now| desk.acquire(space, now, &ask))
    });
    space.announce();
    outcome
}

impl Office {
    fn serve<'c, R>(
        &mut self,
        space: &mut Keyspace<'c>,
        deal: impl FnOnce(&mut Desk, &mut Keyspace<'c>, Moment) -> R,
    ) -> R {
        let now = now();
        let db = space.db();
        // The client of a grant that it was not told of may be back already, to use what it held before.
        self.desk.take_back_grants(space, now, Some(db));
        self.end_doomed(space, now, Some(db));
        let result = deal(&mut self.desk, space, now);
        self.follow_up();
        result
    }

    /// Leaves the client of this command waiting for the answer to its ticket. False if it cannot wait.
    fn park(&mut self, ctx: Ctx<'_>, ticket: Ticket) -> bool {
        if !LISTENS.replace(true) {
            server::subscribe_to_keys();
            server::subscribe_to_sending();
        }
        let Some(handle) = server::block(ctx, &CLIENT_CALLBACKS) else { return false };
        self.parked.insert(ticket, Parked { handle, connection: ctx.client_id(), state: State::Waits });
        self.tickets.insert(handle, ticket);
        true
    }

    /// After the desk has done something: collects answers, sets the alarm.
    fn follow_up(&mut self) {
        self.collect_answers();
        if !self.outbox.is_empty() || self.desk.has_work() {
            ring_soon();
        }
        if let Some(at_ms) = self.next_tick_ms() {
            ring_at(at_ms, true);
        }
        marks::watch(!self.desk.waitlist().is_empty());
    }

    /// When [`tick`] has to be called next, if nothing happens.
    fn next_tick_ms(&self) -> Option<u64> {
        if self.desk.waitlist().is_empty() && !ephemerals::are_any_doomed() {
            return None;
        }
        let heartbeat_ms = now().ms() + HEARTBEAT_MS;
        Some(self.desk.next_due_ms().map_or(heartbeat_ms, |due_ms| due_ms.min(heartbeat_ms)))
    }

    /// While writes are refused, time-outs come at their moment, and whatever else is to be done waits.
    fn ring_when_refused(&self, now: Moment) {
        let is_idle = marks::are_none() && !ephemerals::are_any_doomed() && !self.desk.has_work();
        if !is_idle || !self.desk.waitlist().is_empty() {
            let retry_ms = now.ms() + REFUSED_RETRY_MS;
            ring_at(self.desk.next_wait_end_ms().map_or(retry_ms, |end_ms| end_ms.min(retry_ms)), false);
        }
    }

    fn collect_answers(&mut self) {
        if self.desk.has_answers() {
            for (ticket, answer) in self.desk.take_answers() {
                if let Some(parked) = self.parked.get_mut(&ticket) {
                    parked.state = State::Answered(answer);
                    self.outbox.push(ticket);
                }
            }
        }
    }

    /// Forgets a client. Its ticket, and what is known of it.
    fn forget(&mut self, handle: Handle) -> Option<(Ticket, Parked)> {
        let ticket = self.tickets.remove(&handle)?;
        Some((ticket, self.parked.remove(&ticket)?))
    }
}

/// The timer: reads the marks, serves the queues, tells clients their answers.
pub fn tick(ctx: Ctx<'_>) {
    let follows = only_follows();
    let hindrance = if follows { None } else { permission::hindrance(ctx) };
    let mut space = Keyspace::of_timer(ctx);
    OFFICE.with_borrow_mut(|office| {
        let now = now();
        if !follows && hindrance.is_none() {
            office.desk.take_back_grants(&mut space, now, None);
            office.end_doomed(&mut space, now, None);
            for mark in marks::take() {
                office.read_mark(&mut space, mark);
            }
            if IS_CLUSTER.get() && PROBED.get().is_none_or(|probed| probed.elapsed() >= CLUSTER_PROBE) {
                PROBED.set(Some(Instant::now()));
                office.desk.probe(&mut space);
            }
            office.desk.drive(&mut space, now);
        } else {
            office.desk.end_waits(now);
        }
        office.collect_answers();
        for ticket in std::mem::take(&mut office.outbox) {
            let Some(parked) = office.parked.get_mut(&ticket) else { continue };
            if let State::Answered(answer) = std::mem::replace(&mut parked.state, State::Waits) {
                parked.handle.answer(Some(reply_to(&answer)));
                parked.state = State::Sent(answer);
            }
        }
        for handle in std::mem::take(&mut office.leftovers) {
            handle.answer(None);
        }
        if office.parked.is_empty() {
            // A crowd that has gone leaves no memory behind.
            (office.parked, office.tickets) = Default::default();
        }
        marks::watch(!office.desk.waitlist().is_empty());
        if IS_REPLICA.get() {
            marks::take();
        } else if follows || hindrance == Some(Hindrance::Paused) {
            ring_at(now.ms() + PAUSED_RETRY_MS, false);
        } else if hindrance == Some(Hindrance::Refused) {
            office.ring_when_refused(now);
        } else if let Some(at_ms) = office.next_tick_ms() {
            ring_at(at_ms, false);
        }
    });
    space.announce();
}

impl Office {
    /// Ends the holds of connections that have closed, in this database or in all. Grants that nobody was
    /// told of have to be taken back before: one may have replaced a hold that is bound to another
    /// connection, and that hold comes back.
    fn end_doomed(&mut self, space: &mut Keyspace<'_>, now: Moment, db: Option<i32>) {
        if !ephemerals::are_any_doomed() {
            return;
        }
        let mut changed = Vec::new();
        for ((db, name), tokens) in ephemerals::take_doomed(db) {
            let place = Place { db, name: name.into() };
            for token in tokens {
                // The lock may have gone, and another come in its place.
                if ephemerals::bound(place.as_ref(), &token).is_none() {
                    continue;
                }
                match self.desk.drop_hold(space, now, place.as_ref(), &token, None) {
                    Ok(true) => changed.push(place.clone()),
                    // The cluster is down, say. As long as the lock is still here, it is tried again.
                    Err(Refusal::Elsewhere) => ephemerals::doom_hold(place.as_ref(), &token),
                    Ok(false) | Err(_) => ephemerals::unbind(place.as_ref(), &token),
                }
            }
        }
        self.desk.settle_at(space, now, changed.iter().map(Place::as_ref));
    }

    fn read_mark(&mut self, space: &mut Keyspace<'_>, mark: Mark) {
        match mark {
            Mark::Key(db, name) => self.desk.mark(PlaceRef { db, name: &name }),
            Mark::Database(db) => self.desk.mark_database(db),
            Mark::Arrived(db, name) => space.give_expiry(PlaceRef { db, name: &name }),
        }
    }
}

fn mark(mark: Mark) {
    marks::leave(mark);
    ring_soon();
}

fn start_grace() {
    STARTED_MS.set(now().ms());
    apply_settings();
}

fn reply_to(answer: &Answer) -> Reply {
    match answer {
        Answer::Granted(fence) => Reply::Int(fence.cast_signed()),
        Answer::TimedOut => Reply::Int(0),
        Answer::Refused(refusal) => Reply::Error(refusal.to_string()),
    }
}

/// `CLIENT UNBLOCK id`: the client is answered here and now.
fn on_unblocked(ctx: Ctx<'_>, handle: Handle) -> Reply {
    let reply = OFFICE.with_borrow_mut(|office| {
        let Some((ticket, parked)) = office.forget(handle) else { return Reply::Int(0) };
        if !matches!(parked.state, State::Sent(_)) {
            office.leftovers.push(handle);
        }
        match parked.state {
            State::Answered(answer) | State::Sent(answer) => {
                office.sends(ctx, parked.connection, ticket);
                reply_to(&answer)
            }
            State::Waits => {
                office.desk.give_up(ticket);
                Reply::Int(0)
            }
        }
    });
    ring_soon();
    reply
}

/// The client was killed, has disconnected, or the server has answered it itself.
fn on_gone(handle: Handle) {
    OFFICE.with_borrow_mut(|office| {
        let Some((ticket, parked)) = office.forget(handle) else { return };
        office.desk.leave(ticket);
        if !matches!(parked.state, State::Sent(_)) {
            office.leftovers.push(handle);
        }
    });
    ring_soon();
}

/// The client of an answer is given it (true) or has gone before (false).
fn on_delivered(ctx: Ctx<'_>, handle: Handle, is_told: bool) {
    OFFICE.with_borrow_mut(|office| {
        let Some((ticket, parked)) = office.forget(handle) else { return };
        if is_told {
            office.sends(ctx, parked.connection, ticket);
        } else {
            office.desk.leave(ticket);
            ring_soon();
        }
    });
}

impl Office {
    /// The reply to a request is written to its connection, and has yet to leave the server.
    fn sends(&mut self, ctx: Ctx<'_>, connection: u64, ticket: Ticket) {
        // Where the server evicts clients, it does so between sending and our hearing of it, and whoever
        // could not be sent anything has to be known beforehand.
        if EVICTS_CLIENTS.get() && ctx.connection_end(connection).is_some_and(|end| end.is_given_up) {
            self.desk.leave(ticket);
            ring_soon();
        } else {
            self.leaving.push((connection, ticket));
        }
    }
}

/// The replies of this turn have left the server, and connections that could not take them have closed.
fn on_sent() {
    OFFICE.with_borrow_mut(|office| {
        if office.leaving.is_empty() {
            return;
        }
        for (_, ticket) in std::mem::take(&mut office.leaving) {
            office.desk.told(ticket);
        }
        if office.parked.is_empty() {
            office.desk.tidy();
        }
    });
}

/// A connection closes. What it was told in this turn it has not got, unless it closes because it was
/// told all, as after `QUIT`, or is evicted after all was sent.
fn on_disconnected(ctx: Ctx<'_>, connection: u64) {
    // It may close in the middle of a command, where nothing has been told.
    let is_leaving = OFFICE.with(|office| {
        let office = office.try_borrow().ok();
        office.is_some_and(|office| office.leaving.iter().any(|(to, _)| *to == connection))
    });
    let has_got_all = || {
        ctx.connection_end(connection)
            .is_none_or(|end| end.has_sent_all && (end.is_after_reply || EVICTS_CLIENTS.get()))
    };
    if is_leaving && !has_got_all() {
        OFFICE.with_borrow_mut(|office| {
            let leaving = std::mem::take(&mut office.leaving);
            for (to, ticket) in leaving {
                if to == connection {
                    office.desk.leave(ticket);
                } else {
                    office.leaving.push((to, ticket));
                }
            }
        });
        ring_soon();
    }
    if ephemerals::doom(connection) {
        ring_soon();
    }
}

fn on_removed(place: PlaceRef<'_>, lock: &Lock) {
    if marks::are_ours() {
        return; // The effect that emptied the lock has seen to everything.
    }
    ephemerals::unbind_all(place, lock);
    metrics::note_removal(place.db, place.name);
    key_changed(place);
}

fn on_role_changed(is_replica: bool) {
    IS_REPLICA.set(is_replica);
    metrics::decides(!only_follows());
    if is_replica {
        // What becomes of a hold is the primary's to say, and it knows nothing of our connections.
        ephemerals::forget_database(None);
        OFFICE.with_borrow_mut(|office| {
            office.desk.dismiss_all(&Refusal::NotPrimary);
            office.follow_up();
        });
    }
}
