//! What the library costs, beside the same commands by the redis crate.

use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, cmd};
use serde_json::{Value, json};
use slock_client::{Locks, Request};

use crate::fields::Fields;
use crate::state::{Failed, Opened};
use crate::work::all;

const IN_ONE_TURN: usize = 100;
const TURNS: u64 = 5;
const METADATA: &str = "host=example pid=12345";

/// Without the hooks of the agent, which the plain commands have not either.
fn locks(opened: &Opened) -> Result<Locks, Failed> {
    Ok(Locks::new(opened.place.client()?))
}

/// As long as a token of the library, and another one for each pair of each process, as those are.
fn raw_token() -> String {
    static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    format!("raw:{:08}{:010}", std::process::id(), NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed))
}

/// A machine that is busy is measured, not failed.
fn no_limit() -> AsyncConnectionConfig {
    AsyncConnectionConfig::new().set_response_timeout(None)
}

pub async fn cost(opened: &Opened, operation: &Value) -> Result<Value, Failed> {
    let locks = locks(opened)?;
    let request = locks.write("cost").renew(false);
    let raw = opened.place.client()?.get_multiplexed_async_connection_with_config(&no_limit()).await?;
    let (mut by_library, mut by_hand) = (Vec::new(), Vec::new());
    while (by_hand.len() as u64) < operation.number("rounds").unwrap_or(1000) {
        for _ in 0..IN_ONE_TURN {
            let start = Instant::now();
            request.acquire().await?.release().await?;
            by_library.push(start.elapsed());
        }
        for _ in 0..IN_ONE_TURN {
            let start = Instant::now();
            pair(&mut raw.clone(), "cost", &[]).await?;
            by_hand.push(start.elapsed());
        }
    }
    locks.close().await;
    Ok(json!({ "client_us": median(by_library), "raw_us": median(by_hand) }))
}

/// A lock and unlock word for word as the library sends them.
async fn pair(connection: &mut MultiplexedConnection, key: &str, wait: &[&str]) -> Result<(), Failed> {
    let token = raw_token();
    let mut lock = cmd("SLOCK.LOCK");
    lock.arg((key, &token, 10_000, "META", METADATA)).arg(wait);
    let _: i64 = lock.query_async(connection).await?;
    let unlock = cmd("SLOCK.MUNLOCK").arg((1, key, &token, "REFUSE", 120_000)).take();
    let _: i64 = unlock.query_async(connection).await?;
    Ok(())
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times[times.len() / 2].as_secs_f64() * 1e6
}

/// Each task has a lock of its own.
pub async fn pairs(opened: &Opened, operation: &Value) -> Result<Value, Failed> {
    let shared = opened.place.client()?.get_multiplexed_async_connection_with_config(&no_limit()).await?;
    let connections = std::iter::repeat(shared);
    compare(opened, operation, connections, |task| format!("pairs:{task}"), &[]).await
}

/// All tasks have one lock. By the redis crate each waits on a connection of its own.
pub async fn handoffs(opened: &Opened, operation: &Value) -> Result<Value, Failed> {
    let client = opened.place.client()?;
    let mut connections = Vec::new();
    for _ in 0..operation.number("tasks").unwrap_or(16) {
        connections.push(client.get_multiplexed_async_connection_with_config(&no_limit()).await?);
    }
    let key = operation.text("key").unwrap_or("handoffs".into());
    compare(opened, operation, connections.into_iter().cycle(), |_| key.clone(), &["WAIT", "0"]).await
}

/// The medians of turns by the library and by hand. The first turns make the connections.
async fn compare(
    opened: &Opened,
    operation: &Value,
    connections: impl Iterator<Item = MultiplexedConnection> + Clone,
    key: impl Fn(u64) -> String,
    wait: &'static [&'static str],
) -> Result<Value, Failed> {
    let locks = locks(opened)?;
    let tasks = operation.number("tasks").unwrap_or(16);
    let rounds = operation.number("rounds").unwrap_or(1000).div_ceil(TURNS);
    let (mut by_library, mut by_hand) = (Vec::new(), Vec::new());
    for turn in 0..=TURNS {
        let start = Instant::now();
        all((0..tasks).map(|task| by_the_library(locks.write(key(task)).renew(false), rounds))).await?;
        let library = start.elapsed();
        let start = Instant::now();
        let pairs = (0..tasks)
            .zip(connections.clone())
            .map(|(task, connection)| plain(connection, key(task), wait, rounds));
        all(pairs).await?;
        if turn > 0 {
            by_library.push(library);
            by_hand.push(start.elapsed());
        }
    }
    locks.close().await;
    Ok(json!({ "library_us": median(by_library) * TURNS as f64, "raw_us": median(by_hand) * TURNS as f64 }))
}

async fn by_the_library(request: Request, rounds: u64) -> Result<(), Failed> {
    for _ in 0..rounds {
        request.acquire().await?.release().await?;
    }
    Ok(())
}

async fn plain(
    mut connection: MultiplexedConnection,
    key: String,
    wait: &'static [&'static str],
    rounds: u64,
) -> Result<(), Failed> {
    for _ in 0..rounds {
        pair(&mut connection, &key, wait).await?;
    }
    Ok(())
}
