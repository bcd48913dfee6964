// SPDX-License-Identifier: MIT OR Apache-2.0

//! How a change is written in the log and spoken to replicas.
//!
//! ```text
//! SLOCK.APPLY key "HOLD at-ms read|write fence since-ms deadline-ms token" [meta]
//! SLOCK.APPLY key "EXTEND at-ms deadline-ms token"
//! SLOCK.APPLY key "RELEASE at-ms token"
//! SLOCK.APPLY key "FENCE fence"
//! ```
//!
//! First holders with deadlines up to `at-ms` are dropped (none, if it is 0; some hundred at most), then the change
//! is made; see [`Effect`]. `HOLD` at 0, which a rewritten log has, gives no expiry to a key without one.
//! `FENCE` only says which fence was given last. All times are absolute. The token is whatever bytes
//! follow the last space of the form.
//!
//! This form is kept in logs and spoken between servers of different versions: kinds of change may be
//! added, but these stay as they are. A change is one argument because the server makes an object of
//! every argument of every change, whether or not anybody listens: of the time that a fresh lock
//! takes, this was a third.

use arrayvec::ArrayVec;

use crate::limits::{META_MAX_BYTES, NUMBER_MAX, TOKEN_MAX_BYTES, is_fence, is_token};
use crate::{Change, Effect, Lock, Mode};

/// What a command of this form says.
#[derive(Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// A lock changes.
    Effect(Effect<'a>),
    /// This fence was given.
    Fence(u64),
}

impl Message<'_> {
    /// The fence that it speaks of.
    pub fn fence(&self) -> Option<u64> {
        match self {
            Self::Effect(Effect { change: Change::Hold { fence, .. }, .. }) | Self::Fence(fence) => {
                Some(*fence)
            }
            Self::Effect(_) => None,
        }
    }

    /// The deadline that it gives to a hold.
    pub fn deadline_ms(&self) -> Option<u64> {
        match self {
            Self::Effect(Effect { change: Change::Hold { deadline_ms, .. }, .. })
            | Self::Effect(Effect { change: Change::Extend { deadline_ms, .. }, .. }) => Some(*deadline_ms),
            _ => None,
        }
    }
}

/// A change, on the stack: two words, four numbers of at most twenty digits, spaces, and the token.
pub type Line = ArrayVec<u8, { 16 + 4 * 21 + TOKEN_MAX_BYTES }>;

/// The commands that make this lock, for a rewritten log; at 0, so that nothing is judged expired. Before the first
/// lock of a log comes the last fence, which has no other place there.
pub fn rewrite(lock: &Lock, last_fence: Option<u64>, emit: &mut dyn FnMut(&[u8], &[u8])) {
    if let Some(last_fence) = last_fence {
        emit(format!("FENCE {last_fence}").as_bytes(), b"");
    }
    for holder in lock.holders() {
        let change = Change::Hold {
            mode: lock.mode(),
            token: holder.token(),
            fence: holder.fence,
            since_ms: holder.since_ms(),
            deadline_ms: holder.deadline_ms,
            meta: holder.meta(),
        };
        let effect = Effect { at_ms: 0, change };
        let (line, meta) = write(&effect);
        emit(&line, meta);
    }
}

/// The arguments that say this effect: the change, and the metadata.
pub fn write<'a>(effect: &Effect<'a>) -> (Line, &'a [u8]) {
    let mut line = Line::new();
    let (token, meta) = match effect.change {
        Change::Hold { mode, token, fence, since_ms, deadline_ms, meta } => {
            put(&mut line, b"HOLD ");
            put_number(&mut line, effect.at_ms);
            put(&mut line, if mode == Mode::Read { b"read " } else { b"write " });
            for number in [fence, since_ms, deadline_ms] {
                put_number(&mut line, number);
            }
            (token, meta)
        }
        Change::Extend { token, deadline_ms } => {
            put(&mut line, b"EXTEND ");
            put_number(&mut line, effect.at_ms);
            put_number(&mut line, deadline_ms);
            (token, &[][..])
        }
        Change::Release { token } => {
            put(&mut line, b"RELEASE ");
            put_number(&mut line, effect.at_ms);
            (token, &[][..])
        }
    };
    put(&mut line, token);
    (line, meta)
}

fn put(line: &mut Line, bytes: &[u8]) {
    line.try_extend_from_slice(bytes).expect("the longest change fits");
}

fn put_number(line: &mut Line, number: u64) {
    put(line, itoa::Buffer::new().format(number).as_bytes());
    put(line, b" ");
}

/// Reads the arguments of a command of this form, without its key. `None` for anything else.
pub fn read<'a>(change: &'a [u8], meta: &'a [u8]) -> Option<Message<'a>> {
    let mut rest = change;
    let kind = word(&mut rest)?;
    if kind == b"FENCE" {
        let fence = number(rest).filter(|fence| is_fence(*fence))?;
        return meta.is_empty().then_some(Message::Fence(fence));
    }
    let at_ms = number(word(&mut rest)?)?;
    let change = match kind {
        b"HOLD" => {
            let mode = match word(&mut rest)? {
                b"read" => Mode::Read,
                b"write" => Mode::Write,
                _ => return None,
            };
            let fence = number(word(&mut rest)?).filter(|fence| is_fence(*fence))?;
            let (since_ms, deadline_ms) = (number(word(&mut rest)?)?, number(word(&mut rest)?)?);
            Change::Hold { mode, token: rest, fence, since_ms, deadline_ms, meta }
        }
        b"EXTEND" => {
            let deadline_ms = number(word(&mut rest)?)?;
            Change::Extend { token: rest, deadline_ms }
        }
        b"RELEASE" => Change::Release { token: rest },
        _ => return None,
    };
    let meta_max_bytes = if kind == b"HOLD" { META_MAX_BYTES } else { 0 };
    let is_sound = is_token(rest) && meta.len() <= meta_max_bytes;
    is_sound.then_some(Message::Effect(Effect { at_ms, change }))
}

/// The bytes up to the next space, which is taken too.
fn word<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let end = rest.iter().position(|byte| *byte == b' ')?;
    let word = &rest[..end];
    *rest = &rest[end + 1..];
    Some(word)
}

fn number(word: &[u8]) -> Option<u64> {
    let is_plain = word.iter().all(u8::is_ascii_digit);
    let number = std::str::from_utf8(word).ok()?.parse::<u64>().ok()?;
    (is_plain && number <= NUMBER_MAX).then_some(number)
}
