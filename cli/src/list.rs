// SPDX-License-Identifier: MIT OR Apache-2.0

//! `slock ls`, `old`, `queues` and `info`: what is held and what is waited for. Reads only.

use std::time::Duration;

use serde_json::{Value as Json, json};
use slock_client::redis::{Value, cmd, from_redis_value};

use crate::address::Place;
use crate::failure::{Failure, error_of, is_module_missing};
use crate::nodes::{self, Node, full_info, json_of};
use crate::table::{self, clean, duration, milliseconds, owner};

/// The name of a lock: any bytes.
pub type Name = Vec<u8>;

/// How many keys of a server are looked at in one step, at first and at most.
const FIRST_SLICE: usize = 10;
pub const SLICE: usize = 500;
/// If the names of a step have more bytes, the next step is as short as can be.
const SLICE_BYTES: usize = 1 << 20;
/// No command of the module takes a longer name, in bytes. RENAME and COPY make them.
const LONGEST_NAME: usize = 1024;
/// How many readers of one lock are looked at; the oldest come first.
const READERS: usize = 100;

/// The locks that are held, by name.
pub async fn ls(place: &Place, pattern: Option<&str>, most: usize, as_json: bool) -> Result<u8, Failure> {
    let most = if most == 0 { usize::MAX } else { most };
    let mut locks = Vec::new();
    for mut node in nodes::primaries(place).await? {
        let mut slices = Slices::new(place, pattern);
        let before = locks.len();
        while locks.len() <= most
            && let Some(some) = slices.next(place, &mut node, 1).await?
        {
            locks.extend(some);
        }
        slices.tell_of_long_names(&node);
        if locks.len() == before {
            has_module(&mut node).await?;
        }
    }
    if locks.len() > most {
        locks.truncate(most);
        table::say("there are more: --count 0 lists all");
    }
    locks.sort_by(|one, other| one["key"].as_str().cmp(&other["key"].as_str()));
    if as_json {
        table::print_json(&Json::Array(locks));
        return Ok(0);
    }
    let row = |lock: &Json| {
        let holders = lock["readers"].as_u64().unwrap_or(0).max(1);
        vec![
            name_of(lock),
            text(&lock["mode"]),
            holders.to_string(),
            lock["waiters"].to_string(),
            age(&lock["holders"][0]["held-ms"]),
            age(&lock["pttl"]),
            owner(&lock["holders"][0]),
        ]
    };
    let rows: Vec<_> = locks.iter().map(row).collect();
    show(&["KEY", "MODE", "HOLDERS", "WAITERS", "HELD", "LEFT", "HOLDER"], &rows, "no locks are held");
    Ok(0)
}

/// Holds that are older than this, the oldest first.
pub async fn old(place: &Place, held_for: Duration, as_json: bool) -> Result<u8, Failure> {
    let mut holds = Vec::new();
    for mut node in nodes::primaries(place).await? {
        let mut slices = Slices::new(place, None);
        let mut is_empty = true;
        while let Some(locks) = slices.next(place, &mut node, READERS).await? {
            is_empty &= locks.is_empty();
            for lock in &locks {
                for holder in lock["holders"].as_array().into_iter().flatten() {
                    let mut hold = json!({"key": lock["key"], "node": lock["node"], "mode": lock["mode"]});
                    hold["waiters"] = lock["waiters"].clone();
                    hold["holder"] = holder.clone();
                    if milliseconds(&holder["held-ms"]) >= held_for {
                        holds.push(hold);
                    }
                }
            }
        }
        slices.tell_of_long_names(&node);
        if is_empty {
            has_module(&mut node).await?;
        }
    }
    holds.sort_by_key(|hold| std::cmp::Reverse(hold["holder"]["held-ms"].as_u64()));
    if as_json {
        table::print_json(&Json::Array(holds));
        return Ok(0);
    }
    let row = |hold: &Json| {
        let holder = &hold["holder"];
        let token = clean(holder["token"].as_str().unwrap_or(""));
        let waiters = hold["waiters"].to_string();
        vec![name_of(hold), text(&hold["mode"]), age(&holder["held-ms"]), waiters, token, owner(holder)]
    };
    let rows: Vec<_> = holds.iter().map(row).collect();
    let none = format!("nothing is held for {} or longer", duration(held_for));
    show(&["KEY", "MODE", "HELD", "WAITERS", "TOKEN", "HOLDER"], &rows, &none);
    Ok(0)
}

