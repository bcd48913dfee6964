//! The words of each command of the module.

use std::sync::Arc;
use std::time::Duration;

use redis::Cmd;

use crate::options::{Mode, Wanted};

/// For how long the server refuses what a request that was given up may still send.
pub(crate) const REFUSED_FOR: Duration = Duration::from_secs(120);
/// No hold has this fence.
pub(crate) const NO_FENCE: i64 = 1;

/// One acquisition: what is wanted, and the token that asks for it.
#[derive(Clone, Debug)]
pub struct Owner {
    pub(crate) wanted: Arc<Wanted>,
    pub(crate) token: Arc<str>,
}

impl Owner {
    /// With the token that the program gave, or one that nobody can guess.
    pub(crate) fn new(wanted: Arc<Wanted>) -> Self {
        let token = wanted.options.token.as_deref().map_or_else(random_name, Arc::from);
        Self { wanted, token }
    }

    pub(crate) fn keys(&self) -> &Arc<[String]> {
        &self.wanted.keys
    }

    /// The key that routes the commands in a cluster.
    pub(crate) fn first_key(&self) -> &str {
        &self.wanted.keys[0]
    }

    /// The program gave the token, so it may be used elsewhere and again.
    pub(crate) fn is_given(&self) -> bool {
        self.wanted.options.token.is_some()
    }
}

/// 22 letters, digits, `-` and `_`: 132 random bits. The server keeps a token of so many bytes without memory of
/// its own.
pub(crate) fn random_name() -> Arc<str> {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut name = [0u8; 22];
    rand::fill(&mut name);
    let name = name.map(|random| LETTERS[usize::from(random % 64)]);
    str::from_utf8(&name).expect("the letters are ASCII").into()
}

/// Whole milliseconds, rounded up: the server takes no others, and 0 means something else.
pub(crate) fn milliseconds(duration: Duration) -> u64 {
    let rounded_up = duration.as_nanos().div_ceil(1_000_000);
    u64::try_from(rounded_up).unwrap_or(u64::MAX).max(1)
}

/// The one-key command, or the one for many keys with their number.
fn command(one: &str, many: &str, owner: &Owner) -> Cmd {
    match &**owner.keys() {
        [key] => with_key(one, key, owner),
        _ => with_keys(many, owner),
    }
}

fn with_keys(name: &str, owner: &Owner) -> Cmd {
    Cmd::new().arg((name, owner.keys().len())).arg(&**owner.keys()).arg(&*owner.token).take()
}

/// With room for all words: memory that grows is what such a command costs most.
fn with_key(name: &str, key: &str, owner: &Owner) -> Cmd {
    const WORDS: usize = 12;
    const BYTES_OF_OPTIONS: usize = 160;
    let mut command = Cmd::with_capacity(WORDS, BYTES_OF_OPTIONS + key.len() + owner.token.len());
    command.arg((name, key, &*owner.token)).take()
}

fn lock(owner: &Owner, mode: Mode, ttl: Duration) -> Cmd {
    let (one, many) = match mode {
        Mode::Write => ("SLOCK.LOCK", "SLOCK.MLOCK"),
        Mode::Read => ("SLOCK.RLOCK", "SLOCK.MRLOCK"),
    };
    command(one, many, owner).arg(milliseconds(ttl)).take()
}

/// Asks for a hold. It does not wait.
pub(crate) fn acquire(owner: &Owner) -> Cmd {
    let options = &owner.wanted.options;
    let metadata = options.metadata.as_ref().map(|metadata| ("META", metadata));
    let limit = options.limit.map(|limit| ("LIMIT", limit));
    lock(owner, owner.wanted.mode, options.ttl).arg(metadata).arg(limit).take()
}

/// The same command with a wait. Its end comes as the answer, or as a message with this tag on this channel.
pub(crate) fn waiting(command: &Cmd, most: Option<Duration>, message: Option<(&str, u64)>) -> Cmd {
    // 0 waits without limit.
    let notify = message.map(|(channel, tag)| ("NOTIFY", channel, tag));
    command.clone().arg(("WAIT", most.map_or(0, milliseconds))).arg(notify).take()
}

