//! Many tasks at once, through the library and by the same commands of the base library, in turns.

use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, cmd};
use serde_json::{Value, json};
use slock_client::{Locks, Request};
use tokio::task::JoinSet;

use crate::fields::Fields;
use crate::operations::opened;
use crate::state::{Failed, State};

const TURNS: u64 = 10;
const TTL_MS: u64 = 10_000;

struct Sizes {
    tasks: u64,
    rounds_in_one_turn: u64,
}

impl Sizes {
    fn of(operation: &Value) -> Self {
        let rounds = operation.number("rounds").unwrap_or(1000);
        Self { tasks: operation.number("tasks").unwrap_or(16), rounds_in_one_turn: rounds.div_ceil(TURNS) }
    }
}

/// Each task has a lock of its own.
pub async fn pairs(state: &State, operation: &Value) -> Result<Value, Failed> {
    let opened = opened(state, operation)?;
    // Without the hooks of the agent, which the plain commands have not either.
    let (locks, sizes) = (Locks::new(opened.place.server()?), Sizes::of(operation));
    let shared = opened.place.client()?.get_multiplexed_async_connection().await?;
    let (mut by_library, mut by_hand) = (Duration::ZERO, Duration::ZERO);
    for _ in 0..TURNS {
        let requests = (0..sizes.tasks).map(|task| request(&locks, &format!("pairs:{task}")));
        by_library += time(requests.map(|request| by_the_library(request, sizes.rounds_in_one_turn))).await?;
        let connections = (0..sizes.tasks).map(|task| (format!("pairs:{task}"), shared.clone()));
        let pairs =
            connections.map(|(key, shared)| plain(shared, key, raw_token(0), &[], sizes.rounds_in_one_turn));
        by_hand += time(pairs).await?;
    }
    Ok(json!({ "library_us": by_library.as_micros(), "raw_us": by_hand.as_micros() }))
}

/// All tasks have one lock. By the base library each waits on a connection of its own.
pub async fn handoffs(state: &State, operation: &Value) -> Result<Value, Failed> {
    let opened = opened(state, operation)?;
    // Without the hooks of the agent, which the plain commands have not either.
    let (locks, sizes) = (Locks::new(opened.place.server()?), Sizes::of(operation));
    let key = operation.text("key").unwrap_or("handoffs".into());
    let client = opened.place.client()?;
    let no_limit = AsyncConnectionConfig::new().set_response_timeout(None);
    let mut connections = Vec::new();
    for _ in 0..sizes.tasks {
        connections.push(client.get_multiplexed_async_connection_with_config(&no_limit).await?);
    }
    let (mut by_library, mut by_hand) = (Duration::ZERO, Duration::ZERO);
    for _ in 0..TURNS {
        let requests = (0..sizes.tasks).map(|_| request(&locks, &key));
        by_library += time(requests.map(|request| by_the_library(request, sizes.rounds_in_one_turn))).await?;
        let pairs = connections.iter().cloned().enumerate().map(|(task, connection)| {
            let token = raw_token(task);
            plain(connection, key.clone(), token, &["WAIT", "0"], sizes.rounds_in_one_turn)
        });
        by_hand += time(pairs).await?;
    }
    Ok(json!({ "library_us": by_library.as_micros(), "raw_us": by_hand.as_micros() }))
}

/// As long as a token of the library.
fn raw_token(task: usize) -> String {
    format!("raw:{task:018}")
}

fn request(locks: &Locks, key: &str) -> Request {
    locks.write(key).ttl(Duration::from_millis(TTL_MS)).renew(false)
}

/// How long it takes until all of these have ended.
async fn time<F>(works: impl Iterator<Item = F>) -> Result<Duration, Failed>
where
    F: Future<Output = Result<(), Failed>> + Send + 'static,
{
    let mut running = JoinSet::new();
    let start = Instant::now();
    works.for_each(|work| drop(running.spawn(work)));
    while let Some(ended) = running.join_next().await {
        ended.map_err(Failed::other)??;
    }
    Ok(start.elapsed())
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
    token: String,
    wait: &'static [&'static str],
    rounds: u64,
) -> Result<(), Failed> {
    for _ in 0..rounds {
        let mut lock = cmd("SLOCK.LOCK");
        lock.arg(&key).arg(&token).arg(TTL_MS).arg(wait);
        let fence: i64 = lock.query_async(&mut connection).await?;
        let mut unlock = cmd("SLOCK.UNLOCK");
        unlock.arg(&key).arg(&token).arg("FENCE").arg(fence);
        let _: i64 = unlock.query_async(&mut connection).await?;
    }
    Ok(())
}
