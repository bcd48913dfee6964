//! What is asked of the desk, and what it answers.

use std::fmt::{self, Display, Formatter};

use crate::deadlock::Step;
use crate::lock::{Mode, Want};
use crate::queue::Ticket;

/// A request for a hold.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    /// The database.
    pub db: i32,
    /// The keys, each once. All of them or none is granted.
    pub names: &'a [&'a [u8]],
    /// Who asks.
    pub token: &'a [u8],
    /// What for. An upgrade names one key.
    pub want: Want,
    /// How long the hold shall last, from the grant on.
    pub ttl_ms: u64,
    /// The metadata of the hold. `None` keeps what a refreshed or upgraded hold has.
    pub meta: Option<&'a [u8]>,
    /// What to do if it cannot be granted at once.
    pub patience: Patience,
    /// The connection with which the hold shall end, if it shall.
    pub connection: Option<u64>,
}

/// How long a request is willing to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// Not at all.
    None,
    /// For this many milliseconds.
    Ms(u64),
    /// Without limit.
    Endless,
}

/// What became of a request for a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It holds, with this fence.
    Granted(u64),
    /// It cannot have it now and did not want to wait.
    Refused,
    /// It waits. Its [`Answer`] comes from [`Desk::take_answers`].
    Parked(Ticket),
}

/// The answer to a request that waited.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It holds, with this fence. Say so with [`Desk::told`], or take it back with [`Desk::leave`].
    Granted(u64),
    /// It has waited as long as it wanted to.
    TimedOut,
    /// It can no longer be granted.
    Refused(Refusal),
}

/// Why a request cannot be granted however long it waits. `Display` gives the error reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The key holds another type.
    WrongType,
    /// The key's slot is on its way to another node, or has arrived there.
    Elsewhere,
    /// The token holds the lock in this mode, and asked for the other.
    OtherMode(Mode),
    /// The token was to upgrade or downgrade a hold that it does not have.
    NotHeld,
    /// To wait would close a cycle of owners that wait for each other.
    Deadlock(Vec<Step>),
    /// So many requests wait already.
    QueueFull(usize),
    /// No new hold is given before this many milliseconds have passed.
    Grace(u64),
    /// The server has become a replica.
    NotPrimary,
}

impl Display for Refusal {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::WrongType => out.write_str("WRONGTYPE Operation against a key holding the wrong kind of value"),
            Self::Elsewhere => out.write_str("TRYAGAIN The key's slot is moving or has moved to another node"),
            Self::OtherMode(Mode::Read) => {
                out.write_str("WRONGMODE The token holds this lock for read; SLOCK.UPGRADE makes it the writer")
            }
            Self::OtherMode(Mode::Write) => {
                out.write_str("WRONGMODE The token holds this lock for write; SLOCK.DOWNGRADE makes it a reader")
            }
            Self::NotHeld => out.write_str("NOTHELD The token does not hold this lock"),
            Self::Deadlock(steps) => write_cycle(out, steps),
            Self::QueueFull(limit) => {
                write!(out, "QUEUEFULL as many requests wait as slock.max-waiters allows, which is {limit}")
            }
            Self::Grace(left_ms) => write!(
                out,
                "GRACE No new hold for another {left_ms} ms: the server has just started (slock.restart-grace-ms)"
            ),
            Self::NotPrimary => {
                out.write_str("UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)")
            }
        }
    }
}

/// Names who waits for whom, where: at most eight steps, names cut to 64 bytes.
fn write_cycle(out: &mut Formatter<'_>, steps: &[Step]) -> fmt::Result {
    const STEPS_SHOWN: usize = 8;
    const BYTES_SHOWN: usize = 64;
    let shown = |bytes: &[u8]| {
        let cut = &bytes[..bytes.len().min(BYTES_SHOWN)];
        format!("\"{}{}\"", cut.escape_ascii(), if cut.len() < bytes.len() { "..." } else { "" })
    };
    out.write_str("DEADLOCK Waiting would close a cycle: ")?;
    for (at, step) in steps.iter().take(STEPS_SHOWN).enumerate() {
        let next = &steps[(at + 1) % steps.len()];
        let comma = if at > 0 { ", " } else { "" };
        write!(
            out,
            "{comma}{} waits at {} for {}",
            shown(&step.token),
            shown(&step.place.name),
            shown(&next.token)
        )?;
    }
    if steps.len() > STEPS_SHOWN {
        write!(out, ", and {} more", steps.len() - STEPS_SHOWN)?;
    }
    Ok(())
}

/// What became of a request whose client has gone; see [`Desk::leave`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parting {
    /// It no longer waits.
    Left,
    /// It had been granted and not told: the grant will be taken back.
    Mourned,
    /// It had been answered, or never was.
    Unknown,
}
