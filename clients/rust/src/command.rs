//! The commands of the module.

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, cmd};

use crate::{Error, Mode, random};

/// The keys of one request, and the token that asks for them.
#[derive(Clone, Debug)]
pub(crate) struct Owner {
    pub(crate) keys: Arc<[String]>,
    pub(crate) token: String,
    /// The caller gave the token, so it may be used again.
    pub(crate) given: bool,
}

impl Owner {
    /// With the token that the caller gave, or one that is drawn.
    pub(crate) fn new(keys: Arc<[String]>, token: Option<String>) -> Result<Self, Error> {
        if keys.is_empty() {
            return Err(Error::InvalidArgument("at least one key is needed".into()));
        }
        let given = token.is_some();
        Ok(Self { keys, token: token.unwrap_or_else(random::name), given })
    }

    /// The key that routes the commands in a cluster.
    pub(crate) fn first_key(&self) -> &str {
        &self.keys[0]
    }
}

/// Everything of an acquisition but how it waits.
#[derive(Clone, Debug)]
pub(crate) struct Acquire {
    pub(crate) owner: Owner,
    pub(crate) mode: Mode,
    pub(crate) ttl: Duration,
    pub(crate) limit: Option<u32>,
    pub(crate) metadata: Option<String>,
    pub(crate) replicas: Option<Replicas>,
}

/// The hold counts only when this many replicas have it within this time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Replicas {
    pub(crate) least: u32,
    pub(crate) timeout: Duration,
}

/// How a request waits on the server.
pub(crate) enum Wait<'a> {
    No,
    Blocked { most: Option<Duration> },
    Notified { most: Option<Duration>, channel: &'a str, tag: u64 },
}

/// Whole milliseconds, rounded up: the server takes no others, and 0 means something else.
pub(crate) fn milliseconds(duration: Duration) -> u64 {
    let rounded_up = duration.as_nanos().div_ceil(1_000_000);
    u64::try_from(rounded_up).unwrap_or(u64::MAX).max(1)
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

/// The one-key command, or the one for many keys with their number.
fn command(one: &str, many: &str, owner: &Owner) -> Cmd {
    let mut command;
    if let [key] = &*owner.keys {
        command = cmd(one);
        command.arg(key);
    } else {
        command = cmd(many);
        command.arg(owner.keys.len()).arg(&*owner.keys);
    }
    command.arg(&owner.token);
    command
}

pub(crate) fn acquire(acquire: &Acquire, wait: &Wait<'_>) -> Cmd {
    let mut command = match acquire.mode {
        Mode::Write => command("SLOCK.LOCK", "SLOCK.MLOCK", &acquire.owner),
        Mode::Read => command("SLOCK.RLOCK", "SLOCK.MRLOCK", &acquire.owner),
    };
    command.arg(milliseconds(acquire.ttl));
    wait.add_to(&mut command);
    if let Some(metadata) = &acquire.metadata {
        command.arg("META").arg(metadata);
    }
    if let Some(limit) = acquire.limit {
        command.arg("LIMIT").arg(limit);
    }
    command
}

pub(crate) fn extend(owner: &Owner, ttl: Duration) -> Cmd {
    let mut command = command("SLOCK.EXTEND", "SLOCK.MEXTEND", owner);
    command.arg(milliseconds(ttl));
    command
}

/// Releases a hold in this mode, or in whichever it has.
pub(crate) fn release(owner: &Owner, mode: Option<Mode>) -> Cmd {
    match mode {
        Some(Mode::Write) => command("SLOCK.UNLOCK", "SLOCK.MUNLOCK", owner),
        Some(Mode::Read) => command("SLOCK.RUNLOCK", "SLOCK.MUNLOCK", owner),
        None => {
            let mut command = cmd("SLOCK.MUNLOCK");
            command.arg(owner.keys.len()).arg(&*owner.keys).arg(&owner.token);
            command
        }
    }
}

/// Withdraws what waits for the token. One key of several is enough.
pub(crate) fn cancel(owner: &Owner) -> Cmd {
    let mut command = cmd("SLOCK.CANCEL");
    command.arg(owner.first_key()).arg(&owner.token);
    command
}

pub(crate) fn upgrade(owner: &Owner, ttl: Duration, wait: &Wait<'_>) -> Cmd {
    let mut command = cmd("SLOCK.UPGRADE");
    command.arg(owner.first_key()).arg(&owner.token).arg(milliseconds(ttl));
    wait.add_to(&mut command);
    command
}

pub(crate) fn downgrade(owner: &Owner, ttl: Duration) -> Cmd {
    let mut command = cmd("SLOCK.DOWNGRADE");
    command.arg(owner.first_key()).arg(&owner.token).arg(milliseconds(ttl));
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(command: &Cmd) -> String {
        let packed = String::from_utf8(command.get_packed_command()).unwrap();
        let words: Vec<_> = packed.split("\r\n").skip(2).step_by(2).collect();
        words.join(" ")
    }

    fn owner(keys: &[&str]) -> Owner {
        Owner { keys: keys.iter().map(|key| key.to_string()).collect(), token: "t".into(), given: true }
    }

    #[test]
    fn one_key_and_several() {
        let ttl = Duration::from_millis(5);
        assert_eq!(text(&extend(&owner(&["a"]), ttl)), "SLOCK.EXTEND a t 5");
        assert_eq!(text(&extend(&owner(&["a", "b"]), ttl)), "SLOCK.MEXTEND 2 a b t 5");
        assert_eq!(text(&release(&owner(&["a"]), None)), "SLOCK.MUNLOCK 1 a t");
        assert_eq!(text(&release(&owner(&["a"]), Some(Mode::Read))), "SLOCK.RUNLOCK a t");
    }

    #[test]
    fn options_follow_the_ttl() {
        let request = Acquire {
            owner: owner(&["a"]),
            mode: Mode::Read,
            ttl: Duration::from_millis(5),
            limit: Some(3),
            metadata: Some("m".into()),
            replicas: None,
        };
        let wait = Wait::Notified { most: Some(Duration::from_micros(1)), channel: "c", tag: 7 };
        let wanted = "SLOCK.RLOCK a t 5 WAIT 1 NOTIFY c 7 META m LIMIT 3";
        assert_eq!(text(&acquire(&request, &wait)), wanted);
        let endless = Wait::Blocked { most: None };
        assert_eq!(text(&acquire(&request, &endless)), "SLOCK.RLOCK a t 5 WAIT 0 META m LIMIT 3");
    }

    #[test]
    fn durations_are_rounded_up() {
        assert_eq!(milliseconds(Duration::ZERO), 1);
        assert_eq!(milliseconds(Duration::from_micros(1500)), 2);
        assert_eq!(milliseconds(Duration::MAX), u64::MAX);
    }
}
