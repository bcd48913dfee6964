// SPDX-License-Identifier: MIT OR Apache-2.0

//! The rules of the lock, for the server in memory: who may hold it, who is next, and what the server tells of it.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use redis::Value;

const LONGEST_TTL: Duration = Duration::from_secs(24 * 60 * 60);
const YEAR: Duration = Duration::from_secs(365 * 24 * 60 * 60);

#[derive(Default)]
pub(crate) struct State {
    locks: HashMap<String, Lock>,
    /// In the order of arrival; an upgrade comes before the others.
    queue: Vec<Waiter>,
    /// Acquisitions that were ended, by key and token: until when the token is refused, and whether the end released.
    ended: HashMap<(String, String), (Instant, bool)>,
    pub(crate) channels: HashSet<String>,
    /// What is to be said on channels.
    pub(crate) messages: Vec<String>,
    fence: i64,
}

struct Lock {
    is_write: bool,
    /// In the order of their holds.
    holders: Vec<Holder>,
}

struct Holder {
    token: String,
    metadata: String,
    fence: i64,
    since: Instant,
    deadline: Instant,
}

struct Waiter {
    asked: Asked,
    since: Instant,
    until: Instant,
}

/// What a command asks for.
#[derive(Clone, Default, PartialEq)]
pub(crate) struct Asked {
    pub(crate) keys: Vec<String>,
    pub(crate) token: String,
    pub(crate) is_read: bool,
    pub(crate) is_upgrade: bool,
    pub(crate) ttl: Duration,
    metadata: Option<String>,
    limit: usize,
    /// XX
    is_held: bool,
    /// GT
    lengthens: bool,
    fence: Option<i64>,
    wait: Option<Duration>,
    /// The channel and the tag.
    notify: Option<(String, String)>,
    refuse: Option<Duration>,
}

type Result<T> = std::result::Result<T, String>;

impl Asked {
    fn parse(name: &str, words: &[String]) -> Result<Self> {
        let mut words = words.iter().cloned();
        let mut next = || words.next().ok_or("ERR wrong number of arguments".to_owned());
        let number = |word: String| word.parse::<u64>().map_err(|_| "ERR a number is needed".to_owned());
        let count = if name.starts_with('M') { number(next()?)? } else { 1 };
        let mut asked =
            Asked { is_read: name.contains("RLOCK"), is_upgrade: name == "UPGRADE", ..Asked::default() };
        for _ in 0..count {
            asked.keys.push(next()?);
        }
        if name == "INFO" {
            return Ok(asked);
        }
        asked.token = next()?;
        if !name.ends_with("UNLOCK") && !matches!(name, "CANCEL" | "PTTL") {
            asked.ttl = Duration::from_millis(number(next()?)?);
            if asked.ttl.is_zero() || asked.ttl > LONGEST_TTL {
                return Err("ERR the ttl is out of range".into());
            }
        }
        while let Ok(option) = next() {
            match option.as_str() {
                "META" => asked.metadata = Some(next()?),
                "LIMIT" => asked.limit = number(next()?)? as usize,
                "WAIT" => {
                    asked.wait = Some(Duration::from_millis(number(next()?)?))
                        .filter(|wait| !wait.is_zero())
                        .or(Some(YEAR))
                }
                "NOTIFY" => asked.notify = Some((next()?, next()?)),
                "XX" => asked.is_held = true,
                "GT" => asked.lengthens = true,
                "FENCE" => asked.fence = Some(number(next()?)? as i64),
                "REFUSE" => asked.refuse = Some(Duration::from_millis(number(next()?)?)),
                other => return Err(format!("ERR unknown option '{other}'")),
            }
        }
        Ok(asked)
    }
}

