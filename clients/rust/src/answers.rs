//! What the server's answers mean.

use std::io;

use redis::{ErrorKind, RedisError, ServerErrorKind, Value};

use crate::errors::Error;

/// The reply to a command, or an array of those to several.
pub(crate) type Reply = Result<Value, Failure>;

/// Why a command did not do its work.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) kind: Kind,
    pub(crate) error: Error,
}

/// What follows from a failure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind {
    /// Nothing was sent: there is no connection.
    Unreachable,
    /// No answer: it is not known whether the command was executed, or will be.
    Unanswered,
    /// An error that passes, or names another node of a cluster: ask again after a pause.
    Passing,
    /// Nobody listens on the channel of the request.
    NoSubscriber,
    /// To ask again would not help.
    Final,
}

impl Failure {
    pub(crate) fn last(error: Error) -> Self {
        Self { kind: Kind::Final, error }
    }

    /// A limit for an answer has passed.
    pub(crate) fn no_answer(who: &str) -> Self {
        let text = format!("no answer from {who} in time");
        RedisError::from(io::Error::new(io::ErrorKind::TimedOut, text)).into()
    }

    pub(crate) fn connection_lost() -> Self {
        RedisError::from(io::Error::new(io::ErrorKind::ConnectionAborted, "the connection was lost")).into()
    }

    /// Whether the server has said anything.
    pub(crate) fn is_answer(&self) -> bool {
        !matches!(self.kind, Kind::Unreachable | Kind::Unanswered)
    }

    /// What this means where nothing but a connection was asked for.
    pub(crate) fn before_sending(mut self) -> Self {
        if self.kind == Kind::Unanswered {
            self.kind = Kind::Unreachable;
        }
        self
    }

    /// Whether the user lacks the permission for a command, a key or a channel.
    pub(crate) fn lacks_permission(&self) -> bool {
        matches!(&self.error, Error::Redis(error) if error.code() == Some("NOPERM"))
    }

    /// Whether the user may not use the channel; any other lack of a permission is final.
    pub(crate) fn denies_the_channel(&self) -> bool {
        self.lacks_permission() && self.error.to_string().contains("channel")
    }

    /// The node that serves the slot (`MOVED`), or that takes it over and has the key already (`ASK`).
    pub(crate) fn redirects(&self, by: ServerErrorKind) -> Option<&str> {
        match &self.error {
            Error::Redis(error) if error.kind() == ErrorKind::Server(by) => Some(error.redirect_node()?.0),
            _ => None,
        }
    }
}

impl From<RedisError> for Failure {
    fn from(error: RedisError) -> Self {
        let kind = match error.kind() {
            ErrorKind::Io
            | ErrorKind::Parse
            | ErrorKind::MasterNameNotFoundBySentinel
            | ErrorKind::NoValidReplicasFoundBySentinel
            | ErrorKind::ClusterConnectionNotFound => Kind::Unanswered,
            _ => match error.code().unwrap_or_default() {
                "MOVED" | "ASK" | "UNBLOCKED" | "TRYAGAIN" | "READONLY" | "LOADING" | "MASTERDOWN"
                | "CLUSTERDOWN" | "GRACE" | "NOREPLICAS" => Kind::Passing,
                "NOSUBSCRIBER" => Kind::NoSubscriber,
                _ => Kind::Final,
            },
        };
        Self { kind, error: named(error) }
    }
}

/// An error of the module by its name; any other as it is.
fn named(error: RedisError) -> Error {
    let code = error.code().unwrap_or_default();
    let text = || [code, error.detail().unwrap_or_default()].join(" ").trim_end().to_owned();
    match code {
        "DEADLOCK" => Error::Deadlock(text()),
        "QUEUEFULL" => Error::QueueFull(text()),
        "WRONGMODE" => Error::WrongMode(text()),
        "NOTHELD" => Error::NotHeld,
        "REFUSED" => Error::Refused(text()),
        "ERR" if text().to_ascii_lowercase().contains("unknown command") => Error::ModuleNotLoaded,
        _ => error.into(),
    }
}

/// The number in a reply; 0 for null.
pub(crate) fn number(value: &Value) -> i64 {
    match value {
        Value::Int(number) => *number,
        _ => 0,
    }
}

/// The numbers in the replies to several commands.
pub(crate) fn numbers(value: &Value) -> impl Iterator<Item = i64> {
    let values = if let Value::Array(values) = value { values } else { std::slice::from_ref(value) };
    values.iter().map(number)
}

/// A message on the channel: what became of the request with this tag.
pub(crate) fn message(payload: &[u8]) -> Option<(u64, Result<i64, Failure>)> {
    let (number, tag) = str::from_utf8(payload).ok()?.split_once(' ')?;
    let tag = tag.parse().ok()?;
    let result = match number.strip_prefix('-') {
        Some(code) => Err(redis::make_extension_error(code.to_owned(), None).into()),
        None => Ok(number.parse().ok()?),
    };
    Some((tag, result))
}

#[cfg(test)]
#[path = "../tests/unit/answers.rs"]
mod tests;
