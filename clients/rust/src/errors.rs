//! Everything that can go wrong.

use std::sync::Arc;

use derive_more::{Display, From};
use redis::RedisError;
use strum::IntoStaticStr;

/// Why a hold ended although nobody released it through this library.
#[derive(Clone, Copy, Debug, Display, PartialEq, Eq, Hash)]
pub enum Reason {
    /// The server says that the token does not hold the key: it expired there, or was deleted or released.
    #[display("gone")]
    Gone,
    /// The end of the validity passed, and no renewal was answered.
    #[display("expired")]
    Expired,
    /// The longest lease has ended.
    #[display("lease ended")]
    LeaseEnded,
}

impl Reason {
    fn explained(self) -> &'static str {
        match self {
            Reason::Gone => "gone: the server says that its token does not hold with its fence any more",
            Reason::Expired => "expired: its validity passed, and no renewal was answered",
            Reason::LeaseEnded => "lease ended: it is not renewed for longer than its longest lease",
        }
    }
}

/// What one server of a quorum answered in the last attempt.
#[derive(Clone, Debug, Display, PartialEq)]
#[display("{address}: {answer}")]
#[non_exhaustive]
pub struct NodeAnswer {
    /// Host and port of the server.
    pub address: String,
    /// What it answered.
    pub answer: Answer,
}

/// How one server of a quorum answered.
#[derive(Clone, Debug, Display, PartialEq)]
#[non_exhaustive]
pub enum Answer {
    /// It granted the lock.
    #[display("granted")]
    Granted,
    /// Another owner has the lock there.
    #[display("refused")]
    Refused,
    /// The hold that was to be extended is not there.
    #[display("gone")]
    Gone,
    /// It did not answer within the time limit of a node, or the attempt had ended before.
    #[display("no answer")]
    NoAnswer,
    /// It answered with an error, or could not be reached. The text of the error.
    Failed(String),
}

/// Everything that can go wrong.
#[derive(Clone, Debug, Display, From, IntoStaticStr)]
#[non_exhaustive]
pub enum Error {
    /// The limit of a call was over: the `wait` of the request, or `retry_for` without an answer. Or the
    /// polling strategy came to its end.
    #[display("the time for {} is over", keys.join(", "))]
    TimedOut {
        /// The keys that the call was about.
        keys: Arc<[String]>,
        /// The last error, when the server could not be reached or answered errors. For a quorum
        /// [`Error::QuorumMissed`], which says what each server answered. Nothing when others had the lock.
        source: Option<Box<Error>>,
    },
    /// The hold ended before it was released. What it protects may have another owner by now.
    #[display("the hold of {} was lost: {}", keys.join(", "), reason.explained())]
    Lost {
        /// Why it ended.
        reason: Reason,
        /// The keys of the hold.
        keys: Arc<[String]>,
        /// The error of the last renewal, when that failed.
        source: Option<Box<Error>>,
    },
    /// The hold was released, or the token does not hold what was to be adopted.
    #[display("the token does not hold the lock, or the hold was released")]
    NotHeld,
    /// The token holds the lock in the other mode. The text names the command that changes the mode.
    WrongMode(String),
    /// To wait would close a cycle of owners that wait for each other. The text names the cycle.
    Deadlock(String),
    /// As many requests wait on the server as its `slock.max-waiters` allows.
    QueueFull(String),
    /// The server refuses the token for two minutes, because one of its requests was given up. The text says
    /// so. Nothing is granted to it, upgraded or waited for until then.
    Refused(String),
    /// Not enough servers of the quorum granted the lock. The answers are in the order in which the servers
    /// were given.
    #[display("no majority: {}", _0.iter().map(NodeAnswer::to_string).collect::<Vec<_>>().join(", "))]
    QuorumMissed(Arc<[NodeAnswer]>),
    /// The hold did not reach as many replicas as `min_replicas` asks for, and was released.
    #[display("the hold reached {reached} replicas, not {wanted}")]
    TooFewReplicas {
        /// How many replicas were asked for.
        wanted: u32,
        /// How many have the hold.
        reached: u32,
    },
    /// The server does not know the commands of the module.
    #[display(
        "the server has not loaded the SLOCK module: start it with `--loadmodule /path/to/libslock.so`, \
         or send `MODULE LOAD /path/to/libslock.so`"
    )]
    ModuleNotLoaded,
    /// These locks were closed by [`Locks::close`](crate::Locks::close).
    #[display("these locks were closed")]
    Closed,
    /// Upgrade and downgrade are for holds of one key.
    #[display("a hold of several keys cannot change its mode")]
    SeveralKeys,
    /// An argument with which nothing can be locked. The text says which one, and what it must be. Nothing
    /// was sent.
    InvalidArgument(String),
    /// An error of the server or of the connection, as the redis crate reports it.
    #[from]
    Redis(RedisError),
}

impl Error {
    /// The name of the error, for logs and metrics: `TimedOut`, `Lost`, …
    pub fn name(&self) -> &'static str {
        self.into()
    }
}

impl std::error::Error for Error {
    /// Gives an error of the redis crate as it is, so that it can be found by `downcast_ref`.
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::TimedOut { source, .. } | Error::Lost { source, .. } => match source.as_deref()? {
                Error::Redis(error) => Some(error),
                other => Some(other),
            },
            Error::Redis(error) => error.source(),
            _ => None,
        }
    }
}
