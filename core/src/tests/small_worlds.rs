//! Small worlds for `explore.rs`: a few owners and names, and all that can happen in each.

use std::num::NonZeroU32;

use super::history::{Asked, Op};
use super::parts::{READ, UPGRADE, WRITE};
use crate::mode::{Mode, Want};
use crate::request::{Extension, WaitPolicy};

/// All durations are multiples of it. It is a whole second, as the moments are at which an EPHEMERAL hold is looked at.
pub(super) const UNIT_MS: u64 = 1000;
const TTL_MS: u64 = 2 * UNIT_MS;
pub(super) const OWNERS: usize = 3;
/// Nobody holds anything with it.
pub(super) const NO_FENCE: u64 = 7;

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
                    does(Op::Release { names: vec![name], token, mode: None, fence: None });
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
                    does(Op::Release { names: both.clone(), token, mode: None, fence: None });
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
                        does(Op::Release { names: vec![name], token, mode: Some(mode), fence: None });
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
                    let release = Op::Release { names, token, mode: None, fence: None };
                    steps.extend([extend, release].map(|op| Step::Does(op, Named::Old)));
                }
            }
        }
        steps
    }
}