impl State {
    /// Carries out a command. The error is the text of the server's.
    pub(crate) fn execute(&mut self, words: &[String]) -> Result<Value> {
        let name = words.first().map(|word| word.to_uppercase()).unwrap_or_default();
        let name = name.strip_prefix("SLOCK.").unwrap_or(&name);
        let words = words.get(1..).unwrap_or_default();
        match name {
            "WAIT" => return Ok(Value::Int(0)), // there are no replicas
            "DEL" => return Ok(Value::Int(words.iter().filter(|key| self.delete(key)).count() as i64)),
            "QUEUES" => return Ok(self.queues()),
            _ => {}
        }
        let asked = Asked::parse(name, words)?;
        Ok(match name {
            "LOCK" | "RLOCK" | "MLOCK" | "MRLOCK" | "UPGRADE" => self.acquire(asked)?,
            "UNLOCK" => Value::Int(self.end(&asked, Some(true))),
            "RUNLOCK" => Value::Int(self.end(&asked, Some(false))),
            "MUNLOCK" => Value::Int(self.end(&asked, None)),
            "EXTEND" | "MEXTEND" => Value::Int(self.extend(&asked)),
            "DOWNGRADE" => Value::Int(self.downgrade(&asked)?),
            "CANCEL" => Value::Int(self.withdraw(&asked)),
            "INFO" => self.info(&asked.keys[0]),
            "PTTL" => {
                let holder = self.holder(&asked.keys[0], &asked.token, None);
                Value::Int(holder.map_or(-2, |holder| milliseconds(holder.deadline, Instant::now())))
            }
            _ => return Err(format!("ERR unknown command '{name}'")),
        })
    }
}

const NOT_HELD: &str = "NOTHELD the token does not hold the lock";

/// Who may hold the lock.
impl State {
    fn holder(&mut self, key: &str, token: &str, fence: Option<i64>) -> Option<&mut Holder> {
        let holders = self.locks.get_mut(key)?.holders.iter_mut();
        let mut own = holders.filter(|holder| holder.token == token);
        own.find(|holder| fence.is_none_or(|fence| fence == holder.fence))
    }

    fn is_held_to_write(&self, key: &str) -> Option<bool> {
        self.locks.get(key).map(|lock| lock.is_write)
    }

    /// Whether the holders of the lock let a request in.
    fn admits(&self, key: &str, asked: &Asked) -> bool {
        let Some(lock) = self.locks.get(key) else { return !asked.is_upgrade };
        if lock.holders.iter().any(|holder| holder.token == asked.token) {
            return !asked.is_upgrade || lock.holders.len() == 1;
        }
        let has_room = asked.limit == 0 || lock.holders.len() < asked.limit;
        asked.is_read && !lock.is_write && has_room
    }

    fn acquire(&mut self, asked: Asked) -> Result<Value> {
        let mut held = 0;
        for key in &asked.keys {
            let fence = self.holder(key, &asked.token, None).map(|holder| holder.fence);
            let is_write = self.is_held_to_write(key);
            let is_refused = self.ended.get(&(key.clone(), asked.token.clone()));
            match fence {
                None if asked.is_upgrade => return Err(NOT_HELD.into()),
                None if is_refused.is_some_and(|(until, _)| *until > Instant::now()) => {
                    return Err("REFUSED the acquisition of this token was ended".into());
                }
                None => {}
                Some(_) if is_write == Some(!asked.is_read) => held += 1,
                Some(fence) if asked.is_upgrade && asked.fence.is_some_and(|asked| asked != fence) => {
                    return Err(NOT_HELD.into());
                }
                Some(_) if asked.is_upgrade || asked.is_held => {}
                Some(_) => {
                    let mode = if is_write == Some(true) { "write" } else { "read" };
                    return Err(format!(
                        "WRONGMODE the token holds the lock for {mode}: UPGRADE and DOWNGRADE change it"
                    ));
                }
            }
        }
        if held == asked.keys.len() || !asked.is_held && !self.is_blocked(&asked) {
            return Ok(Value::Int(self.grant(&asked)));
        }
        let Some(wait) = asked.wait.filter(|_| !asked.is_held) else { return Ok(Value::Int(0)) };
        if asked.notify.as_ref().is_none_or(|(channel, _)| !self.channels.contains(channel)) {
            return Err("NOSUBSCRIBER nobody subscribes to the channel".into());
        }
        let now = Instant::now();
        let waiter = Waiter { since: now, until: now + wait, asked };
        let is_same = |other: &Asked, asked: &Asked| {
            (&other.token, other.is_read, other.is_upgrade, &other.keys)
                == (&asked.token, asked.is_read, asked.is_upgrade, &asked.keys)
        };
        if let Some(known) = self.queue.iter_mut().find(|known| is_same(&known.asked, &waiter.asked)) {
            *known = Waiter { since: known.since, ..waiter };
            return Ok(Value::Nil);
        }
        let asked = waiter.asked.clone();
        if !asked.is_upgrade {
            self.queue.push(waiter);
        } else if self.queue.iter().any(|other| other.asked.is_upgrade && other.asked.keys == asked.keys) {
            return Err("DEADLOCK another reader of the lock waits to upgrade it".into());
        } else {
            self.queue.insert(0, waiter);
        }
        if self.waits_for(&asked, &asked.token, &mut HashSet::new()) {
            self.queue.retain(|waiter| !is_same(&waiter.asked, &asked));
            let holder = self.tokens(&asked.keys[0]).join(", ");
            return Err(format!("DEADLOCK {} and {holder} wait for each other", asked.token));
        }
        Ok(Value::Nil)
    }

