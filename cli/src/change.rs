//! `slock release`, `break`, `check` and `wait`: one lock, from outside of a command.

use std::io::{BufRead, IsTerminal, Write};
use std::time::Duration;

use serde_json::{Value as Json, json};
use slock_client::redis::{Value, cmd};
use slock_client::{Locks, redis};
use tokio::time::{Instant, sleep};

use crate::address::Place;
use crate::failure::{Failure, NO, NOT_OBTAINED};
use crate::nodes::{self, full_info, json_of};
use crate::table::{self, clean, duration, milliseconds, owner};

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Releases what the token holds.
pub async fn release(place: &Place, key: &str, token: &str, as_json: bool) -> Result<u8, Failure> {
    let locks = Locks::new(place.server()?);
    let released = locks.release(key, token).await.map_err(|error| Failure::of(&error, &place.shown))?;
    locks.close().await;
    let yes = format!("{} is released", clean(key));
    answer(as_json, "released", released > 0, &yes, &format!("this token does not hold {}", clean(key)))
}

/// Whether a live holder has this fence.
pub async fn check(place: &Place, key: &str, fence: i64, as_json: bool) -> Result<u8, Failure> {
    let mut node = nodes::of_key(place, key).await?;
    let live = node.answer(cmd("SLOCK.CHECK").arg(key).arg(fence).clone()).await? == Value::Int(1);
    let yes = format!("a live holder of {} has this fence", clean(key));
    answer(as_json, "live", live, &yes, &format!("no live holder of {} has this fence", clean(key)))
}

fn answer(as_json: bool, name: &str, is_yes: bool, yes: &str, no: &str) -> Result<u8, Failure> {
    match as_json {
        true => table::print_json(&json!({ name: is_yes })),
        false => table::put(if is_yes { yes } else { no }),
    }
    Ok(if is_yes { 0 } else { NO })
}

/// Ends the holds that were shown, by their fences: who gets the lock meanwhile keeps it.
pub async fn take_away(place: &Place, key: &str, yes: bool, as_json: bool) -> Result<u8, Failure> {
    let mut node = nodes::of_key(place, key).await?;
    let info = node.answer(full_info(key, 0)).await?;
    let holders: Vec<(redis::Value, Json)> = match field(&info, "holders") {
        Some(Value::Array(holders)) => {
            holders.iter().map(|holder| (holder.clone(), json_of(holder))).collect()
        }
        _ => Vec::new(),
    };
    if holders.is_empty() {
        let no = format!("nobody holds {}", clean(key));
        return answer(as_json, "broken", false, "", &no);
    }
    for (_, holder) in &holders {
        let held = duration(milliseconds(&holder["held-ms"]));
        table::say(&format!("{} is held by '{}' for {held}", clean(key), owner(holder)));
    }
    if !yes && !is_confirmed("Its owner may go on working without it. Break the lock? [y/N] ")? {
        return Err(Failure::new(NO, "not broken"));
    }
    let mut broken = 0;
    for (raw, holder) in &holders {
        let mut release = cmd("SLOCK.MUNLOCK").arg(1).arg(key).clone();
        if let Some(Value::BulkString(token)) = field(raw, "token") {
            release.arg(token);
        }
        let released = node.answer(release.arg("FENCE").arg(holder["fence"].as_i64()).clone()).await?;
        broken += usize::from(released == Value::Int(1));
    }
    let no = "its holders have ended meanwhile".to_owned();
    answer(as_json, "broken", broken > 0, &format!("{} is broken: {broken} holds ended", clean(key)), &no)
}

fn is_confirmed(question: &str) -> Result<bool, Failure> {
    if !std::io::stdin().is_terminal() {
        return Err(Failure::usage("there is no terminal to ask at: --yes breaks without asking"));
    }
    eprint!("{question}");
    let _ = std::io::stderr().flush();
    let mut line = String::new();
    let read = std::io::stdin().lock().read_line(&mut line);
    Ok(read.is_ok() && matches!(line.trim(), "y" | "Y" | "yes"))
}

/// As the server sent it: a token may be any bytes.
fn field<'a>(map: &'a Value, name: &str) -> Option<&'a Value> {
    let Value::Map(pairs) = map else { return None };
    pairs.iter().find(|(key, _)| json_of(key) == name).map(|(_, value)| value)
}

/// Comes back when nobody holds the lock. It asks now and then: whoever joined the queue would take the lock
/// himself.
pub async fn wait(place: &Place, key: &str, limit: Option<Duration>) -> Result<u8, Failure> {
    let end = limit.map(|limit| Instant::now() + limit);
    let mut node = nodes::of_key(place, key).await?;
    let mut pause = FIRST_PAUSE;
    loop {
        let info = json_of(&node.answer(cmd("SLOCK.INFO").arg(key).clone()).await?);
        if info.is_null() || info["mode"] == "free" {
            return Ok(0);
        }
        let left = end.map(|end| end.saturating_duration_since(Instant::now()));
        if left == Some(Duration::ZERO) {
            let line = format!("{} is still held after {}", clean(key), duration(limit.unwrap_or_default()));
            return Err(Failure::new(NOT_OBTAINED, line));
        }
        sleep(left.map_or(pause, |left| left.min(pause))).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}
