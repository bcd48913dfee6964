//! Many tasks that lock at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use redis::cmd;
use serde_json::{Value, json};
use slock_client::{Mode, Request};
use tokio::task::JoinSet;

use crate::fields::Fields;
use crate::operations::opened;
use crate::raw::{Place, Raw};
use crate::state::{Failed, State};

/// What one task does under the lock, and how many it saw inside.
#[derive(Clone)]
struct Task {
    request: Request,
    place: Place,
    counter: String,
    additions: u64,
    limited: bool,
    inside: Arc<AtomicU64>,
}

pub async fn count(state: &State, operation: &Value) -> Result<Value, Failed> {
    let opened = opened(state, operation)?;
    let mut request =
        opened.clone().locks()?.request(operation.text("key").unwrap_or_default(), operation.mode());
    if let Some(ttl) = operation.duration("ttl_ms") {
        request = request.ttl(ttl);
    }
    let limit = operation.number("limit").filter(|_| operation.mode() == Mode::Read);
    if let Some(limit) = limit {
        request = request.limit(limit.try_into().expect("a small number"));
    }
    let task = Task {
        request,
        place: opened.place,
        counter: operation.text("counter").unwrap_or_default(),
        additions: operation.number("additions").unwrap_or(1),
        limited: limit.is_some(),
        inside: Arc::default(),
    };
    let tasks = operation.number("tasks").unwrap_or(1);
    let mut running = JoinSet::new();
    for _ in 0..tasks {
        running.spawn(task.clone().run());
    }
    let mut most = 0;
    while let Some(ended) = running.join_next().await {
        most = most.max(ended.map_err(Failed::other)??);
    }
    Ok(json!({ "done": tasks * task.additions, "most": most }))
}

impl Task {
    async fn run(self) -> Result<u64, Failed> {
        let mut raw = self.place.connect().await?;
        let mut most = 0;
        for _ in 0..self.additions {
            let hold = self.request.acquire().await?;
            let inside = self.inside.fetch_add(1, Ordering::SeqCst) + 1;
            let seen = self.step(&mut raw).await;
            self.inside.fetch_sub(1, Ordering::SeqCst);
            most = most.max(seen?.unwrap_or(inside));
            hold.release().await?;
        }
        Ok(most)
    }

    /// Gives how many are inside, where the server counts them.
    async fn step(&self, raw: &mut Raw) -> Result<Option<u64>, Failed> {
        if self.limited {
            let inside = raw.ask(cmd("INCR").arg(&self.counter)).await?;
            tokio::task::yield_now().await;
            let _: i64 = raw.ask(cmd("DECR").arg(&self.counter)).await?;
            return Ok(Some(inside));
        }
        let before: Option<u64> = raw.ask(cmd("GET").arg(&self.counter)).await?;
        let _: () = raw.ask(cmd("SET").arg(&self.counter).arg(before.unwrap_or(0) + 1)).await?;
        Ok(None)
    }
}

pub async fn wait_many(state: &State, operation: &Value) -> Result<Value, Failed> {
    let opened = opened(state, operation)?;
    let mut request = opened.clone().locks()?.write(operation.text("key").unwrap_or_default());
    if let Some(ttl) = operation.duration("ttl_ms") {
        request = request.ttl(ttl);
    }
    let tasks = operation.number("tasks").unwrap_or(1);
    let mut running = JoinSet::new();
    for _ in 0..tasks {
        let request = request.clone();
        running.spawn(async move { request.acquire().await?.release().await });
    }
    while let Some(ended) = running.join_next().await {
        ended.map_err(Failed::other)??;
    }
    Ok(json!({ "done": tasks }))
}
