// SPDX-License-Identifier: MIT OR Apache-2.0

//! What clients are told when something is refused: a code, and a sentence that says what to do.

use slock_core::{DeadlockCycle, DeadlockStep, LockError, Mode};

use crate::server::{Reply, Viewer};

/// The error reply.
pub fn error_reply(error: &LockError) -> Reply {
    Reply::Error(match error {
        LockError::WrongType => "WRONGTYPE Operation against a key holding the wrong kind of value".into(),
        LockError::NotServed => "TRYAGAIN The key's slot is moving or has moved to another node".into(),
        LockError::WrongMode(Mode::Read) => {
            "WRONGMODE The token holds this lock for read; SLOCK.UPGRADE makes it the writer".into()
        }
        LockError::WrongMode(Mode::Write) => {
            "WRONGMODE The token holds this lock for write; SLOCK.DOWNGRADE makes it a reader".into()
        }
        LockError::NotHeld => "NOTHELD The token does not hold this lock".into(),
        LockError::Deadlock(cycle) => in_words(cycle),
        LockError::QueueFull(limit) => format!(
            "QUEUEFULL The request would wait in more queues than slock.max-waiters, which is {limit}, allows all \
             requests together"
        ),
        LockError::UserQueueFull(limit) => format!(
            "QUEUEFULL The request would wait in more queues than slock.max-waiters-per-user, which is {limit}, \
             allows the requests of one user together"
        ),
        LockError::TokenQueueFull(limit) => format!(
            "QUEUEFULL The request would wait in more than {limit} queues together with others of this user and \
             token; a token is for one owner"
        ),
        LockError::Revoked(left_ms) => format!(
            "REFUSED The token gets no new hold of this lock for another {left_ms} ms: its owner has ended the \
             acquisition (SLOCK.MUNLOCK with REFUSE)"
        ),
        LockError::Grace(left_ms) => format!(
            "GRACE No new hold for another {left_ms} ms: the server has just started (slock.restart-grace-ms)"
        ),
        LockError::OutOfRange => {
            "ERR The server's clock or its last fence is so far ahead that no further hold could be stored"
                .into()
        }
        LockError::NoPermission => "NOPERM The user may no longer run this command on this key".into(),
        LockError::NotPrimary => {
            "UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)"
                .into()
        }
    })
}

/// A command was run from within a notification of another one.
pub fn in_use() -> Reply {
    Reply::Error("ERR a SLOCK command cannot run inside a notification that another one has caused".into())
}

/// What a client chose, as errors show it: at most 64 bytes.
pub fn shown(bytes: &[u8]) -> String {
    const BYTES_SHOWN: usize = 64;
    let cut = &bytes[..bytes.len().min(BYTES_SHOWN)];
    format!("{}{}", cut.escape_ascii(), if cut.len() < bytes.len() { "..." } else { "" })
}

/// Names who waits for whom, where. Of a lock that the user may not look at, only the user's own
/// token, with which the cycle begins and ends, is named.
fn in_words(cycle: &DeadlockCycle) -> String {
    let viewer = Viewer::of_name(cycle.told_to.as_deref());
    let own = cycle.steps.first().map(|first| &first.token);
    let shown = |bytes: &[u8]| format!("\"{}\"", shown(bytes));
    let waits = |step: &DeadlockStep| {
        let may_look = viewer.may_look_at(&step.lock.name);
        let name = if may_look { shown(&step.lock.name) } else { "?".into() };
        let token = |token| if may_look || Some(token) == own { shown(token) } else { "?".into() };
        format!("{} waits at {name} for {}", token(&step.token), token(&step.waits_for))
    };
    let listed: Vec<String> = cycle.steps.iter().map(waits).collect();
    let more = if cycle.more > 0 { format!(", and {} more", cycle.more) } else { String::new() };
    format!("DEADLOCK Waiting would close a cycle: {}{more}", listed.join(", "))
}
