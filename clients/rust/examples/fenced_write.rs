//! A holder that was stopped past its ttl must not write. The fence sees to it, whatever the clocks say.
//!
//! Two owners follow each other. The first one's late write carries a lesser fence, and the storage (here a
//! hash in Redis, written by a script) refuses it.
//!
//! Run it with a server that has the module at `REDIS_URL`, or on port 6379:
//!
//! ```text
//! cargo run --example fenced_write
//! ```

use std::time::Duration;

use redis::{Client, Cmd, RedisResult, aio::MultiplexedConnection};
use slock_client::{Error, Locks};

/// Writes unless a later owner has written already. Keys: the data. Arguments: the fence, the value.
const WRITE: &str = "
    local seen = tonumber(redis.call('HGET', KEYS[1], 'fence') or '0')
    if tonumber(ARGV[1]) < seen then
        return 0
    end
    redis.call('HSET', KEYS[1], 'fence', ARGV[1], 'value', ARGV[2])
    return 1
";

async fn write(redis: &mut MultiplexedConnection, fence: i64, value: &str) -> RedisResult<bool> {
    let mut command = Cmd::new();
    command.arg("EVAL").arg(WRITE).arg(1).arg("fenced:report").arg(fence).arg(value);
    command.query_async(redis).await
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1:6379/".to_owned());
    let client = Client::open(url)?;
    let mut redis = client.get_multiplexed_async_connection().await?;
    let locks = Locks::new(client);

    // Without a watchdog the hold ends as that of a stopped process does.
    let stopped = locks.write("fenced:lock").ttl(Duration::from_millis(50)).renew(false).acquire().await?;
    println!("the first owner has fence {}", stopped.fence());
    println!("its hold was lost: {}", stopped.lost().await);

    let next = locks.write("fenced:lock").acquire().await?;
    println!("the next owner has fence {}", next.fence());
    assert!(write(&mut redis, next.fence(), "by the next owner").await?);

    // A careful program asks first. One that cannot know that it was stopped is refused by the fence.
    assert!(matches!(stopped.check(), Err(Error::Lost { .. })));
    assert!(!write(&mut redis, stopped.fence(), "late").await?);
    println!("the late write was refused");

    next.release().await?;
    locks.close().await;
    Ok(())
}
