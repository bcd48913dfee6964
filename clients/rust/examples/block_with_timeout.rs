//! A block under a lock, with a limit for the wait: what redis-objects calls `lock.lock { … }`.
//!
//! Run it with a server that has the module at `REDIS_URL`, or on port 6379:
//!
//! ```text
//! cargo run --example block_with_timeout
//! ```

use std::time::Duration;

use redis::Client;
use slock_client::{Error, Locks};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1:6379/".to_owned());
    let locks = Locks::new(Client::open(url)?);
    let request = locks
        .write("block:lock")
        // The lock is free this long after a crash. While the work goes on it is renewed.
        .ttl(Duration::from_secs(3))
        // Nobody waits longer than this.
        .wait(Duration::from_millis(500))
        .metadata("host=web-1 task=import");

    let fence = request
        .run(|hold| async move {
            println!("working under fencing token {}", hold.fence());
            tokio::time::sleep(Duration::from_millis(100)).await;
            hold.fence()
        })
        .await?;
    println!("done under fencing token {fence}");

    let held = request.acquire().await?;
    match request.run(|_| async { println!("never printed") }).await {
        Err(Error::TimedOut { .. }) => println!("another has the lock"),
        other => other?,
    }
    held.release().await?;
    locks.close().await;
    Ok(())
}
