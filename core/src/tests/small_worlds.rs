//! Small worlds for `explore.rs`: a few owners and names, and all that can happen in each.

use std::fmt;
use std::num::NonZeroU32;

use super::history::{Asked, Op, TOKENS, id_of};
use super::scene::{READ, UPGRADE, WRITE};
use super::side_by_side::SideBySide;
use crate::ids::HoldRef;
use crate::mode::{Mode, Want};
use crate::request::{Extension, WaitPolicy};

/// All durations are multiples of it. It is a whole second, as the moments are at which an EPHEMERAL hold is looked at.
const UNIT_MS: u64 = 1000;
const TTL_MS: u64 = 2 * UNIT_MS;
pub(super) const OWNERS: usize = 3;
/// Nobody holds anything with it.
const NO_FENCE: u64 = 7;

/// A world: what can happen in it.
pub(super) struct SmallWorld {
    pub(super) title: &'static str,
    pub(super) names: usize,
    pub(super) kinds: &'static [Kind],
    pub(super) turns: Turns,
    /// How deep `cargo test` goes.
    pub(super) short_depth: usize,
}

/// When turns of the event loop end.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Turns {
    /// After each step.
    Short,
    /// By steps of their own: any number of commands fall into a turn, and it may be interrupted.
    Any,
}

/// What can happen, by subject.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Write,
    Read,
    Release,
    Limit,
    /// Waits that run out.
    Timed,
    Upgrade,
    Downgrade,
    Many,
    Extend,
    /// Time passes: deadlines, time-outs, the end of a refusal.
    Time,
    /// Clients go while they wait.
    Leave,
    Cancel,
    /// Requests on channels, and subscribers that are lost.
    Notify,
    /// Holds that end with connections, and connections that close.
    Ephemeral,
    /// What befalls keys from outside.
    Outside,
    /// Commands that name a fence or a mode, or only refresh: late ones that do not fit any more are among them.
    Late,
}

use Kind::{
    Cancel, Downgrade, Ephemeral, Extend, Late, Leave, Limit, Many, Notify, Outside, Read, Release, Time,
    Timed, Upgrade, Write,
};

const EVERYTHING: &[Kind] = &[
    Write, Read, Release, Limit, Timed, Upgrade, Downgrade, Many, Extend, Time, Leave, Cancel, Notify,
    Ephemeral, Outside, Late,
];
const MODES: &[Kind] = &[Write, Read, Release, Limit, Timed, Upgrade, Downgrade, Extend, Time, Outside];
const TURN: &[Kind] = &[Write, Read, Release, Upgrade, Downgrade, Time, Leave, Cancel, Outside];
const CYCLES: &[Kind] = &[Write, Release, Many, Leave, Time, Outside];
const CHANNELS: &[Kind] = &[Write, Release, Notify, Time, Cancel];
const CONNECTIONS: &[Kind] = &[Write, Release, Ephemeral, Upgrade, Downgrade, Time];
const LATE: &[Kind] = &[Write, Read, Release, Upgrade, Cancel, Late, Time];

/// The first two have everything; the others go deeper where things meet.
pub(super) const WORLDS: [SmallWorld; 8] = [
    SmallWorld::new("everything, in any turns", 2, EVERYTHING, Turns::Any, 3),
    SmallWorld::new("everything, a turn for each step", 2, EVERYTHING, Turns::Short, 3),
    SmallWorld::new("one lock: modes, time, limits", 1, MODES, Turns::Short, 4),
    SmallWorld::new("one lock: the turn in which it comes free", 1, TURN, Turns::Any, 5),
    SmallWorld::new("several keys and cycles", 2, CYCLES, Turns::Short, 4),
    SmallWorld::new("one lock: NOTIFY", 1, CHANNELS, Turns::Any, 4),
    SmallWorld::new("EPHEMERAL", 2, CONNECTIONS, Turns::Any, 3),
    SmallWorld::new("one lock: late commands", 1, LATE, Turns::Short, 5),
];

/// Which fence an owner names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Named {
    None,
    /// That of its hold.
    Own,
    /// That of a hold which has ended.
    Old,
}

