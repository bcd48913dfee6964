//! A process that was paused past its ttl must not write. The fencing token prevents it, whatever the clocks say.
//!
//! Two owners follow each other. The late write of the first one carries a smaller fencing token, and the storage (here a
//! hash in Redis, written by a script) refuses it.
//!
//! Run it with a server that has the module at `REDIS_URL`, or on port 6379:
//!
//! ```text
//! cargo run --example fenced_write
//! ```

use std::time::Duration;

use redis::{AsyncConnectionConfig, Client, Cmd, RedisResult, aio::MultiplexedConnection};
use slock_client::{Error, Locks};

/// Writes unless a later owner has written already. Keys: the data. Arguments: the fencing token, the value.
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
    // The crate's own limit, half a second, is short for a busy machine.
    let config = AsyncConnectionConfig::new().set_response_timeout(Some(Duration::from_secs(5)));
    let mut redis = client.get_multiplexed_async_connection_with_config(&config).await?;
    let locks = Locks::new(client);

    // Without renewals the lock ends as that of a paused process does.
    let stopped = locks.write("fenced:lock").ttl(Duration::from_millis(50)).renew(false).acquire().await?;
    println!("the first owner has fencing token {}", stopped.fence());
    println!("its hold was lost: {}", stopped.lost().await);

    let next = locks.write("fenced:lock").acquire().await?;
    println!("the next owner has fencing token {}", next.fence());
    assert!(write(&mut redis, next.fence(), "by the next owner").await?);

    // A careful program checks first. One that does not know of its pause is refused by the fencing token.
    assert!(matches!(stopped.check(), Err(Error::Lost { .. })));
    assert!(!write(&mut redis, stopped.fence(), "late").await?);
    println!("the late write was refused");

    next.release().await?;
    locks.close().await;
    Ok(())
}
