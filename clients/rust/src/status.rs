//! What the server tells of a lock and of its queues.

use std::collections::HashMap;
use std::time::Duration;

use redis::{FromRedisValue, RedisError, Value};

use crate::errors::Error;
use crate::options::Mode;

/// Types that a program reads: each field with its type, how it is read, and its name on the server.
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
    /// Who holds a lock and who waits for it.
    Info {
        /// In which mode it is held; nothing when there are only waiters.
        mode: Option<Mode> = mode_if_any("mode"),
        /// How many hold it for reading.
        readers: u64 = get("readers"),
        /// How many wait.
        waiters: u64 = get("waiters"),
        /// The highest fence of those who hold it.
        fence: i64 = get("fence"),
        /// Until the last of them has to have renewed.
        left: Duration = duration("pttl"),
        /// Who holds it, up to a hundred.
        holders: Vec<Holder> = list("holders"),
        /// Who waits, in order, up to a hundred.
        queue: Vec<Waiter> = list("queue"),
    }

    /// Who holds a lock.
    Holder {
        /// The owner's identity; what is no text in it is replaced.
        token: String = text("token"),
        /// The number of the hold.
        fence: i64 = get("fence"),
        /// Until its deadline.
        left: Duration = duration("pttl"),
        /// Since the grant.
        held: Duration = duration("held-ms"),
        /// The text that came with the request.
        metadata: Option<String> = text_if_any("meta"),
    }

    /// Who waits for a lock.
    Waiter {
        /// The owner's identity; what is no text in it is replaced.
        token: String = text("token"),
        /// What is wanted.
        mode: Mode = mode("mode"),
        /// A reader waits to become the writer.
        upgrade: bool = is_upgrade("mode"),
        /// Since it asked.
        waiting: Duration = duration("waiting-ms"),
        /// How long it waits; nothing without a limit.
        wait: Option<Duration> = duration_if_any("timeout-ms"),
        /// The text that came with the request.
        metadata: Option<String> = text_if_any("meta"),
    }

    /// A lock for which somebody waits.
    Queue {
        /// Its name.
        key: String = text("key"),
        /// How many wait.
        waiters: u64 = get("waiters"),
        /// How many of them to write.
        writers: u64 = get("writers"),
        /// Since the first of them asked.
        longest_wait: Duration = duration("longest-wait-ms"),
        /// The token of the one that is granted next.
        next: String = text("next"),
        /// In which mode it is held; nothing when nobody holds it.
        mode: Option<Mode> = mode_if_any("mode"),
        /// How many hold it for reading.
        readers: u64 = get("readers"),
        /// Since when it is held.
        held: Duration = duration("held-ms"),
    }
}

/// The fields of a map, which is an array in protocol 2. What is missing counts as nothing.
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
        Some(self.mode(name)).filter(|_| !self.text(name).is_empty())
    }

    /// An upgrade is wanted to write.
    fn mode(&self, name: &str) -> Mode {
        if self.text(name) == "read" { Mode::Read } else { Mode::Write }
    }

    fn is_upgrade(&self, name: &str) -> bool {
        self.text(name) == "upgrade"
    }
}

pub(crate) fn info(value: Value) -> Result<Option<Info>, Error> {
    let fields = Option::from_redis_value(value).map_err(RedisError::from)?;
    Ok(fields.map(|fields| Fields(fields).into()))
}

/// The queues of several nodes, the longest wait first.
pub(crate) fn queues(of_nodes: Value) -> Result<Vec<Queue>, Error> {
    let queues = Vec::<Vec<_>>::from_redis_value(of_nodes).map_err(RedisError::from)?;
    let mut queues: Vec<_> = queues.into_iter().flatten().map(|fields| Queue::from(Fields(fields))).collect();
    queues.sort_by_key(|queue| std::cmp::Reverse(queue.longest_wait));
    Ok(queues)
}