    /// Whether a request that does not wait yet has to.
    fn is_blocked(&mut self, asked: &Asked) -> bool {
        let blocks = |state: &mut Self, key: &String| {
            let is_queued = state.queue.iter().any(|waiter| waiter.asked.keys.contains(key));
            !state.admits(key, asked) || is_queued && state.holder(key, &asked.token, None).is_none()
        };
        asked.keys.iter().any(|key| blocks(self, key))
    }

    /// Whether a request waits for the token, by way of others that wait.
    fn waits_for(&self, asked: &Asked, token: &str, seen: &mut HashSet<String>) -> bool {
        seen.insert(asked.token.clone());
        let blocking =
            asked.keys.iter().filter(|key| !self.admits(key, asked)).filter_map(|key| self.locks.get(key));
        let mut holders =
            blocking.flat_map(|lock| &lock.holders).filter(|holder| holder.token != asked.token);
        holders.any(|holder| {
            let waiting = self.queue.iter().filter(|other| other.asked.token == holder.token);
            holder.token == token
                || !seen.contains(&holder.token)
                    && waiting.clone().any(|other| self.waits_for(&other.asked, token, &mut seen.clone()))
        })
    }

    /// Gives the hold on all keys, or refreshes it, and returns its fencing token.
    pub(crate) fn grant(&mut self, asked: &Asked) -> i64 {
        let is_new_mode = asked.is_upgrade && self.is_held_to_write(&asked.keys[0]) == Some(false);
        let fences =
            asked.keys.iter().map(|key| self.holder(key, &asked.token, None).map(|holder| holder.fence));
        let fences: HashSet<_> = fences.collect();
        let fence = match (fences.len(), fences.into_iter().next().flatten()) {
            (1, Some(fence)) if !is_new_mode => fence,
            _ => self.next_fence(),
        };
        let now = Instant::now();
        for key in &asked.keys {
            let lock = self.locks.entry(key.clone()).or_insert(Lock { is_write: true, holders: Vec::new() });
            lock.is_write = !asked.is_read;
            let holder = match lock.holders.iter_mut().position(|holder| holder.token == asked.token) {
                Some(at) => &mut lock.holders[at],
                None => {
                    let (token, metadata) = (asked.token.clone(), String::new());
                    lock.holders.push(Holder { token, metadata, fence: 0, since: now, deadline: now });
                    lock.holders.last_mut().expect("it was just pushed")
                }
            };
            if holder.fence != fence {
                (holder.fence, holder.since) = (fence, now);
            }
            holder.deadline = holder.deadline.max(now + asked.ttl);
            holder.metadata = asked.metadata.clone().unwrap_or_else(|| std::mem::take(&mut holder.metadata));
        }
        fence
    }

    /// Greater than all before, and than the time in microseconds.
    fn next_fence(&mut self) -> i64 {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros() as i64;
        self.fence = now.max(self.fence + 1);
        self.fence
    }

