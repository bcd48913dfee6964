//! The words of each command of the module.

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, cmd};

use crate::options::{Mode, Wanted};

/// For how long the server refuses what a request that was given up may still send.
const REFUSE_MS: u64 = 120_000;
/// No hold has this fence.
const NO_FENCE: i64 = 1;

/// One acquisition: what is wanted, and the token that asks for it.
#[derive(Clone, Debug)]
pub struct Owner {
    pub(crate) wanted: Arc<Wanted>,
    pub(crate) token: Arc<str>,
}

impl Owner {
    /// With the token that the program gave, or one that nobody can guess.
    pub(crate) fn new(wanted: Arc<Wanted>) -> Self {
        let token = wanted.options.token.clone().unwrap_or_else(random_name).into();
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

/// 128 random bits as 32 hexadecimal digits.
pub(crate) fn random_name() -> String {
    format!("{:032x}", rand::random::<u128>())
}

/// How a request waits on the server.
pub(crate) enum Wait<'a> {
    No,
    Blocked { most: Option<Duration> },
    Notified { most: Option<Duration>, channel: &'a str, tag: u64 },
}

impl Wait<'_> {
    fn add_to(&self, command: &mut Cmd) {
        let most = match self {
            Wait::No => return,
            Wait::Blocked { most } | Wait::Notified { most, .. } => most,
        };
        // 0 waits without limit.
        command.arg("WAIT").arg(most.map_or(0, milliseconds));
        if let Wait::Notified { channel, tag, .. } = self {
            command.arg("NOTIFY").arg(channel).arg(tag);
        }
    }
}

/// Whole milliseconds, rounded up: the server takes no others, and 0 means something else.
pub(crate) fn milliseconds(duration: Duration) -> u64 {
    let rounded_up = duration.as_nanos().div_ceil(1_000_000);
    u64::try_from(rounded_up).unwrap_or(u64::MAX).max(1)
}

/// The one-key command, or the one for many keys with their number.
fn command(one: &str, many: &str, owner: &Owner) -> Cmd {
    if let [key] = &**owner.keys() {
        return with_key(one, key, owner);
    }
    cmd(many).arg(owner.keys().len()).arg(&**owner.keys()).arg(&*owner.token).clone()
}

/// With room for all words: memory that grows is what such a command costs most.
fn with_key(name: &str, key: &str, owner: &Owner) -> Cmd {
    const WORDS: usize = 12;
    const BYTES_OF_OPTIONS: usize = 160;
    let mut command = Cmd::with_capacity(WORDS, BYTES_OF_OPTIONS + key.len() + owner.token.len());
    command.arg(name).arg(key).arg(&*owner.token);
    command
}

fn lock(owner: &Owner, mode: Mode, ttl: Duration) -> Cmd {
    let mut command = match mode {
        Mode::Write => command("SLOCK.LOCK", "SLOCK.MLOCK", owner),
        Mode::Read => command("SLOCK.RLOCK", "SLOCK.MRLOCK", owner),
    };
    command.arg(milliseconds(ttl));
    command
}

pub(crate) fn acquire(owner: &Owner, wait: &Wait<'_>) -> Cmd {
    let options = &owner.wanted.options;
    let mut command = lock(owner, owner.wanted.mode, options.ttl);
    wait.add_to(&mut command);
    if let Some(metadata) = &options.metadata {
        command.arg("META").arg(metadata);
    }
    if let Some(limit) = options.limit {
        command.arg("LIMIT").arg(limit);
    }
    command
}

/// Gives the fence of what the token holds in this mode, and never a new hold.
pub(crate) fn held_fence(owner: &Owner, mode: Mode, ttl: Duration) -> Cmd {
    let mut command = lock(owner, mode, ttl);
    command.arg("XX");
    command
}

/// Moves the deadline of the hold with this fence, and never to an earlier moment.
pub(crate) fn extend(owner: &Owner, ttl: Duration, fence: i64) -> Cmd {
    let mut command = command("SLOCK.EXTEND", "SLOCK.MEXTEND", owner);
    command.arg(milliseconds(ttl)).arg("GT").arg("FENCE").arg(fence);
    command
}

fn release_any_fence(owner: &Owner, mode: Mode) -> Cmd {
    match mode {
        Mode::Write => command("SLOCK.UNLOCK", "SLOCK.MUNLOCK", owner),
        Mode::Read => command("SLOCK.RUNLOCK", "SLOCK.MUNLOCK", owner),
    }
}

/// Releases the hold with this fence.
pub(crate) fn release(owner: &Owner, mode: Mode, fence: i64) -> Cmd {
    let mut command = release_any_fence(owner, mode);
    command.arg("FENCE").arg(fence);
    command
}

/// Releases whatever the token holds. The sum of the answers is the number of keys.
pub(crate) fn release_all(owner: &Owner) -> Vec<Cmd> {
    let modes: &[Mode] = if owner.keys().len() == 1 { &[Mode::Write, Mode::Read] } else { &[Mode::Write] };
    modes.iter().map(|mode| release_any_fence(owner, *mode)).collect()
}

/// Withdraws what waits. For a token that the library drew, the server also refuses what comes late; that is
/// for each key.
fn withdrawal(owner: &Owner) -> Vec<Cmd> {
    if owner.is_given() {
        return vec![with_key("SLOCK.CANCEL", owner.first_key(), owner)];
    }
    let refusal = |key: &String| {
        let mut command = with_key("SLOCK.CANCEL", key, owner);
        command.arg("REFUSE").arg(REFUSE_MS);
        command
    };
    owner.keys().iter().map(refusal).collect()
}

/// The end of an acquisition in doubt: nothing waits, nothing is held, and nothing comes late.
pub(crate) fn give_up(owner: &Owner) -> Vec<Cmd> {
    [withdrawal(owner), release_all(owner)].concat()
}

/// The end of what was given up and may be held all the same. The last answers are the fences in these modes.
pub(crate) fn withdraw(owner: &Owner, modes: &[Mode], ttl: Duration) -> Vec<Cmd> {
    let fences = modes.iter().map(|mode| held_fence(owner, *mode, ttl));
    withdrawal(owner).into_iter().chain(fences).collect()
}

/// What giving up and releasing need, about a hold that does not exist.
pub(crate) fn may_release(owner: &Owner) -> [Cmd; 2] {
    let cancel = with_key("SLOCK.CANCEL", owner.first_key(), owner);
    [cancel, release(owner, owner.wanted.mode, NO_FENCE)]
}

pub(crate) fn upgrade(owner: &Owner, ttl: Duration, wait: &Wait<'_>, fence: i64) -> Cmd {
    let mut command = with_key("SLOCK.UPGRADE", owner.first_key(), owner);
    command.arg(milliseconds(ttl));
    wait.add_to(&mut command);
    command.arg("FENCE").arg(fence);
    command
}

pub(crate) fn downgrade(owner: &Owner, ttl: Duration, fence: i64) -> Cmd {
    let mut command = with_key("SLOCK.DOWNGRADE", owner.first_key(), owner);
    command.arg(milliseconds(ttl)).arg("FENCE").arg(fence);
    command
}

pub(crate) fn info(key: &str) -> Cmd {
    cmd("SLOCK.INFO").arg(key).arg("FULL").clone()
}

pub(crate) fn queues() -> Cmd {
    cmd("SLOCK.QUEUES").arg("COUNT").arg(0).clone()
}

/// Waits until replicas have what this connection wrote.
pub(crate) fn wait_for_replicas(least: u32, timeout: Duration) -> Cmd {
    cmd("WAIT").arg(least).arg(milliseconds(timeout)).clone()
}

#[cfg(test)]
#[path = "../tests/unit/commands.rs"]
mod tests;
