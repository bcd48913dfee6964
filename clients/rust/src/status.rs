//! What the server tells of a lock and of its queues.

use std::collections::HashMap;
use std::time::Duration;

use redis::{FromRedisValue, RedisError, Value};

use crate::errors::Error;
use crate::options::Mode;

/// Who holds a lock and who waits for it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Info {
    /// In which mode it is held; nothing when there are only waiters.
    pub mode: Option<Mode>,
    /// How many hold it for reading.
    pub readers: u64,
    /// How many wait.
    pub waiters: u64,
    /// The highest fence of those who hold it.
    pub fence: i64,
    /// Until the last of them has to have renewed.
    pub left: Duration,
    /// Who holds it, up to a hundred.
    pub holders: Vec<Holder>,
    /// Who waits, in order, up to a hundred.
    pub queue: Vec<Waiter>,
}

/// Who holds a lock.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Holder {
    /// The owner's identity; what is no text in it is replaced.
    pub token: String,
    /// The number of the hold.
    pub fence: i64,
    /// Until its deadline.
    pub left: Duration,
    /// Since the grant.
    pub held: Duration,
    /// The text that came with the request.
    pub metadata: Option<String>,
}

/// Who waits for a lock.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Waiter {
    /// The owner's identity; what is no text in it is replaced.
    pub token: String,
    /// What is wanted.
    pub mode: Mode,
    /// A reader waits to become the writer.
    pub upgrade: bool,
    /// Since it asked.
    pub waiting: Duration,
    /// How long it waits; nothing without a limit.
    pub wait: Option<Duration>,
    /// The text that came with the request.
    pub metadata: Option<String>,
}

/// A lock for which somebody waits.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Queue {
    /// Its name.
    pub key: String,
    /// How many wait.
    pub waiters: u64,
    /// How many of them to write.
    pub writers: u64,
    /// Since the first of them asked.
    pub longest_wait: Duration,
    /// The token of the one that is granted next.
    pub next: String,
    /// In which mode it is held; nothing when nobody holds it.
    pub mode: Option<Mode>,
    /// How many hold it for reading.
    pub readers: u64,
    /// Since when it is held.
    pub held: Duration,
}

/// The fields of a map, which is an array in protocol 2. What is missing counts as nothing.
struct Fields(HashMap<String, Value>);

impl Fields {
    fn of(value: Value) -> Result<Self, Error> {
        Ok(Self(HashMap::from_redis_value(value).map_err(RedisError::from)?))
    }

    fn get<T: FromRedisValue + Default>(&self, name: &str) -> T {
        let value = self.0.get(name).and_then(|value| redis::from_redis_value_ref(value).ok());
        value.unwrap_or_default()
    }

    fn list<T>(&self, name: &str, read: fn(Fields) -> T) -> Vec<T> {
        self.get::<Vec<_>>(name).into_iter().map(|fields| read(Fields(fields))).collect()
    }

    fn duration(&self, name: &str) -> Duration {
        Duration::from_millis(self.get(name))
    }

    fn text(&self, name: &str) -> String {
        String::from_utf8_lossy(&self.get::<Vec<u8>>(name)).into_owned()
    }

    fn metadata(&self) -> Option<String> {
        Some(self.text("meta")).filter(|text| !text.is_empty())
    }

    fn mode(&self) -> Option<Mode> {
        match self.text("mode").as_str() {
            "read" => Some(Mode::Read),
            "write" | "upgrade" => Some(Mode::Write),
            _ => None,
        }
    }
}

pub(crate) fn info(value: Value) -> Result<Option<Info>, Error> {
    if value == Value::Nil {
        return Ok(None);
    }
    let info = Fields::of(value)?;
    Ok(Some(Info {
        mode: info.mode(),
        readers: info.get("readers"),
        waiters: info.get("waiters"),
        fence: info.get("fence"),
        left: info.duration("pttl"),
        holders: info.list("holders", holder),
        queue: info.list("queue", waiter),
    }))
}

fn holder(holder: Fields) -> Holder {
    Holder {
        token: holder.text("token"),
        fence: holder.get("fence"),
        left: holder.duration("pttl"),
        held: holder.duration("held-ms"),
        metadata: holder.metadata(),
    }
}

fn waiter(waiter: Fields) -> Waiter {
    Waiter {
        token: waiter.text("token"),
        mode: waiter.mode().unwrap_or(Mode::Write),
        upgrade: waiter.text("mode") == "upgrade",
        waiting: waiter.duration("waiting-ms"),
        wait: Some(waiter.duration("timeout-ms")).filter(|wait| !wait.is_zero()),
        metadata: waiter.metadata(),
    }
}

/// The queues of several nodes, the longest wait first.
pub(crate) fn queues(of_nodes: Vec<Value>) -> Result<Vec<Queue>, Error> {
    let of_nodes = of_nodes.into_iter().map(Vec::<Value>::from_redis_value).collect::<Result<Vec<_>, _>>();
    let queues = of_nodes.map_err(RedisError::from)?.into_iter().flatten();
    let mut queues =
        queues.map(|fields| Ok(queue(&Fields::of(fields)?))).collect::<Result<Vec<_>, Error>>()?;
    queues.sort_by_key(|queue| std::cmp::Reverse(queue.longest_wait));
    Ok(queues)
}

fn queue(queue: &Fields) -> Queue {
    Queue {
        key: queue.text("key"),
        waiters: queue.get("waiters"),
        writers: queue.get("writers"),
        longest_wait: queue.duration("longest-wait-ms"),
        next: queue.text("next"),
        mode: queue.mode(),
        readers: queue.get("readers"),
        held: queue.duration("held-ms"),
    }
}
