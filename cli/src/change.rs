// SPDX-License-Identifier: MIT OR Apache-2.0

//! `slock check` and `wait`: one lock, from outside of a command.

use std::time::Duration;

use serde_json::json;
use slock_client::redis::{Value, cmd};
use tokio::time::{Instant, sleep};

use crate::address::Place;
use crate::failure::{Failure, NO, NOT_OBTAINED};
use crate::nodes::{self, json_of};
use crate::table::{self, clean, duration};

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Whether a live holder has this fence.
pub async fn check(place: &Place, key: &str, fence: i64, as_json: bool) -> Result<u8, Failure> {
    let mut node = nodes::of_key(place, key).await?;
    let live =
        node.answer(cmd("SLOCK.CHECK").arg(place.full(key)).arg(fence).clone()).await? == Value::Int(1);
    let yes = format!("a live holder of {} has this fence", clean(key));
    answer(as_json, "live", live, &yes, &format!("no live holder of {} has this fence", clean(key)))
}

pub fn answer(as_json: bool, name: &str, is_yes: bool, yes: &str, no: &str) -> Result<u8, Failure> {
    match as_json {
        true => table::print_json(&json!({ name: is_yes })),
        false => table::put(if is_yes { yes } else { no }),
    }
    Ok(if is_yes { 0 } else { NO })
}

/// Comes back when nobody holds the lock. It asks now and then: whoever joined the queue would take the lock
/// himself.
pub async fn wait(place: &Place, key: &str, limit: Option<Duration>) -> Result<u8, Failure> {
    let end = limit.map(|limit| Instant::now() + limit);
    let mut node = nodes::of_key(place, key).await?;
    let mut pause = FIRST_PAUSE;
    loop {
        let info = json_of(&node.answer(cmd("SLOCK.INFO").arg(place.full(key)).clone()).await?);
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
