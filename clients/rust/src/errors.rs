//! The errors that a program can tell apart.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::{ErrorKind, RedisError};

use crate::info::{Holder, Mode};

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

impl fmt::Display for NodeReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.error {
            Some(error) => write!(f, "{}: {error}", self.node),
            None => write!(f, "{}: {}", self.node, if self.granted { "granted" } else { "refused" }),
        }
    }
}

/// A request that the server denied, and what it replied.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Denied {
    /// The keys of the request.
    pub keys: Arc<[String]>,
    /// The error of the redis crate.
    pub reply: RedisError,
}

/// Everything that can go wrong.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Error {
    /// The server replied, and others had the lock until the wait was over.
    TimedOut {
        /// The keys of the request.
        keys: Arc<[String]>,
        /// How long it waited.
        waited: Duration,
        /// Who holds a key now, at most 10. Nobody if the key is free by now, or if the user may not run `SLOCK.INFO`.
        holders: Vec<Holder>,
        /// The replies of the nodes of a quorum.
        nodes: Vec<NodeReply>,
    },
    /// No reply came from the server within the limit, or none that decides. The source is the last error.
    NoAnswer {
        /// The keys of the call.
        keys: Arc<[String]>,
        /// How long the call went on.
        within: Duration,
        /// The last error of the redis crate, if there was one.
        last: Option<RedisError>,
    },
    /// The hold ended, and nobody released it through this library. What it protects may have another owner by now.
    Lost {
        /// The keys of the hold.
        keys: Arc<[String]>,
        /// Why it ended.
        reason: Reason,
        /// The error of the last renewal, if the hold expired.
        last: Option<Box<Error>>,
    },
    /// The owner token does not hold the keys, for example because the hold was released or detached.
    NotHeld {
        /// The keys.
        keys: Arc<[String]>,
        /// The mode, if it is known.
        mode: Option<Mode>,
    },
    /// The owner token holds the key in the other mode.
    WrongMode(Denied),
    /// The wait would have closed a cycle of owners that wait for each other. The text names the cycle.
    Deadlock(Denied),
    /// The server lets no more requests wait.
    QueueFull(Denied),
    /// The server refuses the owner token, because its acquisition has been ended.
    Refused(Denied),
    /// Neither a majority of the nodes of a quorum granted the lock, nor a majority refused it.
    QuorumMissed {
        /// The keys of the request.
        keys: Arc<[String]>,
        /// How long the call went on.
        within: Duration,
        /// What each node replied, in the order in which the servers were given.
        nodes: Vec<NodeReply>,
    },
    /// The lock was granted, but too few replicas acknowledged it. It has been released.
    TooFewReplicas {
        /// The keys of the request.
        keys: Arc<[String]>,
        /// How many replicas were asked for.
        wanted: u32,
        /// How many acknowledged.
        acknowledged: u32,
    },
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

    /// The error of the redis crate in this error, if there is one.
    pub fn redis(&self) -> Option<&RedisError> {
        match self {
            Error::NoAnswer { last, .. } => last.as_ref(),
            Error::Lost { last, .. } => last.as_deref()?.redis(),
            Error::WrongMode(denied) | Error::Deadlock(denied) => Some(&denied.reply),
            Error::QueueFull(denied) | Error::Refused(denied) => Some(&denied.reply),
            Error::Redis(error) => Some(error),
            _ => None,
        }
    }

    /// Gives an error reply of the server its kind. Others stay those of the redis crate.
    pub(crate) fn explained(self, keys: &Arc<[String]>) -> Self {
        let Error::Redis(reply) = self else { return self };
        let denied = Denied { keys: keys.clone(), reply };
        match denied.reply.code() {
            Some("WRONGMODE") => Error::WrongMode(denied),
            Some("NOTHELD") => Error::NotHeld { keys: denied.keys, mode: None },
            Some("DEADLOCK") => Error::Deadlock(denied),
            Some("QUEUEFULL") => Error::QueueFull(denied),
            Some("REFUSED") => Error::Refused(denied),
            Some("ERR") if text(&denied.reply).to_lowercase().contains("unknown command") => {
                Error::ModuleNotLoaded
            }
            _ => Error::Redis(denied.reply),
        }
    }

    /// Whether the command may succeed if it is sent again.
    pub(crate) fn passes(&self) -> bool {
        matches!(self, Error::NoAnswer { .. }) || matches!(self, Error::Redis(error) if passes(error))
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
            Error::TimedOut { keys, waited, holders, nodes } if nodes.is_empty() => {
                write!(f, "timed out after {}{}", rounded(*waited), about(keys))?;
                let mut before = ", held by";
                for holder in holders {
                    let metadata = holder.metadata.as_ref().map(|text| format!(" {text}")).unwrap_or_default();
                    write!(f, "{before}{metadata} {}", holder.token)?;
                    before = " and";
                }
                Ok(())
            }
            Error::TimedOut { keys, waited: within, nodes, .. } | Error::QuorumMissed { keys, within, nodes } => {
                write!(f, "no majority of {} nodes after {}{}", nodes.len(), rounded(*within), about(keys))?;
                nodes.iter().try_for_each(|node| write!(f, "; {node}"))
            }
            Error::NoAnswer { keys, within, last } => {
                let has_replied = last.as_ref().is_some_and(is_reply);
                let no = if has_replied { "the server granted nothing" } else { "no reply from the server" };
                write!(f, "{no} within {}{}", rounded(*within), about(keys))
            }
            Error::Lost { keys, reason, .. } => write!(f, "the lock was lost, {reason}{}", about(keys)),
            Error::NotHeld { keys, mode } => {
                let mode = mode.map(|mode| format!(" for {mode}")).unwrap_or_default();
                write!(f, "the owner token does not hold the lock{mode}{}", about(keys))
            }
            Error::WrongMode(denied) | Error::Deadlock(denied) | Error::QueueFull(denied) | Error::Refused(denied) => {
                write!(f, "{}{}", text(&denied.reply), about(&denied.keys))
            }
            Error::TooFewReplicas { keys, wanted, acknowledged } => {
                write!(f, "{acknowledged} of {wanted} replicas acknowledged{}", about(keys))
            }
            Error::ModuleNotLoaded => f.write_str(
                "the server has not loaded the SLOCK module: start it with --loadmodule /path/to/libslock.so, \
                 or run MODULE LOAD /path/to/libslock.so",
            ),
            Error::Closed => f.write_str("the Locks has been closed"),
            Error::Invalid(text) => f.write_str(text),
            Error::Redis(error) => f.write_str(&text(error)),
        }
    }
}

/// Which keys an error is about.
fn about(keys: &[String]) -> String {
    if keys.is_empty() { String::new() } else { format!(" (lock {})", keys.join(", ")) }
}

/// Whole milliseconds, as far as a duration has some.
fn rounded(duration: Duration) -> String {
    format!("{:?}", Duration::from_millis(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)))
}

impl StdError for Error {
    /// What is not said by the text of this error. An error of the redis crate that only passes on another one is left
    /// out, so that no text comes twice; [`Error::redis`] gives it.
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Error::NoAnswer { last: Some(error), .. } => Some(innermost(error)),
            Error::Lost { last: Some(error), .. } => match &**error {
                Error::Redis(error) => Some(innermost(error)),
                error => Some(error),
            },
            _ => None,
        }
    }
}

fn innermost(error: &RedisError) -> &(dyn StdError + 'static) {
    error.source().filter(|source| source.to_string() == error.to_string()).unwrap_or(error)
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