/// Gives the fence of what the token holds in this mode, and never a new hold.
pub(crate) fn held_fence(owner: &Owner, mode: Mode, ttl: Duration) -> Cmd {
    lock(owner, mode, ttl).arg("XX").take()
}

/// Moves the deadline of the hold with this fence, and never to an earlier moment.
pub(crate) fn extend(owner: &Owner, ttl: Duration, fence: i64) -> Cmd {
    command("SLOCK.EXTEND", "SLOCK.MEXTEND", owner).arg((milliseconds(ttl), "GT", "FENCE", fence)).take()
}

/// Releases the hold with this fence.
pub(crate) fn release(owner: &Owner, mode: Mode, fence: i64) -> Cmd {
    let one = if mode == Mode::Write { "SLOCK.UNLOCK" } else { "SLOCK.RUNLOCK" };
    command(one, "SLOCK.MUNLOCK", owner).arg(("FENCE", fence)).take()
}

/// Releases whatever the token holds, in whichever mode. The answer is the number of keys.
pub(crate) fn release_all(owner: &Owner) -> Cmd {
    with_keys("SLOCK.MUNLOCK", owner)
}

/// Withdraws what waits. For a token that the library drew, the server also refuses what comes late; that is
/// for each key.
fn withdrawal(owner: &Owner) -> Vec<Cmd> {
    if owner.is_given() {
        return vec![with_key("SLOCK.CANCEL", owner.first_key(), owner)];
    }
    let refuse = ("REFUSE", milliseconds(REFUSED_FOR));
    let refusal = |key: &String| with_key("SLOCK.CANCEL", key, owner).arg(refuse).take();
    owner.keys().iter().map(refusal).collect()
}

/// The end of an acquisition in doubt: nothing waits, nothing is held, and nothing comes late. Of a token that the
/// program gave only the hold with this fence is released; the answers to the two commands before the last one tell
/// which fence it has.
pub(crate) fn end(owner: &Owner, fence: i64) -> Vec<Cmd> {
    let (mut commands, release) = if owner.is_given() {
        (withdraw(owner, Duration::ZERO), release_all(owner).arg(("FENCE", fence)).take())
    } else {
        (withdrawal(owner), release_all(owner))
    };
    commands.push(release);
    commands
}

/// The end of what was given up and may be held all the same. The last answers are the fences of what is held to
/// write and to read.
pub(crate) fn withdraw(owner: &Owner, ttl: Duration) -> Vec<Cmd> {
    let fences = [Mode::Write, Mode::Read].map(|mode| held_fence(owner, mode, ttl));
    withdrawal(owner).into_iter().chain(fences).collect()
}

/// What giving up and releasing need, about a hold that does not exist.
pub(crate) fn may_release(owner: &Owner) -> [Cmd; 3] {
    let cancel = with_key("SLOCK.CANCEL", owner.first_key(), owner);
    [cancel, release(owner, owner.wanted.mode, NO_FENCE), release_all(owner).arg(("FENCE", NO_FENCE)).take()]
}

/// Makes the reader the writer, or the writer a reader.
pub(crate) fn change(to: Mode, owner: &Owner, ttl: Duration, fence: i64) -> Cmd {
    let name = if to == Mode::Write { "SLOCK.UPGRADE" } else { "SLOCK.DOWNGRADE" };
    with_key(name, owner.first_key(), owner).arg((milliseconds(ttl), "FENCE", fence)).take()
}

pub(crate) fn info(key: &str) -> Cmd {
    Cmd::new().arg(("SLOCK.INFO", key, "FULL")).take()
}

pub(crate) fn queues() -> Cmd {
    Cmd::new().arg(("SLOCK.QUEUES", "COUNT", 0)).take()
}

/// Waits until replicas have what this connection wrote.
pub(crate) fn wait_for_replicas(least: u32, timeout: Duration) -> Cmd {
    Cmd::new().arg(("WAIT", least, milliseconds(timeout))).take()
}

#[cfg(test)]
#[path = "../tests/unit/commands.rs"]
mod tests;
