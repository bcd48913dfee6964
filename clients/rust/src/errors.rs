// SPDX-License-Identifier: MIT OR Apache-2.0

//! The errors that a program can tell apart.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::{ErrorKind, RedisError, make_extension_error};

use crate::info::Holder;

pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a hold was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// The server says that the owner token does not hold the keys with this fencing token any more.
    Gone,
    /// No renewal succeeded in time.
    Expired,
    /// The time of `max_hold` has passed.
    MaxHold,
    /// The `Locks` was closed before, so that nothing renewed the hold.
    Closed,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reason::Gone => "gone",
            Reason::Expired => "expired",
            Reason::MaxHold => "max hold",
            Reason::Closed => "closed",
        })
    }
}

/// The reply of one node of a quorum.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct NodeReply {
    /// The address of the node.
    pub node: String,
    /// Whether the node granted, extended or released the lock. If not, and without an error, others have it there.
    pub granted: bool,
    /// What went wrong, if anything.
    pub error: Option<Error>,
}

/// What an error is about.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Details {
    /// The keys of the call or of the hold, without the prefix.
    pub keys: Arc<[String]>,
    /// Who holds a key now, at most 10, if a wait is over. Nobody if the key is free by now, or if the user may not run
    /// `SLOCK.INFO`.
    pub holders: Vec<Holder>,
    /// The replies of the nodes of a quorum, in the order in which the servers were given.
    pub nodes: Vec<NodeReply>,
    /// Empty if the cause says all.
    pub(crate) text: String,
    pub(crate) cause: Option<Box<Error>>,
}

impl Details {
    pub(crate) fn new(keys: &Arc<[String]>, text: impl Into<String>) -> Self {
        Self { keys: keys.clone(), text: text.into(), ..Self::default() }
    }

    pub(crate) fn caused_by(self, cause: Option<Error>) -> Self {
        Self { cause: cause.map(Box::new), ..self }
    }
}

/// Everything that can go wrong.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Error {
    /// The server replied, and others had the lock until the wait was over.
    TimedOut(Details),
    /// No reply came from the server within the limit, or none that decides. The source is the last error.
    NoAnswer(Details),
    /// The hold ended, and nobody released it through this library. What it protects may have another owner by now. The
    /// source is the error of the last renewal, if the hold expired.
    Lost {
        /// Why it ended.
        reason: Reason,
        /// What it is about.
        details: Details,
    },
    /// The owner token does not hold the keys, for example because the hold was released or detached.
    NotHeld(Details),
    /// The owner token holds the key in the other mode.
    WrongMode(Details),
    /// The wait would have closed a cycle of owners that wait for each other. The text names the cycle.
    Deadlock(Details),
    /// The server lets no more requests wait.
    QueueFull(Details),
    /// The server refuses the owner token, because its acquisition has been ended.
    Refused(Details),
    /// Neither a majority of the nodes of a quorum granted the lock, nor a majority refused it.
    QuorumMissed(Details),
    /// The lock was granted, but too few replicas acknowledged it. It has been released.
    TooFewReplicas(Details),
    /// The server does not know the commands of the module.
    ModuleNotLoaded,
    /// The `Locks` has been closed.
    Closed,
    /// An option or an argument is wrong. Nothing was sent. The text says what it must be.
    Invalid(String),
    /// Any other error of the redis crate.
    Redis(RedisError),
}