    fn extend(&mut self, asked: &Asked) -> i64 {
        if asked.keys.iter().any(|key| self.holder(key, &asked.token, asked.fence).is_none()) {
            return 0;
        }
        let deadline = Instant::now() + asked.ttl;
        for key in &asked.keys {
            let holder = self.holder(key, &asked.token, asked.fence).expect("it was just found");
            holder.deadline = if asked.lengthens { holder.deadline.max(deadline) } else { deadline };
        }
        1
    }

    fn downgrade(&mut self, asked: &Asked) -> Result<i64> {
        let (key, fence) = (&asked.keys[0], self.next_fence());
        let is_write = self.is_held_to_write(key) == Some(true);
        let holder = self.holder(key, &asked.token, asked.fence.filter(|_| is_write)).ok_or(NOT_HELD)?;
        holder.deadline = holder.deadline.max(Instant::now() + asked.ttl);
        if is_write {
            (holder.fence, holder.since) = (fence, Instant::now());
        }
        let fence = holder.fence;
        self.locks.get_mut(key).expect("it has a holder").is_write = false;
        Ok(fence)
    }

    /// Releases holds of the token, in a mode or in any, and gives how many.
    fn end(&mut self, asked: &Asked, mode: Option<bool>) -> i64 {
        if asked.refuse.is_some() {
            self.withdraw(asked);
        }
        let mut count = 0;
        for key in &asked.keys {
            let is_mode = mode.is_none() || mode == self.is_held_to_write(key);
            let mut is_released = is_mode && self.holder(key, &asked.token, asked.fence).is_some();
            if is_released {
                self.retain(key, |holder| holder.token != asked.token);
            }
            if let Some(refuse) = asked.refuse {
                let known =
                    self.ended.entry((key.clone(), asked.token.clone())).or_insert((Instant::now(), false));
                is_released |= known.1;
                *known = (Instant::now() + refuse, is_released);
            }
            count += i64::from(is_released);
        }
        count
    }

    fn retain(&mut self, key: &str, stays: impl Fn(&Holder) -> bool) {
        if let Some(lock) = self.locks.get_mut(key) {
            lock.holders.retain(stays);
            if lock.holders.is_empty() {
                self.locks.remove(key);
            }
        }
    }

    pub(crate) fn delete(&mut self, key: &str) -> bool {
        self.locks.remove(key).is_some()
    }
}

/// Who waits.
impl State {
    /// Ends the waits of a token, and gives how many there were.
    fn withdraw(&mut self, asked: &Asked) -> i64 {
        let is_meant = |other: &Asked| {
            other.token == asked.token && other.keys.iter().any(|key| asked.keys.contains(key))
        };
        self.leave(|waiter| is_meant(&waiter.asked))
    }

    fn leave(&mut self, leaves: impl Fn(&Waiter) -> bool) -> i64 {
        let (gone, stay): (Vec<_>, Vec<_>) = std::mem::take(&mut self.queue).into_iter().partition(leaves);
        self.queue = stay;
        gone.iter().for_each(|waiter| self.say(waiter, 0));
        gone.len() as i64
    }

    fn say(&mut self, waiter: &Waiter, number: i64) {
        let heard = waiter.asked.notify.as_ref().filter(|(channel, _)| self.channels.contains(channel));
        self.messages.extend(heard.map(|(_, tag)| format!("{number} {tag}")));
    }

    /// Grants what the queue lets in, in its order.
    pub(crate) fn serve(&mut self) {
        let mut blocked = HashSet::new();
        for waiter in std::mem::take(&mut self.queue) {
            let keys = waiter.asked.keys.clone();
            if keys.iter().all(|key| !blocked.contains(key) && self.admits(key, &waiter.asked)) {
                let fence = self.grant(&waiter.asked);
                self.say(&waiter, fence);
            } else {
                blocked.extend(keys);
                self.queue.push(waiter);
            }
        }
    }

    /// Ends what has passed its deadline.
    pub(crate) fn expire(&mut self) {
        let now = Instant::now();
        for key in self.locks.keys().cloned().collect::<Vec<_>>() {
            self.retain(&key, |holder| now < holder.deadline);
        }
        self.ended.retain(|_, (until, _)| now < *until);
        self.leave(|waiter| now >= waiter.until);
    }

