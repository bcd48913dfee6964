// SPDX-License-Identifier: MIT OR Apache-2.0

//! What ends the program, as one line that says what to do, and its exit code.

use slock_client::redis::{ErrorKind, RedisError};
use slock_client::{Error, redis};

use crate::table;

/// The answer is no: not held, or faults were found.
pub const NO: u8 = 1;
/// The server cannot be used (`EX_UNAVAILABLE`).
pub const UNAVAILABLE: u8 = 69;
/// Not obtained (`EX_TEMPFAIL`).
pub const NOT_OBTAINED: u8 = 75;
/// Lost while the command ran.
pub const LOST: u8 = 76;

pub struct Failure {
    /// Empty if there is nothing to say.
    pub line: String,
    pub code: u8,
}

impl Failure {
    pub fn new(code: u8, line: impl Into<String>) -> Self {
        Self { line: line.into(), code }
    }

    pub fn usage(line: impl Into<String>) -> Self {
        Self::new(2, line)
    }

    /// What the library says of these servers.
    pub fn of(error: &Error, place: &str) -> Self {
        match error {
            Error::NoAnswer(_) | Error::Redis(_) if let Some(error) = error.redis() => {
                Self::of_reply(error, place)
            }
            Error::Invalid(text) => Self::usage(text),
            Error::QueueFull { .. } => Self::new(NOT_OBTAINED, error.to_string()),
            error => Self::new(UNAVAILABLE, error.to_string()),
        }
    }

    /// The error of a server or a connection. That an argument is out of its range only the server knows: the longest ttl,
    /// for example, is a setting of it. A key of another type is wrong usage too: another attempt would end the same way.
    pub fn of_reply(error: &RedisError, place: &str) -> Self {
        match error.detail() {
            Some(text)
                if error.code() == Some("ERR")
                    && [" must be ", "named twice"].iter().any(|wrong| text.contains(wrong)) =>
            {
                Self::usage(text)
            }
            _ if error.code() == Some("WRONGTYPE") => Self::usage(explain(error, place)),
            _ => Self::new(UNAVAILABLE, explain(error, place)),
        }
    }

    /// A server does not say which key it means.
    pub fn about(mut self, keys: &[String]) -> Self {
        if let Some(place) = self.line.strip_suffix(WRONG_TYPE) {
            self.line = format!(
                "{place}{} {}",
                table::clean(&keys.join(", ")),
                WRONG_TYPE.trim_start_matches("the key ")
            );
        }
        self
    }
}

const WRONG_TYPE: &str = "the key holds something else than a lock of SLOCK, perhaps a lock of another library \
                          that uses the same name";

/// With `requirepass` there is a password and no user.
const LOGIN: &str = "give it by SLOCK_PASSWORD or --password-file, and that of an ACL user with SLOCK_USER or --user; \
                     or in the URL as redis://USER:PASSWORD@HOST:PORT";

/// The error of a server or a connection, and what to do.
pub fn explain(error: &RedisError, place: &str) -> String {
    let text = error.detail().map_or_else(|| error.to_string(), str::to_owned).replace(['\r', '\n'], " ");
    let is_login = error.kind() == ErrorKind::AuthenticationFailed || error.code() == Some("WRONGPASS");
    if error.is_connection_refusal() {
        format!("nobody listens at {place}: start the server there, or name another by --url or SLOCK_URL")
    } else if error.code() == Some("NOAUTH") || text.contains("NOAUTH") {
        format!("{place} asks for a password: {LOGIN}")
    } else if is_login {
        format!("{place} refuses the user or the password: {LOGIN}")
    } else if error.code() == Some("WRONGTYPE") {
        format!("{place}: {WRONG_TYPE}")
    } else if error.code() == Some("NOPERM") {
        let text = text.to_lowercase();
        let text = text.trim_start_matches("noperm ");
        format!("{place} refuses: {text}; give it with ACL SETUSER, as `slock doctor` says")
    } else if error.code() == Some("READONLY") {
        format!("{place} is a replica, and grants no lock: name its primary by --url or SLOCK_URL")
    } else if is_module_missing(error) {
        format!("{place}: {}", Error::ModuleNotLoaded)
    } else if error.redirect_node().is_some() || text.contains("cluster support disabled") {
        format!("{place}: {text}; redis+cluster://… is for clusters, redis://… for single servers")
    } else if error.kind() == ErrorKind::MasterNameNotFoundBySentinel {
        format!("{place}: the Sentinels know no primary of this name; see SENTINEL MASTERS")
    } else if error.is_timeout() {
        format!("{place} does not answer: is it the right address, and does it speak TLS (rediss://) or not?")
    } else if error.is_connection_dropped() {
        format!("{place} closed the connection: does it want TLS, rediss://…, or not?")
    } else if error.kind() == ErrorKind::Parse {
        format!("what answers at {place} is no Redis or Valkey server, or it speaks TLS (rediss://…)")
    } else if text.contains("InvalidContentType") {
        format!("what answers at {place} speaks no TLS: name it by redis://… rather than rediss://…")
    } else if error.kind() == ErrorKind::Io && text.contains("certificate") {
        format!("the TLS of {place} failed: {text}; --tls-ca names the authorities to trust")
    } else {
        format!("{place}: {text}")
    }
}

/// Whether the server knows neither the commands nor the type of the module.
pub fn is_module_missing(error: &RedisError) -> bool {
    let text = error.detail().unwrap_or("").to_lowercase();
    text.contains("unknown command") || text.contains("unknown type name")
}

/// The error among the answers of a pipeline.
pub fn error_of(value: &redis::Value) -> Option<RedisError> {
    match value {
        redis::Value::ServerError(error) => Some(error.clone().into()),
        _ => None,
    }
}
