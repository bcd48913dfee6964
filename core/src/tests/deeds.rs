//! What a step of a small world is in one state; how it is played, told, and what decides how the state goes on.

use std::fmt;

use super::history::{Asked, Op, TOKENS, World, id_of};
use super::side_by_side::SideBySide;
use super::small_worlds::{NO_FENCE, Named, OWNERS, Step, UNIT_MS};
use crate::ids::HoldRef;
use crate::mode::{Mode, Want};
use crate::queue::describe::Note;
use crate::request::{Extension, WaitPolicy};

/// The same in one state.
#[derive(Clone, Debug)]
pub(super) enum Deed {
    Op(Op),
    Pass,
    Serve { looks: usize },
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
                    Op::Downgrade { name, token, fence, .. } => (*name, *token, fence),
                    Op::Release { names, token, fence, .. } | Op::Extend { names, token, fence, .. } => {
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
    pub(super) fn happens_again(&self, world: &mut World) {
        match self {
            Self::Op(op) => drop(world.does(op)),
            Self::Pass => world.pass(UNIT_MS * 1000),
            Self::Serve { looks } => _ = world.serve(*looks),
        }
        world.manager.take_answers(usize::MAX);
    }
}

/// In the words of the commands.
impl fmt::Display for Deed {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let op = match self {
            Self::Pass => return write!(out, "({UNIT_MS} ms pass)"),
            Self::Serve { looks: usize::MAX } => return out.write_str("(the turn ends)"),
            Self::Serve { .. } => return out.write_str("(the turn ends after one look at the clock)"),
            Self::Op(op) => op,
        };
        let text = |names: &[usize]| {
            let words = names.iter().map(|name| String::from_utf8_lossy(id_of(*name).name));
            words.collect::<Vec<_>>().join(" ")
        };
        let fence = match op {
            Op::Ask(Asked { fence, .. })
            | Op::Release { fence, .. }
            | Op::Extend { fence, .. }
            | Op::Downgrade { fence, .. } => *fence,
            Op::Abandon(request) => return write!(out, "(the client of {request:?} goes)"),
            Op::Close(connection, _) => return write!(out, "(connection {connection} closes)"),
            Op::Deafen(channel, true) => {
                return write!(out, "(nobody listens to channel {channel} any more)");
            }
            Op::Deafen(channel, false) => return write!(out, "(the same of channel {channel}, not noticed)"),
            Op::Probe => return out.write_str("(each name that is waited for is checked)"),
            Op::Delete(name) => return write!(out, "DEL {}", text(&[*name])),
            Op::Retype(name) => return write!(out, "SET {}", text(&[*name])),
            Op::Replace(name, ..) => return write!(out, "RENAME to {}: a stranger reads", text(&[*name])),
            _ => None,
        };
        let Some((names, token)) = op.about() else { return write!(out, "{op:?}") };
        let (command, terms) = match op {
            Op::Ask(asked) => {
                let command = match asked.want {
                    Want::Upgrade => "UPGRADE",
                    Want::Hold(Mode::Write) => "MLOCK",
                    Want::Hold(Mode::Read) => "MRLOCK",
                };
                let wait = match asked.wait {
                    WaitPolicy::NoWait => String::new(),
                    WaitPolicy::OnlyRefresh => " XX".to_owned(),
                    WaitPolicy::Forever => " WAIT 0".to_owned(),
                    WaitPolicy::Timeout(ms) => format!(" WAIT {ms}"),
                };
                let limit = asked.limit.map_or(String::new(), |limit| format!(" LIMIT {limit}"));
                let notify = asked.channel.map_or(String::new(), |channel| format!(" NOTIFY {channel}"));
                let own = asked.connection;
                let bond = own.map_or(String::new(), |own| format!(" EPHEMERAL (connection {own})"));
                (command, format!(" {}{wait}{limit}{notify}{bond}", asked.ttl_ms))
            }
            Op::Release { mode: Some(Mode::Write), .. } => ("UNLOCK", String::new()),
            Op::Release { mode: Some(Mode::Read), .. } => ("RUNLOCK", String::new()),
            Op::Extend { extension: Extension::To(ms), .. } => ("MEXTEND", format!(" {ms}")),
            Op::Extend { extension: Extension::AtLeastTo(ms), .. } => ("MEXTEND", format!(" {ms} GT")),
            Op::Downgrade { ttl_ms, .. } => ("DOWNGRADE", format!(" {ttl_ms}")),
            Op::Cancel { .. } => ("CANCEL", String::new()),
            Op::End { ms, .. } => ("MUNLOCK", format!(" REFUSE {ms}")),
            _ => ("MUNLOCK", String::new()),
        };
        let fence = fence.map_or(String::new(), |fence| format!(" FENCE {fence}"));
        write!(out, "{command} {} {}{terms}{fence}", text(names), TOKENS[token])
    }
}

/// What decides how a state goes on, as facts about owners and locks.
pub(super) fn describe(both: &mut SideBySide, names: usize, note: &mut Note<'_>) {
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
