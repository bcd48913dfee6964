// SPDX-License-Identifier: MIT OR Apache-2.0

//! The one interface to clients of the redis crate: commands that have replies, and channels that have messages.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use redis::{Cmd, RedisError, RedisResult, Value};

/// How long a connection may say nothing. Then the command is sent again, over another one.
pub(crate) const SILENCE: Duration = Duration::from_millis(800);

/// What a `Locks` needs of a client of the redis crate.
pub(crate) trait Transport: Send + Sync {
    /// Sends a command, perhaps more than once. It returns soon after `until`, and what was sent may be carried out later. An
    /// error without a code means that there was no reply.
    fn call<'a>(&'a self, call: Call<'a>) -> BoxFuture<'a, RedisResult<Reply>>;

    /// Subscribes by SSUBSCRIBE, on the primary that has the channel's slot, until messages may have been missed.
    fn listen<'a>(&'a self, channel: &'a str) -> BoxFuture<'a, RedisResult<()>>;

    fn topology(&self) -> &Topology;

    /// Closes the connections. Later calls may open one.
    fn close(&self);
}

/// What happens to channels.
pub(crate) enum Event<'a> {
    /// The payload of a message.
    Heard(&'a [u8]),
    /// Messages may have been missed, and the subscriptions may be gone. If servers can be replaced, the primary may be another
    /// one.
    Missed,
}

/// Takes what happens to channels. It must not block.
pub(crate) type Take = dyn Fn(Event<'_>) + Send + Sync;
pub(crate) type Events = Arc<Take>;

/// What a transport sends.
#[derive(Clone, Copy)]
pub(crate) struct Call<'a> {
    /// A key of the command, which tells the primary that has to have it. Without one the command goes to each primary,
    /// and the reply is an array of theirs.
    #[cfg_attr(not(feature = "cluster"), allow(dead_code, reason = "a single server has all keys"))]
    pub(crate) key: Option<&'a str>,
    pub(crate) command: &'a Cmd,
    /// A WAIT that follows over the same connection, and how long it may take.
    pub(crate) then: Option<(&'a Cmd, Duration)>,
    /// Whether it needs a connection that the program's own commands cannot occupy.
    pub(crate) is_reserved: bool,
    pub(crate) until: Instant,
}

impl<'a> Call<'a> {
    pub(crate) fn new(key: &'a str, command: &'a Cmd, until: Instant) -> Self {
        Self { key: Some(key), command, then: None, is_reserved: false, until }
    }
}

pub(crate) struct Reply {
    pub(crate) value: Value,
    pub(crate) then: Value,
    /// No other copy of the command was sent.
    pub(crate) is_alone: bool,
}

/// The servers behind a transport.
pub(crate) struct Topology {
    /// The address, for texts.
    pub(crate) name: String,
    /// Whether keys and channels belong to slots.
    pub(crate) is_cluster: bool,
    /// Whether another server, which may lack some locks, can take over while the former one still replies.
    pub(crate) is_failover: bool,
}

pub(crate) fn silent() -> RedisError {
    std::io::Error::new(std::io::ErrorKind::TimedOut, "the connection is silent").into()
}
