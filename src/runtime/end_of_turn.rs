// SPDX-License-Identifier: MIT OR Apache-2.0

//! The end of a turn of the event loop, by a timer: here, and nowhere else, the core is told to serve those who wait.
//!
//! It runs at the end of the turn of the event loop in which something changed, whatever it was: a release, a deleted
//! key, a flush, a closed connection, a deadline. A request whose client the server has given up by then is not in the
//! queue any more. (A server that reads in this very turn that a client has closed its connection gives it up only
//! after its timers.) A grant is made, replicated and answered in this one step, and from then on it is final: if the
//! client is lost before it reads the reply, the hold stays until its ttl.
//!
//! A grant made anywhere earlier would be worse off. Inside a notification or a flush event it would be
//! replicated *before* the command that caused it. Inside the command that frees the lock, its client could
//! still go in the same turn, and whether it has been told is known only after its reply has left.

use std::rc::Rc;
use std::time::{Duration, Instant};

use slock_core::{TimeSlice, Timestamp};

use super::notify::without_subscriber;
use super::schedule::Schedule;
use super::working_state::{LOOK_EVERY_MS, Runtime, try_with_runtime};

use crate::keyspace::Keyspace;
use crate::server::{OwnCtx, monotonic_ms, now};
use crate::state::STATE;

/// How long one call serves; the rest is left to the next. (Besides this, the server needs its time to wake
/// clients and to send replies.)
const SLICE: Duration = Duration::from_micros(1500);

/// So many are answered in one turn: to wake a client, or to publish a message, takes the server longer than it takes
/// to end a wait. A command can end more waits at once, which are answered in the next turns; nobody is granted before
/// that.
const ANSWERS_AT_ONCE: usize = 128;

/// Of this, so much at most for locks that came by `RESTORE`.
const RESTORED_SLICE: Duration = Duration::from_micros(500);

/// When to look again while nothing may be written.
const SHUT_RETRY_MS: u64 = 10;

/// How often the module asks who has subscribed to the channels on which requests are answered. No server tells
/// its modules that a subscription ends.
const SUBSCRIBERS_EVERY_MS: u64 = 500;

/// About so many channels the server is asked at once. The question costs more than a channel in it.
const CHANNELS_AT_ONCE: usize = 64;

/// The end of a turn of the event loop.
pub fn on_soon(ctx: OwnCtx<'_>) {
    tick(ctx, Schedule::soon_has_fired);
}

/// A moment that was waited for.
pub fn on_due(ctx: OwnCtx<'_>) {
    tick(ctx, Schedule::due_has_fired);
}

fn tick(ctx: OwnCtx<'_>, has_fired: fn(&mut Schedule)) {
    Keyspace::with_all(ctx, |store| {
        try_with_runtime(|runtime| {
            has_fired(&mut runtime.schedule);
            runtime.tick(ctx, store);
        })
    });
    // Subscribers have been told: what their commands did was done inside the timer, too.
    try_with_runtime(|runtime| runtime.schedule.timer_ends());
}

/// A slice of a turn.
struct Slice(Instant);

impl TimeSlice for Slice {
    fn now(&mut self) -> Option<Timestamp> {
        (self.0.elapsed() < SLICE).then(now)
    }

    fn has_room(&self, answers: usize) -> bool {
        answers < ANSWERS_AT_ONCE
    }
}

impl Runtime {
    fn tick(&mut self, ctx: OwnCtx<'_>, store: &mut Keyspace<'_>) {
        let (follows, is_replica) = (STATE.only_follows(), STATE.is_replica.get());
        let is_shut = follows || self.write_gate.is_shut(ctx.as_ctx());
        let (started, now_ms) = (Instant::now(), monotonic_ms());
        let mut slice = Slice(started);
        if !follows {
            self.look_for_subscribers(now_ms);
        }
        if is_shut {
            self.manager.end_waits(&mut slice);
        } else {
            let manager = &mut self.manager;
            self.names.go_on(now_ms, LOOK_EVERY_MS, |after| manager.look_at_name(store, now(), after));
            self.owners.go_on(now_ms, LOOK_EVERY_MS, |after| manager.look_at_owner(store, now(), after));
            while started.elapsed() < RESTORED_SLICE
                && let Some(lock) = self.restored.pop_first()
            {
                store.give_expiry(lock.as_ref());
            }
            self.manager.serve_queues(store, &mut self.clients, &mut slice);
        }
        for answer in self.manager.take_answers(ANSWERS_AT_ONCE) {
            self.clients.answer(answer);
        }
        self.clients.end_turn();
        if is_replica {
            self.restored.clear();
            if self.manager.is_failing_waiters() {
                self.schedule.at_end_of_turn();
            }
        } else if !is_shut && self.has_work() {
            self.schedule.at_next_slice();
        } else if !is_shut {
            self.reschedule(now());
        } else if !self.manager.is_idle() || self.has_work() {
            // Time-outs come at their moment; whatever else is to be done waits.
            let retry_ms = monotonic_ms() + SHUT_RETRY_MS;
            let wait_end_ms = self.manager.next_wait_end_ms();
            self.schedule.at(wait_end_ms.map_or(retry_ms, |end_ms| end_ms.min(retry_ms)));
        }
    }

    /// Goes on looking for channels that nobody has subscribed to any more. Their requests leave.
    fn look_for_subscribers(&mut self, now_ms: u64) {
        let manager = &mut self.manager;
        self.channels.go_on(now_ms, SUBSCRIBERS_EVERY_MS, |after: Option<Rc<[u8]>>| {
            let some: Vec<_> =
                manager.waitlist().channels(after.as_deref()).take(CHANNELS_AT_ONCE).cloned().collect();
            let last = some.last().cloned()?;
            without_subscriber(&some).for_each(|channel| manager.channel_closed(channel));
            Some(last)
        });
    }
}