/// What can happen, whatever the state. Connections, channels and fences are filled in when it does.
#[derive(Clone, Debug)]
pub(super) enum Step {
    Does(Op, Named),
    /// The client of the request gives up that is so manieth in the order of arrival.
    Leaves(usize),
    Closes(usize),
    /// Whether the manager is told.
    Unsubscribes(usize, bool),
    TimePasses,
    TurnEnds,
    /// It ends after one look at the clock, whatever is left.
    TurnIsInterrupted,
}

/// The same in one state.
#[derive(Clone, Debug)]
pub(super) enum Deed {
    Op(Op),
    Pass,
    Serve { looks: usize },
}

impl SmallWorld {
    const fn new(
        title: &'static str,
        names: usize,
        kinds: &'static [Kind],
        turns: Turns,
        short_depth: usize,
    ) -> Self {
        Self { title, names, kinds, turns, short_depth }
    }

    pub(super) fn steps(&self) -> Vec<Step> {
        let mut steps: Vec<Step> = self.kinds.iter().flat_map(|kind| kind.steps(self.names)).collect();
        if self.turns == Turns::Any {
            steps.extend([Step::TurnEnds, Step::TurnIsInterrupted]);
        }
        steps
    }
}

fn asked(names: &[usize], token: usize, want: Want, wait: WaitPolicy) -> Asked {
    Asked {
        names: names.to_vec(),
        token,
        want,
        ttl_ms: TTL_MS,
        // Who does not wait brings metadata: a refresh goes another way with it.
        meta: (wait == WaitPolicy::NoWait).then(|| vec![b'm']),
        wait,
        limit: None,
        connection: None,
        channel: None,
        tag: Vec::new(),
        fence: None,
        user: 0,
    }
}

