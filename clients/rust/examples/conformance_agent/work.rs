//! Many tasks that lock at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use redis::{FromRedisValue, cmd};
use serde_json::{Value, json};
use slock_client::Request;
use tokio::task::JoinSet;

use crate::fields::Fields;
use crate::place::Raw;
use crate::state::{Failed, Opened};

/// What one task does under the lock.
#[derive(Clone)]
struct Task {
    request: Request,
    connection: Raw,
    counter: String,
    additions: u64,
    is_limited: bool,
    most: Arc<AtomicU64>,
}

pub async fn count(opened: &Opened, operation: &Value) -> Result<Value, Failed> {
    let task = Task {
        request: operation.request(&opened.locks),
        connection: opened.place.connect().await?,
        counter: operation.text("counter").unwrap_or_default(),
        additions: operation.number("additions").unwrap_or(1),
        is_limited: operation.number("limit").is_some(),
        most: Arc::default(),
    };
    let tasks = operation.number("tasks").unwrap_or(1);
    all((0..tasks).map(|_| task.clone().run())).await?;
    Ok(json!({ "done": tasks * task.additions, "most": task.most.load(Ordering::Relaxed) }))
}

impl Task {
    async fn run(mut self) -> Result<(), Failed> {
        for _ in 0..self.additions {
            let hold = self.request.acquire().await?;
            let inside = self.step().await;
            self.most.fetch_max(inside?, Ordering::Relaxed);
            hold.release().await?;
        }
        Ok(())
    }

    async fn ask<T: FromRedisValue>(&mut self, command: &redis::Cmd) -> Result<T, Failed> {
        Ok(command.query_async(&mut self.connection).await?)
    }

    async fn step(&mut self) -> Result<u64, Failed> {
        let counter = self.counter.clone();
        if self.is_limited {
            let inside = self.ask(cmd("INCR").arg(&counter)).await?;
            let _: i64 = self.ask(cmd("DECR").arg(&counter)).await?;
            return Ok(inside);
        }
        let before: Option<u64> = self.ask(cmd("GET").arg(&counter)).await?;
        let () = self.ask(cmd("SET").arg(&counter).arg(before.unwrap_or(0) + 1)).await?;
        Ok(1)
    }
}

pub async fn wait_many(opened: &Opened, operation: &Value) -> Result<Value, Failed> {
    let (request, tasks) = (operation.request(&opened.locks), operation.number("tasks").unwrap_or(1));
    let waits = (0..tasks).map(|_| {
        let request = request.clone();
        async move { Ok(request.acquire().await?.release().await?) }
    });
    all(waits).await?;
    Ok(json!({ "done": tasks }))
}

pub async fn all(
    works: impl Iterator<Item = impl Future<Output = Result<(), Failed>> + Send + 'static>,
) -> Result<(), Failed> {
    let mut running: JoinSet<_> = works.collect();
    while let Some(ended) = running.join_next().await {
        ended.map_err(Failed::other)??;
    }
    Ok(())
}

/// Occupies the program's connection, if it has given one to the locks.
pub async fn fill_pool(opened: &Opened, operation: &Value) -> Result<Value, Failed> {
    if let Some(mut connection) = opened.place.given.clone() {
        let seconds = operation.duration("ms").unwrap_or_default().as_secs_f64();
        let command = cmd("BLPOP").arg("occupied").arg(seconds).take();
        tokio::spawn(async move { drop(command.query_async::<redis::Value>(&mut connection).await) });
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(json!({}))
}