    /// When the next wait may end by time alone.
    pub(crate) fn next_change(&self) -> Option<Instant> {
        let keys = self.queue.iter().flat_map(|waiter| &waiter.asked.keys);
        let holders = keys.filter_map(|key| self.locks.get(key)).flat_map(|lock| &lock.holders);
        let deadlines = holders.map(|holder| holder.deadline);
        deadlines.chain(self.queue.iter().map(|waiter| waiter.until)).min()
    }
}

/// What the server tells.
impl State {
    pub(crate) fn tokens(&self, key: &str) -> Vec<String> {
        let holders = self.locks.get(key).into_iter().flat_map(|lock| &lock.holders);
        holders.map(|holder| holder.token.clone()).collect()
    }

    fn info(&self, key: &str) -> Value {
        let (now, lock) = (Instant::now(), self.locks.get(key));
        let holders: Vec<&Holder> = lock.into_iter().flat_map(|lock| &lock.holders).collect();
        let waiters: Vec<_> =
            self.queue.iter().filter(|waiter| waiter.asked.keys.iter().any(|one| one == key)).collect();
        if holders.is_empty() && waiters.is_empty() {
            return Value::Nil;
        }
        let is_read = lock.is_some_and(|lock| !lock.is_write);
        let of_holder = |holder: &&Holder| {
            map([
                ("token", text(&holder.token)),
                ("fence", Value::Int(holder.fence)),
                ("pttl", Value::Int(milliseconds(holder.deadline, now))),
                ("held-ms", Value::Int(milliseconds(now, holder.since))),
                ("meta", text(&holder.metadata)),
            ])
        };
        let of_waiter = |waiter: &&Waiter| {
            let Asked { token, is_read, is_upgrade, metadata, notify, .. } = &waiter.asked;
            let mode = if *is_upgrade { "upgrade" } else { mode(*is_read) };
            map([
                ("token", text(token)),
                ("mode", text(mode)),
                ("waiting-ms", Value::Int(milliseconds(now, waiter.since))),
                ("timeout-ms", Value::Int(milliseconds(waiter.until, waiter.since))),
                ("meta", text(metadata.as_deref().unwrap_or_default())),
                ("channel", text(notify.as_ref().map_or("", |(channel, _)| channel))),
            ])
        };
        map([
            ("mode", text(if holders.is_empty() { "free" } else { mode(is_read) })),
            ("readers", Value::Int(if is_read { holders.len() as i64 } else { 0 })),
            ("waiters", Value::Int(waiters.len() as i64)),
            ("fence", Value::Int(holders.iter().map(|holder| holder.fence).max().unwrap_or(0))),
            (
                "pttl",
                Value::Int(
                    holders.iter().map(|holder| milliseconds(holder.deadline, now)).max().unwrap_or(0),
                ),
            ),
            ("holders", Value::Array(holders.iter().map(of_holder).collect())),
            ("queue", Value::Array(waiters.iter().map(of_waiter).collect())),
        ])
    }

    fn queues(&self) -> Value {
        let now = Instant::now();
        let mut seen = HashSet::new();
        let waited =
            self.queue.iter().flat_map(|waiter| waiter.asked.keys.iter().map(move |key| (key, waiter.since)));
        let queues = waited.filter(|(key, _)| seen.insert(*key));
        let queue = |(key, since): (&String, Instant)| {
            map([("key", text(key)), ("longest-wait-ms", Value::Int(milliseconds(now, since)))])
        };
        Value::Array(vec![text("0"), Value::Array(queues.map(queue).collect())])
    }
}

fn mode(is_read: bool) -> &'static str {
    if is_read { "read" } else { "write" }
}

fn text(text: &str) -> Value {
    Value::BulkString(text.as_bytes().to_vec())
}

fn map<const N: usize>(fields: [(&str, Value); N]) -> Value {
    Value::Map(fields.into_iter().map(|(name, value)| (text(name), value)).collect())
}

fn milliseconds(later: Instant, earlier: Instant) -> i64 {
    later.saturating_duration_since(earlier).as_millis() as i64
}