impl Kind {
    fn steps(self, names: usize) -> Vec<Step> {
        const WAITS: &[WaitPolicy] = &[WaitPolicy::NoWait, WaitPolicy::Forever];
        const RUNS_OUT: &[WaitPolicy] = &[WaitPolicy::Timeout(UNIT_MS)];
        let each = |token: usize| (0..names).map(move |name| (token, name));
        let each: Vec<(usize, usize)> = (0..OWNERS).flat_map(each).collect();
        let mut steps = Vec::new();
        let mut does = |op| steps.push(Step::Does(op, Named::None));
        // Each owner asks for each name, in each of these ways.
        let asks = |wants: &[Want], waits: &[WaitPolicy]| -> Vec<Asked> {
            let ways = wants.iter().flat_map(|want| waits.iter().map(move |wait| (*want, *wait)));
            ways.flat_map(|way| each.iter().map(move |each| (way, *each)))
                .map(|((want, wait), (token, name))| asked(&[name], token, want, wait))
                .collect()
        };
        match self {
            Write => asks(&[WRITE], WAITS).into_iter().for_each(|asked| does(Op::Ask(asked))),
            Read => asks(&[READ], WAITS).into_iter().for_each(|asked| does(Op::Ask(asked))),
            Upgrade => asks(&[UPGRADE], WAITS).into_iter().for_each(|asked| does(Op::Ask(asked))),
            Timed => asks(&[WRITE, READ], RUNS_OUT).into_iter().for_each(|asked| does(Op::Ask(asked))),
            Limit => {
                for asked in asks(&[READ], WAITS) {
                    let limit = NonZeroU32::new(if asked.wait == WaitPolicy::NoWait { 2 } else { 1 });
                    does(Op::Ask(Asked { limit, ..asked }));
                }
            }
            Release => {
                for (token, name) in each {
                    does(Op::ReleaseAll { names: vec![name], token, fence: None });
                }
            }
            Downgrade => {
                for (token, name) in each {
                    does(Op::Downgrade { name, token, ttl_ms: TTL_MS, fence: None });
                }
            }
            Many => {
                // In either order, so that names can change places.
                let orders = [(0..names).collect::<Vec<usize>>(), (0..names).rev().collect()];
                for (token, both) in
                    (0..OWNERS).flat_map(|token| orders.iter().map(move |both| (token, both)))
                {
                    for (want, wait) in
                        [WRITE, READ].iter().flat_map(|want| WAITS.iter().map(move |wait| (want, wait)))
                    {
                        does(Op::Ask(asked(both, token, *want, *wait)));
                    }
                    does(Op::ReleaseAll { names: both.clone(), token, fence: None });
                    does(Op::End { names: both.clone(), token, ms: UNIT_MS });
                    let extension = Extension::To(UNIT_MS);
                    does(Op::Extend { names: both.clone(), token, extension, fence: None });
                }
            }
            Extend => {
                for (token, name) in each {
                    for extension in [Extension::To(UNIT_MS), Extension::AtLeastTo(3 * UNIT_MS)] {
                        does(Op::Extend { names: vec![name], token, extension, fence: None });
                    }
                }
            }
            Time => steps.push(Step::TimePasses),
            Leave => steps.extend((0..4).map(Step::Leaves)),
            Cancel => {
                for (token, name) in each {
                    does(Op::Cancel { name, token });
                    does(Op::End { names: vec![name], token, ms: UNIT_MS });
                }
            }
            Notify => {
                let channel = Some(0);
                for asked in [asks(&[WRITE], &WAITS[1..]), asks(&[READ], RUNS_OUT)].concat() {
                    does(Op::Ask(Asked { channel, ..asked }));
                }
                for asked in asks(&[WRITE], &WAITS[1..]) {
                    does(Op::Ask(Asked { channel, connection: Some(0), ..asked }));
                }
                for token in 0..OWNERS {
                    let lost = [false, true].map(|is_told| Step::Unsubscribes(token, is_told));
                    steps.extend([Step::Closes(token)].into_iter().chain(lost));
                }
            }
            Ephemeral => {
                for asked in asks(&[WRITE, READ], WAITS) {
                    does(Op::Ask(Asked { connection: Some(0), ..asked }));
                }
                steps.extend((0..OWNERS).map(Step::Closes));
            }
            Outside => {
                does(Op::Probe);
                for name in 0..names {
                    does(Op::Delete(name));
                    does(Op::Retype(name));
                    does(Op::Replace(name, Mode::Read, UNIT_MS));
                }
            }
            Late => {
                for asked in asks(&[WRITE, READ], &[WaitPolicy::OnlyRefresh]) {
                    does(Op::Ask(asked));
                }
                for (token, name) in each.iter().copied() {
                    for mode in [Mode::Read, Mode::Write] {
                        does(Op::Release { name, token, mode: Some(mode), fence: None });
                    }
                }
                let upgrades = asks(&[UPGRADE], &WAITS[1..]);
                for ((token, name), upgrade) in each.into_iter().zip(upgrades) {
                    let (names, extension) = (vec![name], Extension::To(UNIT_MS));
                    let downgrade = Op::Downgrade { name, token, ttl_ms: TTL_MS, fence: None };
                    steps.extend([Named::Own, Named::Old].map(|named| Step::Does(downgrade.clone(), named)));
                    let upgrade = Op::Ask(upgrade);
                    steps.extend([Named::Own, Named::Old].map(|named| Step::Does(upgrade.clone(), named)));
                    let extend = Op::Extend { names: names.clone(), token, extension, fence: None };
                    let release = Op::ReleaseAll { names, token, fence: None };
                    steps.extend([extend, release].map(|op| Step::Does(op, Named::Old)));
                }
            }
        }
        steps
    }
}

impl Step {
    /// What it is in this state; `None` where it cannot happen.
    pub(super) fn deed(&self, both: &SideBySide) -> Option<Deed> {
        let model = &both.model;
        Some(Deed::Op(match self {
            Self::TimePasses => return Some(Deed::Pass),
            Self::TurnEnds => return Some(Deed::Serve { looks: usize::MAX }),
            Self::TurnIsInterrupted => return Some(Deed::Serve { looks: 1 }),
            Self::Leaves(nth) => {
                // What is answered on a channel has no client.
                Op::Abandon(model.waiting.get(*nth).filter(|request| request.asked.channel.is_none())?.id)
            }
            Self::Closes(token) => {
                let connection = both.connections[*token];
                Op::Close(connection, both.waiting_by(connection))
            }
            Self::Unsubscribes(token, is_told) => Op::Deafen(both.channels[*token], *is_told),
            Self::Does(op, named) => {
                let mut op = op.clone();
                let (name, token, fence) = match &mut op {
                    Op::Ask(asked) => {
                        asked.connection = asked.connection.map(|_| both.connections[asked.token]);
                        asked.channel = asked.channel.map(|_| both.channels[asked.token]);
                        // A tag of its own for each, so that none is taken for another.
                        asked.tag = both.world.store.operations.to_string().into();
                        (asked.names[0], asked.token, &mut asked.fence)
                    }
                    Op::Release { name, token, fence, .. } | Op::Downgrade { name, token, fence, .. } => {
                        (*name, *token, fence)
                    }
                    Op::ReleaseAll { names, token, fence } | Op::Extend { names, token, fence, .. } => {
                        (names[0], *token, fence)
                    }
                    _ => return Some(Deed::Op(op)),
                };
                let now_ms = both.world.now().unix_ms();
                *fence = match named {
                    Named::None => None,
                    Named::Own => Some(model.own_hold(name, token, now_ms)?.fence),
                    Named::Old => Some(NO_FENCE),
                };
                op
            }
        }))
    }
}

