// SPDX-License-Identifier: MIT OR Apache-2.0

//! The words of the commands, and what the replies mean. It sends nothing.

use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use redis::{Cmd, RedisError, Value};
use tokio::runtime::Handle;
use tracing::Span;

use crate::errors::{Details, Error};
use crate::info::Mode;
use crate::options::Options;
use crate::transport::Call;

/// For how long the server refuses an owner token after the end of its acquisition. What is still on its way by then is
/// not expected any more.
pub(crate) const REFUSED_FOR: Duration = Duration::from_secs(120);
/// How long a request waits on the server unless it is sent again. A request whose program has died leaves the queue
/// after that.
pub(crate) const SERVER_WAIT: Duration = Duration::from_secs(15);

/// What is wanted, and by whom.
#[derive(Clone)]
pub(crate) struct Wanted {
    /// The keys as the program names them.
    pub(crate) keys: Arc<[String]>,
    /// The keys as the server names them, with the prefix.
    pub(crate) full: Arc<[String]>,
    /// The owner token.
    pub(crate) token: Arc<str>,
    pub(crate) mode: Mode,
    pub(crate) options: Arc<Options>,
    /// On which the call runs.
    pub(crate) runtime: Handle,
    /// In which the call was made.
    pub(crate) span: Span,
}

impl Wanted {
    pub(crate) fn new(keys: &Arc<[String]>, prefix: &str, mode: Mode, options: &Arc<Options>) -> Self {
        let full = match prefix {
            "" => keys.clone(),
            prefix => keys.iter().map(|key| format!("{prefix}{key}")).collect(),
        };
        let token = options.token.clone().unwrap_or_else(draw).into();
        let (keys, options) = (keys.clone(), options.clone());
        let (runtime, span) = (Handle::current(), Span::current());
        Self { keys, full, token, mode, options, runtime, span }
    }

    /// The program gave the token, so other acquisitions may use it too.
    pub(crate) fn is_given(&self) -> bool {
        self.options.token.is_some()
    }

    /// For another attempt: with another token, unless the program gave it.
    pub(crate) fn again(&self) -> Self {
        let token = if self.is_given() { self.token.clone() } else { draw().into() };
        Self { token, ..self.clone() }
    }

    pub(crate) fn label(&self) -> &str {
        self.options.label.as_deref().unwrap_or(&self.keys[0])
    }

    /// Sends a command to where the keys are.
    pub(crate) fn call<'a>(&'a self, command: &'a Cmd, until: Instant) -> Call<'a> {
        Call::new(self.key(), command, until)
    }

    /// The key that routes the commands.
    pub(crate) fn key(&self) -> &str {
        &self.full[0]
    }

    /// The command of this name for one key, or the one for several, which is told their number.
    fn command(&self, name: &str) -> Cmd {
        let length = self.full.iter().map(String::len).sum::<usize>() + self.token.len() + 160;
        let mut command = Cmd::with_capacity(self.full.len() + 12, length);
        match &*self.full {
            // The end of one key has no REFUSE.
            [key] if name != "UNLOCK" => command.arg(format!("SLOCK.{name}")).arg(key),
            keys => command.arg(format!("SLOCK.M{name}")).arg(keys.len()).arg(keys),
        };
        command.arg(&*self.token).take()
    }

    /// Requests the lock.
    pub(crate) fn lock(&self, ttl: Duration) -> Cmd {
        let limit = self.options.limit.map(|limit| ("LIMIT", limit));
        self.held(self.mode, ttl).arg(limit).take()
    }

    fn held(&self, mode: Mode, ttl: Duration) -> Cmd {
        let metadata = self.options.metadata.clone().unwrap_or_else(who_asks);
        let metadata = Some(("META", metadata)).filter(|(_, text)| !text.is_empty());
        let name = if mode == Mode::Write { "LOCK" } else { "RLOCK" };
        self.command(name).arg(milliseconds(ttl)).arg(metadata).take()
    }

    /// Gives the fencing token of what the owner holds in this mode, and never takes a lock.
    pub(crate) fn adopt(&self, mode: Mode, ttl: Duration) -> Cmd {
        self.held(mode, ttl).arg("XX").take()
    }

    /// Lets the hold with the fencing token live for at least a ttl from now. Without one, whatever the owner holds.
    pub(crate) fn extend(&self, ttl: Duration, fence: Option<i64>) -> Cmd {
        fenced(self.command("EXTEND").arg(milliseconds(ttl)).arg("GT"), fence)
    }

    /// If a release may have to lengthen the hold to `at_least`: asks whether the server takes that as a ttl. It extends the hold
    /// of an owner that nobody is, so it changes nothing.
    pub(crate) fn question(&self) -> Option<Cmd> {
        let Options { at_least, ttl, .. } = *self.options;
        let nobody = || Self { token: draw().into(), ..self.clone() };
        (at_least > ttl).then(|| nobody().extend(at_least, None))
    }

