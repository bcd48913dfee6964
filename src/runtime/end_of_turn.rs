//! The end of a turn of the event loop, by a timer: here, and nowhere else, the core is told to serve those who wait.
//!
//! It runs at the end of the turn of the event loop in which something changed, whatever it was: a release, a
//! deleted key, a flush, a closed connection, a deadline. A request whose client the server has given up by then
//! is not in the queue any more. (A server that reads in this very turn that a client has closed its
//! connection gives it up only after its timers.) A grant is made, replicated and answered in this one step, and from then on it is
//! final: if the client is lost before it reads the reply, the hold stays until its ttl.
//!
//! A grant made anywhere earlier would be worse off. Inside a notification or a flush event it would be
//! replicated *before* the command that caused it. Inside the command that frees the lock, its client could
//! still go in the same turn, and whether it has been told is known only after its reply has left.

use std::time::{Duration, Instant};

use slock_core::{TimeSlice, Timestamp, Urgency, WaitResult};

use crate::errors::error_reply;
use crate::keyspace::Keyspace;
use crate::server::{OwnCtx, Reply, now};
use crate::state::{self, Runtime, Schedule, WriteBlock, try_with_runtime, without_subscriber};

/// How long one call serves; the rest is left to the next. (Besides this, the server needs its time to wake
/// clients and to send replies.)
const SLICE: Duration = Duration::from_micros(1500);

/// So many are answered in one turn: to wake a client, or to publish a message, takes the server longer than it takes to
/// end a wait.
const ANSWERS_AT_ONCE: usize = 128;

/// How long it goes on with work that nobody waits for: those who were answered are told at the end.
const UPKEEP_SLICE: Duration = Duration::from_micros(400);

/// Of it, so much at most for locks that came by `RESTORE`.
const RESTORED_SLICE: Duration = Duration::from_micros(500);

/// When to look again while clients are paused.
const PAUSED_RETRY_MS: u64 = 10;

/// When to look again while a client's write would be refused.
const REFUSED_RETRY_MS: u64 = 100;

/// How often a node of a cluster looks whether it still serves the keys that are waited for. Not every
/// server tells its modules that a slot has gone or that the cluster is down.
const PROBE_EVERY_MS: u64 = 1000;

/// How often it is looked whether somebody has subscribed to the channels on which requests are answered. No server tells
/// its modules that a subscription ends.
const SUBSCRIBERS_EVERY_MS: u64 = 500;

/// About so many channels the server is asked at once. The question costs more than a channel in it.
const CHANNELS_AT_ONCE: usize = 64;

/// Such a look takes so long at a time, and pauses so long in between.
const PROBE_SLICE: Duration = Duration::from_micros(300);
const PROBE_PAUSE_MS: u64 = 10;

/// The end of a turn of the event loop.
pub fn on_soon(ctx: OwnCtx<'_>) {
    tick(ctx, Schedule::soon_has_fired);
}

/// A moment that was waited for.
pub fn on_due(ctx: OwnCtx<'_>) {
    tick(ctx, Schedule::due_has_fired);
}

fn tick(ctx: OwnCtx<'_>, fired: impl FnOnce(&mut Schedule)) {
    state::with(|state| {
        state.sleep_watch.in_timer(|| {
            let mut store = Keyspace::of_timer(ctx);
            try_with_runtime(|runtime| {
                if let Some(schedule) = &mut runtime.schedule {
                    fired(schedule);
                }
                runtime.tick(ctx, &mut store);
            });
            store.announce();
        });
    });
}

/// A slice of a turn.
struct Slice {
    started: Instant,
    answers: Duration,
    upkeep: Duration,
}

impl TimeSlice for Slice {
    fn now_for(&mut self, urgency: Urgency) -> Option<Timestamp> {
        let limit = match urgency {
            Urgency::Answers => self.answers,
            Urgency::Upkeep => self.upkeep,
        };
        (self.started.elapsed() < limit).then(now)
    }

    fn has_room(&self, answers: usize) -> bool {
        answers < ANSWERS_AT_ONCE
    }
}

