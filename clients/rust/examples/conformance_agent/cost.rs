//! What the library adds to the two commands of a lock and unlock.

use std::time::{Duration, Instant};

use redis::cmd;
use serde_json::{Value, json};
use slock_client::Locks;

use crate::fields::Fields;
use crate::operations::opened;
use crate::state::{Failed, State};

const IN_ONE_TURN: usize = 100;
/// As long as a token of the library.
const RAW_TOKEN: &str = "raw:000000000000000000";

pub async fn measure(state: &State, operation: &Value) -> Result<Value, Failed> {
    let opened = opened(state, operation)?;
    let request = Locks::new(opened.place.server()?).write("cost").renew(false);
    let mut raw = opened.place.client()?.get_multiplexed_async_connection().await?;
    let (mut by_library, mut by_hand) = (Vec::new(), Vec::new());
    while (by_hand.len() as u64) < operation.number("rounds").unwrap_or(1000) {
        for _ in 0..IN_ONE_TURN {
            let start = Instant::now();
            request.acquire().await?.release().await?;
            by_library.push(start.elapsed());
        }
        for _ in 0..IN_ONE_TURN {
            let start = Instant::now();
            let mut lock = cmd("SLOCK.LOCK");
            let fence: i64 = lock.arg("cost").arg(RAW_TOKEN).arg(10_000).query_async(&mut raw).await?;
            let mut unlock = cmd("SLOCK.UNLOCK");
            unlock.arg("cost").arg(RAW_TOKEN).arg("FENCE").arg(fence);
            let _: i64 = unlock.query_async(&mut raw).await?;
            by_hand.push(start.elapsed());
        }
    }
    Ok(json!({ "client_us": median(by_library), "raw_us": median(by_hand) }))
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times[times.len() / 2].as_secs_f64() * 1e6
}