    /// Makes the reader of a single key the writer, or the other way round.
    pub(crate) fn change(&self, to: Mode, ttl: Duration, fence: i64) -> Cmd {
        let name = if to == Mode::Write { "UPGRADE" } else { "DOWNGRADE" };
        fenced(self.command(name).arg(milliseconds(ttl)), Some(fence))
    }

    /// Ends the waiting requests of the owner token for the lock. The first key stands for all keys of a request.
    pub(crate) fn withdraw(&self) -> Cmd {
        Cmd::new().arg(("SLOCK.CANCEL", self.key(), &*self.token)).take()
    }

    /// Ends the acquisition, and says for how long that is sent: the server withdraws what waits, releases what is held, and
    /// refuses what arrives later. A token of the program's may be in use for another hold. So it is not refused, and only the
    /// hold with the fencing token ends, if that is known. With a time after which it is to end, a hold ends then.
    pub(crate) fn ending(&self, fence: Option<i64>, after: Duration) -> (Cmd, Duration) {
        if !after.is_zero() {
            return (fenced(self.command("EXTEND").arg(milliseconds(after)), fence), after);
        }
        let mut command = self.command("UNLOCK");
        let command = match self.is_given() {
            true => fenced(&mut command, fence),
            false => command.arg("REFUSE").arg(milliseconds(REFUSED_FOR)).take(),
        };
        (command, REFUSED_FOR)
    }

    /// The error of an owner token that does not hold the keys in this mode.
    pub(crate) fn not_held(&self, mode: Mode) -> Error {
        let text = format!("the owner token does not hold the lock for {mode}");
        Error::NotHeld(Details::new(&self.keys, text))
    }
}

fn fenced(command: &mut Cmd, fence: Option<i64>) -> Cmd {
    command.arg(fence.map(|fence| ("FENCE", fence))).take()
}

/// The command with a place in the queue, whose end is told on a channel.
pub(crate) fn waiting(command: &Cmd, wait: Duration, channel: &str, tag: &str) -> Cmd {
    command.clone().arg(("WAIT", milliseconds(wait), "NOTIFY", channel, tag)).take()
}

/// Waits until replicas have what the connection wrote last.
pub(crate) fn replicas(least: u32, timeout: Duration) -> Cmd {
    Cmd::new().arg(("WAIT", least, milliseconds(timeout))).take()
}

/// Who holds and waits, at most so many of each; 0 is no limit.
pub(crate) fn info(key: &str, count: usize) -> Cmd {
    Cmd::new().arg(("SLOCK.INFO", key, "FULL", "COUNT", count)).take()
}

/// A page of the queues, from a cursor on.
pub(crate) fn queues(cursor: u64) -> Cmd {
    Cmd::new().arg(("SLOCK.QUEUES", "COUNT", 0, "CURSOR", cursor)).take()
}

/// Rounds up: a wait of 0 ms would be one without end, and a ttl of 0 an error.
fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX).max(1)
}

/// The metadata of requests that have none. It tells an operator where to look for the owner.
fn who_asks() -> String {
    static HOST: LazyLock<String> = LazyLock::new(|| {
        let known =
            std::fs::read_to_string("/proc/sys/kernel/hostname").or_else(|_| std::env::var("HOSTNAME"));
        known.map_or("unknown".into(), |name| name.trim().to_owned())
    });
    let mut text = format!("host={} pid={}", *HOST, std::process::id());
    if let Some(name) = std::thread::current().name().filter(|name| !name.starts_with("tokio-")) {
        text.push_str(" task=");
        text.extend(name.chars().take(200));
    }
    text
}

/// 128 random bits in 22 characters, as secret as an owner token and a tag have to be. A hyphen at the beginning would make an
/// option of it: `slock release KEY TOKEN`.
pub(crate) fn draw() -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._";
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).expect("the system has random numbers");
    let bits = u128::from_ne_bytes(bytes);
    (0..22).map(|at| char::from(LETTERS[(bits >> (6 * at)) as usize % 64])).collect()
}

/// A reply that is no number, such as null, is 0.
pub(crate) fn number(value: &Value) -> i64 {
    if let Value::Int(number) = value { *number } else { 0 }
}

/// Reads `<n> <tag>`: n is a fencing token, 0, or the code of an error after a minus.
pub(crate) fn message(payload: &[u8]) -> Option<(&str, Result<i64, RedisError>)> {
    let (first, tag) = str::from_utf8(payload).ok()?.split_once(' ')?;
    let Some(code) = first.strip_prefix('-') else { return Some((tag, Ok(first.parse().ok()?))) };
    let detail = Some("the server ended the wait".into());
    Some((tag, Err(redis::make_extension_error(code.into(), detail))))
}
