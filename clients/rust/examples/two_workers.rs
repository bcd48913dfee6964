//! Two workers add to one counter by GET and SET. Under the lock no addition is lost.
//!
//! Run it with a server that has the module at `REDIS_URL` or on port 6379:
//!
//! ```text
//! cargo run --release --example two_workers -- 1000000
//! ```
//!
//! The argument is the number of additions of each worker, 1,000 without one.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncCommands, AsyncConnectionConfig, Client};
use slock_client::{Error, Locks, Request};

const COUNTER: &str = "two-workers:counter";

async fn add(request: Request, mut redis: MultiplexedConnection, additions: u64) -> Result<(), Error> {
    for _ in 0..additions {
        let hold = request.acquire().await?;
        let count: Option<u64> = redis.get(COUNTER).await?;
        let () = redis.set(COUNTER, count.unwrap_or(0) + 1).await?;
        hold.release().await?;
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let additions = match std::env::args().nth(1) {
        Some(number) => number.parse()?,
        None => 1_000,
    };
    let url = std::env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1:6379/".to_owned());
    let client = Client::open(url)?;
    // The crate's own limit, half a second, is short for a busy machine.
    let config = AsyncConnectionConfig::new().set_response_timeout(Some(Duration::from_secs(5)));
    let mut redis = client.get_multiplexed_async_connection_with_config(&config).await?;
    let locks = Locks::new(client);
    let () = redis.del(COUNTER).await?;

    let request = locks.write("two-workers:lock");
    let first = tokio::spawn(add(request.clone(), redis.clone(), additions));
    let second = tokio::spawn(add(request, redis.clone(), additions));
    first.await??;
    second.await??;

    let count: u64 = redis.get(COUNTER).await?;
    println!("{count} of {} additions", 2 * additions);
    assert_eq!(count, 2 * additions);
    locks.close().await;
    Ok(())
}