impl Error {
    /// The name of the error, for logs and metrics: `TimedOut`, `Lost`, …
    pub fn name(&self) -> &'static str {
        macro_rules! name_of {
            ($($name:ident)*) => { match self { $(Error::$name { .. } => stringify!($name),)* } };
        }
        name_of!(TimedOut NoAnswer Lost NotHeld WrongMode Deadlock QueueFull Refused QuorumMissed TooFewReplicas
            ModuleNotLoaded Closed Invalid Redis)
    }

    /// What the error is about, if it is about keys.
    pub fn details(&self) -> Option<&Details> {
        use Error::*;
        match self {
            TimedOut(details) | NoAnswer(details) | Lost { details, .. } | NotHeld(details) => Some(details),
            WrongMode(details) | Deadlock(details) | QueueFull(details) | Refused(details) => Some(details),
            QuorumMissed(details) | TooFewReplicas(details) => Some(details),
            ModuleNotLoaded | Closed | Invalid(_) | Redis(_) => None,
        }
    }

    /// The error of the redis crate in this error, if there is one.
    pub fn redis(&self) -> Option<&RedisError> {
        if let Error::Redis(error) = self { Some(error) } else { self.details()?.cause.as_ref()?.redis() }
    }

    pub(crate) fn no_answer(keys: &Arc<[String]>, within: Duration, last: Option<RedisError>) -> Self {
        let has_replied = last.as_ref().is_some_and(is_reply);
        let no = if has_replied { "only errors from the server" } else { "no reply from the server" };
        let text = format!("{no} within {}", rounded(within));
        Error::NoAnswer(Details::new(keys, text).caused_by(last.map(Error::Redis)))
    }

    /// Gives an error reply of the server its kind. Others stay those of the redis crate.
    pub(crate) fn explained(self, keys: &Arc<[String]>) -> Self {
        let Error::Redis(reply) = &self else { return self };
        let kind = match reply.code() {
            Some("WRONGMODE") => Error::WrongMode,
            Some("DEADLOCK") => Error::Deadlock,
            Some("QUEUEFULL") => Error::QueueFull,
            Some("REFUSED") => Error::Refused,
            Some("NOTHELD") => Error::NotHeld,
            Some("ERR") if text(reply).to_lowercase().contains("unknown command") => {
                return Error::ModuleNotLoaded;
            }
            _ => return self,
        };
        kind(Details::new(keys, "").caused_by(Some(self)))
    }

    /// The error of the question whether the server takes `at_least` as a ttl. The server only speaks of a ttl.
    pub(crate) fn of_at_least(self) -> Self {
        match &self {
            Error::Redis(reply) if reply.code() == Some("ERR") && text(reply).contains("ttl") => {
                let detail = format!("at_least: {}", reply.detail().unwrap_or_default());
                Error::Redis(make_extension_error("ERR".into(), Some(detail)))
            }
            _ => self,
        }
    }

    /// Whether the command may succeed if it is sent again.
    pub(crate) fn passes(&self) -> bool {
        matches!(self, Error::NoAnswer(_)) || matches!(self, Error::Redis(error) if passes(error))
    }

    /// It only says that nothing came.
    pub(crate) fn is_silence(&self) -> bool {
        matches!(self, Error::Redis(error) if error.is_timeout())
    }

    /// Another type has replaced the lock.
    pub(crate) fn is_another_type(&self) -> bool {
        matches!(self, Error::Redis(error) if error.code() == Some("WRONGTYPE"))
    }
}

impl From<RedisError> for Error {
    fn from(error: RedisError) -> Self {
        Error::Redis(error)
    }
}

/// What the server replied, or the text of the redis crate.
fn text(error: &RedisError) -> String {
    match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        _ => error.to_string(),
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::ModuleNotLoaded => f.write_str(
                "the server has not loaded the SLOCK module: start it with --loadmodule /path/to/libslock.so, \
                 or run MODULE LOAD /path/to/libslock.so",
            ),
            Error::Closed => f.write_str("the Locks has been closed"),
            Error::Invalid(text) => f.write_str(text),
            Error::Redis(error) => f.write_str(&text(error)),
            error => error.details().map_or(Ok(()), |details| details.fmt(f)),
        }
    }
}

impl fmt::Display for Details {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.cause {
            Some(cause) if self.text.is_empty() => cause.fmt(f)?,
            _ => f.write_str(&self.text)?,
        }
        if !self.keys.is_empty() {
            write!(f, " (lock {})", self.keys.join(", "))?;
        }
        for (number, Holder { metadata, token, .. }) in self.holders.iter().enumerate() {
            let before = if number == 0 { ", held by" } else { " and" };
            let metadata = metadata.as_ref().map(|text| format!(" {text}")).unwrap_or_default();
            write!(f, "{before}{metadata} {token}")?;
        }
        for NodeReply { node, granted, error } in &self.nodes {
            let reply = if *granted { "granted" } else { "refused" }.to_owned();
            write!(f, "; {node}: {}", error.as_ref().map_or(reply, Error::to_string))?;
        }
        Ok(())
    }
}

/// Whole milliseconds, as far as a duration has some.
pub(crate) fn rounded(duration: Duration) -> String {
    format!("{:?}", Duration::from_millis(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)))
}

impl StdError for Error {
    /// What is not said by the text of this error. The errors below it are in that text; [`Error::redis`] gives the one of the
    /// redis crate.
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        let details = self.details().filter(|details| !details.text.is_empty())?;
        Some(details.cause.as_deref()?)
    }
}

/// The codes after which the same command, with the same token, may succeed a little later.
const PASSING: &str =
    "UNBLOCKED TRYAGAIN READONLY LOADING MASTERDOWN CLUSTERDOWN GRACE NOREPLICAS MISCONF MOVED ASK";

/// Whether the server replied with this error; else there was no reply.
pub(crate) fn is_reply(error: &RedisError) -> bool {
    error.code().is_some()
}

/// Whether a command may succeed if it is sent again: the server said so, or there was no reply.
pub(crate) fn passes(error: &RedisError) -> bool {
    use ErrorKind::{AuthenticationFailed, InvalidClientConfig, RESP3NotSupported};
    match error.code() {
        Some(code) if PASSING.split(' ').any(|passing| passing == code) => true,
        Some(_) => error.to_string().contains("max number of clients reached"),
        None => !matches!(error.kind(), AuthenticationFailed | InvalidClientConfig | RESP3NotSupported),
    }
}