impl Deed {
    /// It happens to the core and the model.
    pub(super) fn happens(&self, both: &mut SideBySide) {
        match self {
            Self::Op(op) => both.act(op),
            Self::Pass => both.world.pass(UNIT_MS * 1000),
            Self::Serve { looks } => _ = both.end_turn(*looks),
        }
    }

    /// It happens once more, to the core alone, as it has happened before.
    pub(super) fn happens_again(&self, world: &mut super::history::World) {
        match self {
            Self::Op(op) => drop(world.does(op)),
            Self::Pass => world.pass(UNIT_MS * 1000),
            Self::Serve { looks } => _ = world.serve(*looks),
        }
        world.manager.take_answers(usize::MAX);
    }
}

fn text(names: &[usize]) -> String {
    let words = names.iter().map(|name| String::from_utf8_lossy(id_of(*name).name).into_owned());
    words.collect::<Vec<_>>().join(" ")
}

/// In the words of the commands.
impl fmt::Display for Deed {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fence = |fence: &Option<u64>| fence.map_or(String::new(), |fence| format!(" FENCE {fence}"));
        let op = match self {
            Self::Pass => return write!(out, "({UNIT_MS} ms pass)"),
            Self::Serve { looks: usize::MAX } => return out.write_str("(the turn ends)"),
            Self::Serve { .. } => return out.write_str("(the turn ends after one look at the clock)"),
            Self::Op(op) => op,
        };
        match op {
            Op::Ask(asked) => {
                let command = match asked.want {
                    Want::Upgrade => "UPGRADE",
                    Want::Hold(Mode::Write) => "LOCK",
                    Want::Hold(Mode::Read) => "RLOCK",
                };
                let many = if asked.names.len() > 1 { "M" } else { "" };
                write!(
                    out,
                    "{many}{command} {} {} {}",
                    text(&asked.names),
                    TOKENS[asked.token],
                    asked.ttl_ms
                )?;
                match asked.wait {
                    WaitPolicy::NoWait => Ok(()),
                    WaitPolicy::OnlyRefresh => out.write_str(" XX"),
                    WaitPolicy::Forever => out.write_str(" WAIT 0"),
                    WaitPolicy::Timeout(ms) => write!(out, " WAIT {ms}"),
                }?;
                asked.limit.map_or(Ok(()), |limit| write!(out, " LIMIT {limit}"))?;
                asked.channel.map_or(Ok(()), |channel| write!(out, " NOTIFY {channel}"))?;
                asked.connection.map_or(Ok(()), |own| write!(out, " EPHEMERAL (connection {own})"))?;
                out.write_str(&fence(&asked.fence))
            }
            Op::Release { name, token, mode, fence: own } => {
                let command = if *mode == Some(Mode::Read) { "RUNLOCK" } else { "UNLOCK" };
                write!(out, "{command} {} {}{}", text(&[*name]), TOKENS[*token], fence(own))
            }
            Op::ReleaseAll { names, token, fence: own } => {
                write!(out, "MUNLOCK {} {}{}", text(names), TOKENS[*token], fence(own))
            }
            Op::Extend { names, token, extension, fence: own } => {
                let (ms, gt) = match extension {
                    Extension::To(ms) => (ms, ""),
                    Extension::AtLeastTo(ms) => (ms, " GT"),
                };
                write!(out, "MEXTEND {} {} {ms}{gt}{}", text(names), TOKENS[*token], fence(own))
            }
            Op::Downgrade { name, token, ttl_ms, fence: own } => {
                write!(out, "DOWNGRADE {} {} {ttl_ms}{}", text(&[*name]), TOKENS[*token], fence(own))
            }
            Op::Cancel { name, token } => write!(out, "CANCEL {} {}", text(&[*name]), TOKENS[*token]),
            Op::End { names, token, ms } => {
                write!(out, "MUNLOCK {} {} REFUSE {ms}", text(names), TOKENS[*token])
            }
            Op::Abandon(request) => write!(out, "(the client of {request:?} goes)"),
            Op::Close(connection, _) => write!(out, "(connection {connection} closes)"),
            Op::Deafen(channel, true) => write!(out, "(nobody listens to channel {channel} any more)"),
            Op::Deafen(channel, false) => write!(out, "(the same of channel {channel}, not noticed)"),
            Op::Probe => out.write_str("(each name that is waited for is checked)"),
            Op::Delete(name) => write!(out, "DEL {}", text(&[*name])),
            Op::Retype(name) => write!(out, "SET {}", text(&[*name])),
            Op::Replace(name, ..) => write!(out, "RENAME to {}: a stranger reads", text(&[*name])),
            other => write!(out, "{other:?}"),
        }
    }
}