/// The locks that are waited for, the longest wait first.
pub async fn queues(place: &Place, as_json: bool) -> Result<u8, Failure> {
    let mut queues = Vec::new();
    for mut node in nodes::primaries(place).await? {
        let mut cursor = "0".to_owned();
        loop {
            let page = cmd("SLOCK.QUEUES").arg("COUNT").arg(0).arg("CURSOR").arg(cursor).clone();
            let page = json_of(&node.answer(page).await?);
            for mut queue in page[1].as_array().cloned().unwrap_or_default() {
                let name = queue["key"].as_str().unwrap_or("").to_owned();
                let Some(key) = place.key(name.as_bytes()) else { continue };
                queue["key"] = json!(String::from_utf8_lossy(key));
                queue["node"] = json!(node.address);
                queues.push(queue);
            }
            cursor = page[0].as_str().unwrap_or("0").to_owned();
            if cursor == "0" {
                break;
            }
        }
    }
    queues.sort_by_key(|queue| std::cmp::Reverse(queue["longest-wait-ms"].as_u64()));
    if as_json {
        table::print_json(&Json::Array(queues));
        return Ok(0);
    }
    let row = |queue: &Json| {
        let next = clean(queue["next"].as_str().unwrap_or(""));
        let (waiters, writers) = (queue["waiters"].to_string(), queue["writers"].to_string());
        let (waits, held) = (age(&queue["longest-wait-ms"]), age(&queue["held-ms"]));
        vec![name_of(queue), waiters, writers, waits, text(&queue["mode"]), held, next]
    };
    let rows: Vec<_> = queues.iter().map(row).collect();
    let headings = ["KEY", "WAITERS", "WRITERS", "LONGEST", "HELD FOR", "HELD", "NEXT"];
    show(&headings, &rows, "nobody waits");
    Ok(0)
}

/// Who holds one lock and who waits for it.
pub async fn info(place: &Place, key: &str, as_json: bool) -> Result<u8, Failure> {
    let mut node = nodes::of_key(place, key).await?;
    let mut info = json_of(&node.answer(full_info(place.full(key), 0)).await?);
    if as_json {
        if info.is_object() {
            info["key"] = json!(key);
        }
        table::print_json(&info);
        return Ok(0);
    }
    if info.is_null() {
        table::put(&format!("{} is free", clean(key)));
        return Ok(0);
    }
    let held = match info["mode"].as_str() {
        Some("write") => "held for write".to_owned(),
        Some("read") => format!("held by {} for read", info["readers"]),
        _ => "free".to_owned(),
    };
    table::put(&format!("{} is {held}, {} wait", clean(key), info["waiters"]));
    let holder = |holder: &Json| {
        let token = clean(holder["token"].as_str().unwrap_or(""));
        let ages = [age(&holder["held-ms"]), age(&holder["pttl"])];
        [vec![token, holder["fence"].to_string()], ages.to_vec(), vec![owner(holder)]].concat()
    };
    let waiter = |waiter: &Json| {
        let token = clean(waiter["token"].as_str().unwrap_or(""));
        let limit = match waiter["timeout-ms"].as_u64() {
            Some(0) | None => "-".to_owned(),
            Some(limit) => duration(Duration::from_millis(limit)),
        };
        vec![token, text(&waiter["mode"]), age(&waiter["waiting-ms"]), limit, owner(waiter)]
    };
    let rows = |name: &str| info[name].as_array().cloned().unwrap_or_default();
    let holders: Vec<_> = rows("holders").iter().map(holder).collect();
    let waiters: Vec<_> = rows("queue").iter().map(waiter).collect();
    if !holders.is_empty() {
        table::put("");
        table::print(&["TOKEN", "FENCE", "HELD", "LEFT", "HOLDER"], &holders);
    }
    if !waiters.is_empty() {
        table::put("");
        table::print(&["TOKEN", "WANTS", "WAITING", "AT MOST", "WAITER"], &waiters);
    }
    Ok(0)
}

/// A server without the module has no locks either: that is worth an error. Of a node of a cluster, and for a user
/// who may not ask, the answer is another error.
async fn has_module(node: &mut Node) -> Result<(), Failure> {
    let answers = node
        .answers(&[cmd("SLOCK.INFO").arg("slock").clone()])
        .await
        .map_err(|error| node.failure(&error))?;
    match answers.first().and_then(error_of).filter(is_module_missing) {
        Some(error) => Err(node.failure(&error)),
        None => Ok(()),
    }
}

fn show(headings: &[&str], rows: &[Vec<String>], none: &str) {
    if rows.is_empty() {
        table::put(none);
    } else {
        table::print(headings, rows);
    }
}

