//! What the server's answers mean.

use std::io;

use redis::{ErrorKind, RedisError, ServerErrorKind, Value};

use crate::errors::Error;

/// Why a command did not do its work, and what follows from that.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Nothing was sent: there is no connection.
    Unreachable(RedisError),
    /// No answer: it is not known whether the command was executed, or will be.
    Unanswered(RedisError),
    /// An error that passes: ask again after a pause.
    Passing(RedisError),
    /// Another node of the cluster serves the slot.
    Moved { address: String },
    /// Another node of the cluster takes the slot over, and has this key already.
    Ask { address: String },
    /// Nobody listens on the channel of the request.
    NoSubscriber(RedisError),
    /// To ask again would not help.
    Final(Error),
}

impl Failure {
    /// Whether the server has said anything.
    pub(crate) fn is_answer(&self) -> bool {
        !matches!(self, Self::Unreachable(_) | Self::Unanswered(_))
    }

    /// What this means where nothing but a connection was asked for.
    pub(crate) fn before_sending(self) -> Self {
        match self {
            Self::Unanswered(error) => Self::Unreachable(error),
            other => other,
        }
    }

    /// Whether the answer to `SSUBSCRIBE` says that the user may not run it, or not with this channel.
    pub(crate) fn denies_to_subscribe(&self) -> bool {
        matches!(self, Self::Final(Error::Redis(error)) if error.code() == Some("NOPERM"))
    }

    /// Whether the user may not use the channel; any other lack of a permission is final.
    pub(crate) fn denies_the_channel(&self) -> bool {
        match self {
            Self::Final(Error::Redis(error)) => {
                error.code() == Some("NOPERM") && error.detail().is_some_and(|text| text.contains("channel"))
            }
            _ => false,
        }
    }

    /// The error for the caller, when there is no time left to ask again.
    pub(crate) fn into_error(self) -> Error {
        match self {
            Failure::Unreachable(error)
            | Failure::Unanswered(error)
            | Failure::Passing(error)
            | Failure::NoSubscriber(error) => error.into(),
            Failure::Moved { address } | Failure::Ask { address } => {
                RedisError::from((ErrorKind::Client, "the slot is on another node", address)).into()
            }
            Failure::Final(error) => error,
        }
    }
}

/// The value of a reply, unless it is an error or contains one.
pub(crate) fn value(reply: Result<Value, RedisError>) -> Result<Value, Failure> {
    reply.and_then(Value::extract_error).map_err(failure)
}

/// The number in a reply; 0 for null.
pub(crate) fn number(value: &Value) -> i64 {
    match value {
        Value::Int(number) => *number,
        _ => 0,
    }
}

/// The numbers in the replies to several commands.
pub(crate) fn numbers(value: &Value) -> Vec<i64> {
    match value {
        Value::Array(values) => values.iter().map(number).collect(),
        other => vec![number(other)],
    }
}

pub(crate) fn failure(error: RedisError) -> Failure {
    match error.kind() {
        ErrorKind::Io
        | ErrorKind::Parse
        | ErrorKind::MasterNameNotFoundBySentinel
        | ErrorKind::NoValidReplicasFoundBySentinel
        | ErrorKind::ClusterConnectionNotFound => Failure::Unanswered(error),
        ErrorKind::Server(ServerErrorKind::Moved | ServerErrorKind::Ask) => redirected(error),
        _ => match error.code() {
            Some(code) => of_code(code.to_owned(), error),
            None => Failure::Final(error.into()),
        },
    }
}

fn redirected(error: RedisError) -> Failure {
    let Some((address, _)) = error.redirect_node() else { return Failure::Final(error.into()) };
    let address = address.to_owned();
    match error.kind() {
        ErrorKind::Server(ServerErrorKind::Ask) => Failure::Ask { address },
        _ => Failure::Moved { address },
    }
}

fn of_code(code: String, error: RedisError) -> Failure {
    let text = || match error.detail() {
        Some(detail) => format!("{code} {detail}"),
        None => code.clone(),
    };
    match code.as_str() {
        "UNBLOCKED" | "TRYAGAIN" | "READONLY" | "LOADING" | "MASTERDOWN" | "CLUSTERDOWN" | "GRACE"
        | "NOREPLICAS" => Failure::Passing(error),
        "NOSUBSCRIBER" => Failure::NoSubscriber(error),
        "DEADLOCK" => Failure::Final(Error::Deadlock(text())),
        "QUEUEFULL" => Failure::Final(Error::QueueFull(text())),
        "WRONGMODE" => Failure::Final(Error::WrongMode(text())),
        "NOTHELD" => Failure::Final(Error::NotHeld),
        "CANCELLED" => Failure::Final(Error::Refused(text())),
        "ERR" if text().to_ascii_lowercase().contains("unknown command") => {
            Failure::Final(Error::ModuleNotLoaded)
        }
        _ => Failure::Final(error.into()),
    }
}

/// The error where a limit for an answer has passed.
pub(crate) fn no_answer(who: &str) -> RedisError {
    io::Error::new(io::ErrorKind::TimedOut, format!("no answer from {who} in time")).into()
}

/// The error where a wait does not end because nobody listens for its end any more.
pub(crate) fn listening_lost() -> RedisError {
    io::Error::new(io::ErrorKind::ConnectionAborted, "the connection was lost on which waits end").into()
}

/// A message on the channel: what became of the request with this tag.
pub(crate) fn message(payload: &[u8]) -> Option<(u64, Result<i64, Failure>)> {
    let (number, tag) = str::from_utf8(payload).ok()?.split_once(' ')?;
    let tag = tag.parse().ok()?;
    let result = match number.strip_prefix('-') {
        Some(code) => {
            let server = redis::make_extension_error(code.to_owned(), None);
            Err(of_code(code.to_owned(), server))
        }
        None => Ok(number.parse().ok()?),
    };
    Some((tag, result))
}

#[cfg(test)]
#[path = "../tests/unit/answers.rs"]
mod tests;