impl Runtime {
    fn tick(&mut self, ctx: OwnCtx<'_>, store: &mut Keyspace<'_>) {
        let (follows, is_replica) = state::with(|state| (state.only_follows(), state.is_replica.get()));
        let block = if follows { None } else { self.write_gate.block(ctx.as_ctx()) };
        let started = Instant::now();
        let mut slice = Slice { started, answers: SLICE, upkeep: UPKEEP_SLICE };
        if !follows {
            self.look_for_subscribers();
        }
        if follows || block.is_some() {
            self.manager.end_waits(&mut slice);
        } else {
            self.probe(store);
            while started.elapsed() < RESTORED_SLICE
                && let Some(lock) = self.restored.pop_first()
            {
                store.give_expiry(lock.as_ref());
            }
            self.manager.serve_queues(store, &mut self.clients, &mut slice);
        }
        for answer in self.manager.take_answers() {
            self.clients.answer(answer, reply_to);
        }
        self.clients.end_turn();
        if self.manager.waitlist().is_empty() {
            state::with(|state| state.sleep_watch.note_idle());
        }
        let now = now();
        if is_replica {
            self.restored.clear();
            self.reschedule_if_resigning();
            self.schedule_end_of_watch();
        } else if follows {
            self.schedule_retry(now, PAUSED_RETRY_MS);
        } else {
            match block {
                None => self.reschedule(now),
                Some(_) if !self.has_work() && self.manager.waitlist().is_empty() => {
                    self.schedule_end_of_watch();
                }
                Some(WriteBlock::Paused) => self.schedule_retry(now, PAUSED_RETRY_MS),
                Some(WriteBlock::Refused) => self.schedule_retry(now, REFUSED_RETRY_MS),
            }
        }
    }

    /// Nobody waits: the server need not say any more when it sleeps.
    fn schedule_end_of_watch(&mut self) {
        if let Some(at_ms) = state::with(|state| state.sleep_watch.next_due_ms()) {
            self.schedule_at(at_ms);
        }
    }

    /// Time-outs come at their moment; whatever else is to be done waits.
    fn schedule_retry(&mut self, now: Timestamp, pause_ms: u64) {
        let retry_ms = now.monotonic_ms() + pause_ms;
        let wait_end_ms = self.manager.next_wait_end_ms();
        self.schedule_at(wait_end_ms.map_or(retry_ms, |end_ms| end_ms.min(retry_ms)));
    }

    fn schedule_at(&mut self, at_ms: u64) {
        if let Some(schedule) = &mut self.schedule {
            schedule.at(at_ms);
        }
    }

    /// Goes on looking for channels that nobody has subscribed to any more. Their requests leave.
    fn look_for_subscribers(&mut self) {
        let now_ms = now().monotonic_ms();
        if now_ms < self.subscribers.next_ms {
            return;
        }
        let started = Instant::now();
        while started.elapsed() < PROBE_SLICE {
            let after = self.subscribers.after.as_deref();
            let some: Vec<_> =
                self.manager.waitlist().channels(after).take(CHANNELS_AT_ONCE).cloned().collect();
            let Some(last) = some.last() else {
                self.subscribers.after = None;
                self.subscribers.next_ms = now_ms + SUBSCRIBERS_EVERY_MS;
                return;
            };
            self.subscribers.after = Some(last.clone());
            for channel in without_subscriber(&some) {
                self.manager.channel_closed(channel);
            }
        }
        self.subscribers.next_ms = now_ms + PROBE_PAUSE_MS;
    }

    /// Goes on looking for names that this node of a cluster serves no more.
    fn probe(&mut self, store: &mut Keyspace<'_>) {
        let now_ms = now().monotonic_ms();
        if !self.is_cluster || now_ms < self.probe.next_ms {
            return;
        }
        let mut slice = Slice { started: Instant::now(), answers: PROBE_SLICE, upkeep: PROBE_SLICE };
        self.probe.position = self.manager.probe(store, self.probe.position, &mut slice);
        let is_over = self.probe.position.is_none();
        self.probe.next_ms = now_ms + if is_over { PROBE_EVERY_MS } else { PROBE_PAUSE_MS };
    }
}

fn reply_to(result: WaitResult) -> Reply {
    match result {
        WaitResult::Granted(fence) => Reply::Int(fence.cast_signed()),
        WaitResult::TimedOut => Reply::Int(0),
        WaitResult::Failed(error) => error_reply(&error),
    }
}