fn name_of(lock: &Json) -> String {
    clean(lock["key"].as_str().unwrap_or(""))
}

fn text(value: &Json) -> String {
    value.as_str().unwrap_or("-").to_owned()
}

fn age(value: &Json) -> String {
    if value.is_null() { "-".to_owned() } else { duration(milliseconds(value)) }
}

/// The locks of a server whose keys begin with the prefix, a slice of its keys after the other, so that neither the
/// server nor the memory here is kept long.
pub struct Slices {
    pattern: Option<String>,
    cursor: Option<String>,
    count: usize,
    /// How many names were left out because they are too long.
    long: usize,
}

impl Slices {
    pub fn new(place: &Place, pattern: Option<&str>) -> Self {
        let prefix = place.prefix();
        let pattern = match pattern {
            None if prefix.is_empty() => None,
            pattern => Some(format!("{}{}", without_wildcards(prefix), pattern.unwrap_or("*"))),
        };
        Self { pattern, cursor: Some("0".to_owned()), count: FIRST_SLICE, long: 0 }
    }

    /// The names in the next slice of at most so many keys; nothing when all keys were looked at.
    pub async fn next_names(&mut self, node: &mut Node, most: usize) -> Result<Option<Vec<Name>>, Failure> {
        let Some(cursor) = self.cursor.take() else { return Ok(None) };
        let count = self.count.min(most);
        let mut scan = cmd("SCAN").arg(cursor).arg("COUNT").arg(count).arg("TYPE").arg("SLOCK-RWL").clone();
        if let Some(pattern) = &self.pattern {
            scan.arg("MATCH").arg(pattern);
        }
        let (cursor, mut names): (String, Vec<Name>) =
            from_redis_value(node.answer(scan).await?).map_err(|error| node.failure(&error.into()))?;
        self.cursor = Some(cursor).filter(|cursor| cursor != "0");
        let bytes: usize = names.iter().map(Vec::len).sum();
        self.count = if bytes > SLICE_BYTES { 1 } else { (count * 2).min(SLICE) };
        let found = names.len();
        names.retain(|name| name.len() <= LONGEST_NAME);
        self.long += found - names.len();
        Ok(Some(names))
    }

    async fn next(
        &mut self,
        place: &Place,
        node: &mut Node,
        holders: usize,
    ) -> Result<Option<Vec<Json>>, Failure> {
        let Some(names) = self.next_names(node, SLICE).await? else { return Ok(None) };
        Ok(Some(locks(place, node, &names, holders).await?.into_iter().map(|(_, lock)| lock).collect()))
    }

    fn tell_of_long_names(&self, node: &Node) {
        if self.long > 0 {
            table::say(&format!(
                "{}: {} longer than {LONGEST_NAME} bytes, which no SLOCK command takes, left out",
                node.address,
                table::count(self.long, "key")
            ));
        }
    }
}

/// For a pattern that matches just this text.
fn without_wildcards(text: &str) -> String {
    let escape = |c: char| if "*?[]^\\-".contains(c) { format!("\\{c}") } else { c.to_string() };
    text.chars().map(escape).collect()
}

/// What the server tells of these locks, by name: `key` and `node` beside what SLOCK.INFO says. Those that have ended,
/// or that the user may not read, are left out.
pub async fn locks(
    place: &Place,
    node: &mut Node,
    names: &[Name],
    holders: usize,
) -> Result<Vec<(Name, Json)>, Failure> {
    let commands: Vec<_> = names.iter().map(|name| full_info(name.as_slice(), holders)).collect();
    let answers = node.answers(&commands).await.map_err(|error| node.failure(&error))?;
    unless_all_fail(node, &answers)?;
    let mut locks = Vec::new();
    for (name, answer) in names.iter().zip(&answers) {
        let mut lock = json_of(answer);
        if let Some(key) = place.key(name).filter(|_| lock.is_object()) {
            lock["key"] = json!(String::from_utf8_lossy(key));
            lock["node"] = json!(node.address);
            locks.push((name.clone(), lock));
        }
    }
    Ok(locks)
}

/// That the module is missing, or that all of it is forbidden, is worth an error; that the user may not read some of the
/// locks is not.
pub fn unless_all_fail(node: &Node, answers: &[Value]) -> Result<(), Failure> {
    match answers.first().and_then(error_of).filter(|error| error.code() != Some("WRONGTYPE")) {
        Some(error) if answers.iter().all(|answer| error_of(answer).is_some()) => Err(node.failure(&error)),
        _ => Ok(()),
    }
}
