// SPDX-License-Identifier: MIT OR Apache-2.0

//! What the server tells of locks: who holds one, who waits for it, and which are waited for.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::time::Duration;

use redis::{FromRedisValue, RedisResult, Value};

/// How a lock is held: by one writer, or by readers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// One holder, which excludes all others.
    Write,
    /// Holders that exclude only writers.
    Read,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == Mode::Write { "write" } else { "read" })
    }
}

/// Declares types that a program reads: each field with its type, how it is read, and its name on the server.
macro_rules! read_from_fields {
    ($($(#[$doc:meta])* $name:ident { $($(#[$of:meta])* $field:ident: $type:ty = $read:ident($key:literal),)* })*) => { $(
        $(#[$doc])*
        #[derive(Clone, Debug)]
        #[non_exhaustive]
        pub struct $name { $($(#[$of])* pub $field: $type,)* }

        impl From<Fields> for $name {
            fn from(fields: Fields) -> Self {
                Self { $($field: fields.$read($key),)* }
            }
        }
    )* };
}

read_from_fields! {
    /// What `SLOCK.INFO` tells of one lock.
    Info {
        /// In which mode it is held; nothing if it is only waited for.
        mode: Option<Mode> = mode_if_any("mode"),
        /// How many hold it for reading.
        readers: u64 = get("readers"),
        /// How many wait.
        waiters: u64 = get("waiters"),
        /// The highest fencing token of the holders.
        fence: i64 = get("fence"),
        /// Until the deadline of the last holder.
        remaining: Duration = duration("pttl"),
        /// Who holds it, in the order in which their holds began.
        holders: Vec<Holder> = list("holders"),
        /// Who waits, in the order in which they will be granted.
        queue: Vec<Waiter> = list("queue"),
    }

    /// One who holds a lock.
    Holder {
        /// The owner token. Bytes that are no text are replaced.
        token: String = text("token"),
        /// The fencing token.
        fence: i64 = get("fence"),
        /// Until its deadline.
        remaining: Duration = duration("pttl"),
        /// Since the hold began.
        held: Duration = duration("held-ms"),
        /// The text that came with the request.
        metadata: Option<String> = text_if_any("meta"),
    }

    /// One who waits for a lock.
    Waiter {
        /// The owner token. Bytes that are no text are replaced.
        token: String = text("token"),
        /// What is wanted.
        mode: Mode = mode("mode"),
        /// A reader waits to become the writer.
        is_upgrade: bool = is_upgrade("mode"),
        /// Since the request.
        waiting: Duration = duration("waiting-ms"),
        /// How long it waits at most, unless the client sends the request again; nothing without a limit.
        wait: Option<Duration> = duration_if_any("timeout-ms"),
        /// The text that came with the request.
        metadata: Option<String> = text_if_any("meta"),
    }

    /// A lock that is waited for.
    Queue {
        /// The key.
        key: String = text("key"),
        /// How many wait.
        waiters: u64 = get("waiters"),
        /// How many of them want to write.
        writers: u64 = get("writers"),
        /// Since the first of them came.
        longest_wait: Duration = duration("longest-wait-ms"),
        /// The owner token of the first.
        next: String = text("next"),
        /// In which mode the lock is held; nothing if nobody holds it.
        mode: Option<Mode> = mode_if_any("mode"),
        /// How many hold it for reading.
        readers: u64 = get("readers"),
        /// Since the oldest hold began.
        held: Duration = duration("held-ms"),
    }
}

/// The fields of a map, which is an array in RESP2. What is missing counts as nothing.
struct Fields(HashMap<String, Value>);

impl Fields {
    fn get<T: FromRedisValue + Default>(&self, name: &str) -> T {
        let value = self.0.get(name).and_then(|value| redis::from_redis_value_ref(value).ok());
        value.unwrap_or_default()
    }

    fn list<T: From<Fields>>(&self, name: &str) -> Vec<T> {
        self.get::<Vec<_>>(name).into_iter().map(|fields| Fields(fields).into()).collect()
    }

    fn duration(&self, name: &str) -> Duration {
        Duration::from_millis(self.get(name))
    }

    fn text(&self, name: &str) -> String {
        String::from_utf8_lossy(&self.get::<Vec<u8>>(name)).into_owned()
    }

    fn text_if_any(&self, name: &str) -> Option<String> {
        Some(self.text(name)).filter(|text| !text.is_empty())
    }

    fn duration_if_any(&self, name: &str) -> Option<Duration> {
        Some(self.duration(name)).filter(|duration| !duration.is_zero())
    }

    fn mode_if_any(&self, name: &str) -> Option<Mode> {
        Some(self.mode(name)).filter(|_| matches!(self.text(name).as_str(), "read" | "write"))
    }

    /// An upgrade is wanted to write.
    fn mode(&self, name: &str) -> Mode {
        if self.text(name) == "read" { Mode::Read } else { Mode::Write }
    }

    fn is_upgrade(&self, name: &str) -> bool {
        self.text(name) == "upgrade"
    }
}

pub(crate) fn info(value: Value) -> RedisResult<Option<Info>> {
    let fields = Option::from_redis_value(value)?;
    Ok(fields.map(|fields| Fields(fields).into()))
}

/// Adds a page of the queues of each node: those whose keys begin with the prefix, which is taken off. The cursor of the
/// next page; 0 after the last. All nodes are asked from the least of their cursors on, so some may send a queue again.
pub(crate) fn add_queues(
    found: &mut Vec<Queue>,
    known: &mut HashSet<String>,
    of_nodes: Value,
    prefix: &str,
) -> RedisResult<u64> {
    let pages = Vec::<(u64, Vec<_>)>::from_redis_value(of_nodes)?;
    let next = pages.iter().map(|(cursor, _)| *cursor).filter(|cursor| *cursor > 0).min();
    let queues = pages.into_iter().flat_map(|(_, queues)| queues);
    for mut queue in queues.map(|fields| Queue::from(Fields(fields))) {
        if let Some(name) = queue.key.strip_prefix(prefix) {
            queue.key = name.to_owned();
            if known.insert(queue.key.clone()) {
                found.push(queue);
            }
        }
    }
    Ok(next.unwrap_or(0))
}
