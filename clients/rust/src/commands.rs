//! The words of each command of the module.

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Pipeline, cmd};

use crate::options::{Mode, Wanted};

/// For how long the server refuses what a request that was given up may still send.
const REFUSE_MS: u64 = 120_000;
/// No hold has this fence.
const NO_FENCE: i64 = 1;

/// The keys of one acquisition, and the token that asks for them.
#[derive(Clone, Debug)]
pub(crate) struct Owner {
    pub(crate) keys: Arc<[String]>,
    pub(crate) token: Arc<str>,
    /// The program gave the token, so it may be used elsewhere and again.
    pub(crate) given: bool,
}

impl Owner {
    /// With the token that the program gave, or one that nobody can guess.
    pub(crate) fn new(keys: Arc<[String]>, given: Option<String>) -> Self {
        let is_given = given.is_some();
        Self { keys, given: is_given, token: given.unwrap_or_else(random_name).into() }
    }

    /// The key that routes the commands in a cluster.
    pub(crate) fn first_key(&self) -> &str {
        &self.keys[0]
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
    if let [key] = &*owner.keys {
        return with_key(one, key, owner);
    }
    let mut command = cmd(many);
    command.arg(owner.keys.len()).arg(&*owner.keys).arg(&*owner.token);
    command
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

pub(crate) fn acquire(owner: &Owner, wanted: &Wanted, wait: &Wait<'_>) -> Cmd {
    let mut command = lock(owner, wanted.mode, wanted.options.ttl);
    wait.add_to(&mut command);
    if let Some(metadata) = &wanted.options.metadata {
        command.arg("META").arg(metadata);
    }
    if let Some(limit) = wanted.options.limit {
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
pub(crate) fn release_all(owner: &Owner) -> Pipeline {
    let mut commands = redis::pipe();
    commands.add_command(release_any_fence(owner, Mode::Write));
    if owner.keys.len() == 1 {
        commands.add_command(release_any_fence(owner, Mode::Read));
    }
    commands
}

/// Withdraws what waits. For a token that the library drew, the server also refuses what comes late; that is
/// for each key.
fn withdrawal(owner: &Owner) -> Pipeline {
    let mut commands = redis::pipe();
    if owner.given {
        commands.add_command(with_key("SLOCK.CANCEL", owner.first_key(), owner));
        return commands;
    }
    for key in &*owner.keys {
        let mut command = with_key("SLOCK.CANCEL", key, owner);
        command.arg("REFUSE").arg(REFUSE_MS);
        commands.add_command(command);
    }
    commands
}

/// The end of an acquisition in doubt: nothing waits, nothing is held, and nothing comes late.
pub(crate) fn give_up(owner: &Owner) -> Pipeline {
    let mut commands = withdrawal(owner);
    for release in release_all(owner).cmd_iter() {
        commands.add_command(release.clone());
    }
    commands
}

/// The end of an acquisition in doubt by a token that the program gave. The last answer is the fence of a hold
/// that was granted meanwhile.
pub(crate) fn withdraw(owner: &Owner, mode: Mode) -> Pipeline {
    let mut commands = withdrawal(owner);
    commands.add_command(held_fence(owner, mode, Duration::ZERO));
    commands
}

/// The end of a change of mode that was given up. The last two answers are the fences of a writer and of a
/// reader.
pub(crate) fn give_up_change(owner: &Owner, ttl: Duration) -> Pipeline {
    let mut commands = withdrawal(owner);
    commands.add_command(held_fence(owner, Mode::Write, ttl)).add_command(held_fence(owner, Mode::Read, ttl));
    commands
}

/// What giving up and releasing need, about a hold that does not exist.
pub(crate) fn may_release(owner: &Owner, mode: Mode) -> Pipeline {
    let mut commands = redis::pipe();
    commands.add_command(with_key("SLOCK.CANCEL", owner.first_key(), owner));
    commands.add_command(release(owner, mode, NO_FENCE));
    commands
}

fn change(name: &str, owner: &Owner, ttl: Duration, wait: &Wait<'_>, fence: i64) -> Cmd {
    let mut command = with_key(name, owner.first_key(), owner);
    command.arg(milliseconds(ttl));
    wait.add_to(&mut command);
    command.arg("FENCE").arg(fence);
    command
}

pub(crate) fn upgrade(owner: &Owner, ttl: Duration, wait: &Wait<'_>, fence: i64) -> Cmd {
    change("SLOCK.UPGRADE", owner, ttl, wait, fence)
}

pub(crate) fn downgrade(owner: &Owner, ttl: Duration, fence: i64) -> Cmd {
    change("SLOCK.DOWNGRADE", owner, ttl, &Wait::No, fence)
}

pub(crate) fn info(key: &str) -> Cmd {
    let mut command = cmd("SLOCK.INFO");
    command.arg(key).arg("FULL");
    command
}

pub(crate) fn queues() -> Cmd {
    let mut command = cmd("SLOCK.QUEUES");
    command.arg("COUNT").arg(0);
    command
}

/// Waits until replicas have what this connection wrote.
pub(crate) fn wait_for_replicas(least: u32, timeout: Duration) -> Cmd {
    let mut command = cmd("WAIT");
    command.arg(least).arg(milliseconds(timeout));
    command
}

#[cfg(test)]
#[path = "../tests/unit/commands.rs"]
mod tests;