/// What decides how a state goes on, as facts about owners and locks: see `Facts`.
pub(super) fn describe(both: &mut SideBySide, names: usize, note: &mut crate::queue::describe::Note<'_>) {
    let now = both.world.now();
    let (world, model) = (&mut both.world, &both.model);
    let tokens: Vec<&[u8]> = TOKENS[..OWNERS].iter().map(|token| token.as_bytes()).collect();
    let words: Vec<&[u8]> = (0..names).map(|name| id_of(name).name).collect();
    world.manager.describe(&mut world.store, now, &tokens, &words, note);
    for (name, word) in words.iter().enumerate() {
        let facts = [model.names[name].is_other_type, world.untold.contains(&name)];
        note(b'k', None, Some(word), &facts.map(u64::from));
        for (nth, holder) in world.lock(name).into_iter().flat_map(|lock| lock.holders()).enumerate() {
            let is_written = world.lock(name).is_some_and(|lock| lock.mode() == Mode::Write);
            let elsewhere = (0..names).filter(|other| *other != name).filter_map(|other| world.lock(other));
            let is_for_many = elsewhere.into_iter().any(|lock| {
                lock.holders().any(|other| (other.token(), other.fence) == (holder.token(), holder.fence))
            });
            let left_ms = holder.deadline_ms.saturating_sub(now.unix_ms());
            let facts = [nth as u64, u64::from(is_written), u64::from(is_for_many), left_ms];
            note(b'l', Some(holder.token()), Some(word), &facts);
        }
    }
    let waitlist = world.manager.waitlist();
    for (rank, request) in model.waiting.iter().enumerate() {
        let Some(waiter) = waitlist.get(request.id) else { continue };
        let asked = &request.asked;
        let want = match waiter.terms.want {
            Want::Hold(Mode::Read) => 0,
            Want::Hold(Mode::Write) => 1,
            Want::Upgrade => 2,
        };
        let fence = waiter.terms.fence.map_or(0, |fence| {
            let hold = HoldRef { token: &waiter.token, fence: Some(fence.get()) };
            let own = world.lock(asked.names[0]).and_then(|lock| lock.holder(&waiter.token, 0));
            1 + u64::from(own.is_some_and(|own| hold.means(own.fence)))
        });
        let left_ms = waiter.gives_up_ms.map_or(u64::MAX, |at_ms| at_ms.saturating_sub(now.monotonic_ms()));
        let channel = asked.channel.map_or(0, |channel| {
            let is_deaf = model.deaf.contains(&channel);
            1 + 2 * u64::from(is_deaf) + 4 * u64::from(waitlist.leaves(request.id, waiter).is_none())
        });
        let has_closed = asked.connection.map_or(0, |own| 1 + u64::from(model.closed.contains(&own)));
        let limit = waiter.terms.limit.map_or(0, |limit| u64::from(limit.get()));
        let facts = [rank as u64, want, fence, left_ms, channel, has_closed, limit, waiter.terms.ttl_ms];
        note(b'a', Some(&waiter.token), None, &facts);
    }
}
