use redis::RedisError;
use std::{fmt, sync::Arc};

/// Why a hold ended although nobody released it through this library.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// The server says that the token does not hold the key: it expired there, or was deleted or released.
    Gone,
    /// The end of the validity passed, and no renewal was answered.
    Expired,
    /// The longest lease has ended.
    LeaseEnded,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reason::Gone => "gone",
            Reason::Expired => "expired",
            Reason::LeaseEnded => "lease ended",
        })
    }
}

/// What one server of a quorum answered in the last attempt.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct NodeAnswer {
    /// Host and port of the server.
    pub address: String,
    /// What it answered.
    pub answer: Answer,
}

impl fmt::Display for NodeAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.address, self.answer)
    }
}

/// How one server of a quorum answered.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Answer {
    /// It granted the lock.
    Granted,
    /// Another owner has the lock there.
    Refused,
    /// The hold that was to be extended is not there.
    Gone,
    /// It did not answer within the time limit of a node, or the attempt had ended before.
    NoAnswer,
    /// It answered with an error, or could not be reached. The text of the error.
    Failed(String),
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Answer::Granted => "granted",
            Answer::Refused => "refused",
            Answer::Gone => "gone",
            Answer::NoAnswer => "no answer",
            Answer::Failed(text) => text,
        })
    }
}

/// Everything that can go wrong.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The lock was not granted within the `wait` of the request, or the polling strategy came to its end.
    #[error("the lock was not granted in time")]
    TimedOut,
    /// The hold ended before it was released. What it protects may have another owner by now.
    #[error("the hold was lost: {0}")]
    Lost(Reason),
    /// The token holds nothing that could be adopted, upgraded or downgraded.
    #[error("the token does not hold the lock")]
    NotHeld,
    /// The token holds the lock in the other mode. The text names the command that changes the mode.
    #[error("{0}")]
    WrongMode(String),
    /// To wait would close a cycle of owners that wait for each other. The text names the cycle.
    #[error("{0}")]
    Deadlock(String),
    /// As many requests wait on the server as its `slock.max-waiters` allows.
    #[error("{0}")]
    QueueFull(String),
    /// Not enough servers of the quorum granted the lock. The answers are in the order in which the servers
    /// were given.
    #[error("no majority: {}", join(.0))]
    QuorumMissed(Arc<[NodeAnswer]>),
    /// The hold did not reach as many replicas as `min_replicas` asks for, and was released.
    #[error("the hold reached {reached} replicas, not {wanted}")]
    TooFewReplicas {
        /// How many replicas were asked for.
        wanted: u32,
        /// How many have the hold.
        reached: u32,
    },
    /// The server does not know the commands of the module.
    #[error(
        "the server has not loaded the SLOCK module: start it with `--loadmodule /path/to/libslock.so`, \
         or send `MODULE LOAD /path/to/libslock.so`"
    )]
    ModuleNotLoaded,
    /// These locks were closed by [`Locks::close`](crate::Locks::close).
    #[error("these locks were closed")]
    Closed,
    /// Upgrade and downgrade are for holds of one key.
    #[error("a hold of several keys cannot change its mode")]
    SeveralKeys,
    /// An error of the server or of the connection, as the redis crate reports it.
    #[error(transparent)]
    Redis(#[from] RedisError),
}

impl Error {
    /// The name of the error, for logs and metrics: `TimedOut`, `Lost`, …
    pub fn name(&self) -> &'static str {
        match self {
            Error::TimedOut => "TimedOut",
            Error::Lost(_) => "Lost",
            Error::NotHeld => "NotHeld",
            Error::WrongMode(_) => "WrongMode",
            Error::Deadlock(_) => "Deadlock",
            Error::QueueFull(_) => "QueueFull",
            Error::QuorumMissed(_) => "QuorumMissed",
            Error::TooFewReplicas { .. } => "TooFewReplicas",
            Error::ModuleNotLoaded => "ModuleNotLoaded",
            Error::Closed => "Closed",
            Error::SeveralKeys => "SeveralKeys",
            Error::Redis(_) => "Redis",
        }
    }
}

fn join(answers: &[NodeAnswer]) -> String {
    let texts: Vec<_> = answers.iter().map(NodeAnswer::to_string).collect();
    texts.join(", ")
}
