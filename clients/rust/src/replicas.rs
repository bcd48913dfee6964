//! Whether enough replicas have a hold.

use std::time::{Duration, Instant};

use redis::{RedisError, Value};

use crate::Error;
use crate::answer::{self, Failure};
use crate::command::{self, Owner, Replicas, milliseconds};
use crate::locks::Inner;
use crate::node::{Node, REPLY_TIMEOUT};
use crate::route::Route;

/// Renews the hold and waits until that has reached the replicas. The server's `WAIT` blocks the connection
/// and asks for what this connection wrote, so both go over one that nobody else uses. Gives when the renewal
/// was sent; nothing when the hold is gone.
pub(crate) async fn confirm(
    inner: &Inner,
    owner: &Owner,
    ttl: Duration,
    wanted: Replicas,
) -> Result<Option<Instant>, Failure> {
    let mut route = Route::new(&inner.servers, owner);
    loop {
        let node = route.node().await?;
        let sent = Instant::now();
        let [renewed, reached] = ask(&node, owner, ttl, wanted).await.map_err(answer::failure)?;
        match answer::number(Ok(renewed)) {
            Ok(Some(1)) => {}
            Ok(_) => return Ok(None),
            Err(failure @ Failure::Moved { .. }) if route.follow(&failure, &node) => continue,
            Err(failure) => return Err(failure),
        }
        let reached = answer::number(Ok(reached))?.and_then(|number| u32::try_from(number).ok()).unwrap_or(0);
        if reached < wanted.least {
            return Err(Failure::Final(Error::TooFewReplicas { wanted: wanted.least, reached }));
        }
        return Ok(Some(sent));
    }
}

async fn ask(node: &Node, owner: &Owner, ttl: Duration, wanted: Replicas) -> Result<[Value; 2], RedisError> {
    let mut connection = node.take_spare().await?;
    let mut commands = redis::pipe();
    commands.add_command(command::extend(owner, ttl));
    commands.cmd("WAIT").arg(wanted.least).arg(milliseconds(wanted.timeout));
    let replies = connection.send_packed_commands(&commands, 0, 2);
    let replies = tokio::time::timeout(wanted.timeout + REPLY_TIMEOUT, replies).await;
    let replies = replies.map_err(|_| answer::no_answer(node.address()))??;
    node.keep_spare(connection);
    replies.try_into().map_err(|_| std::io::Error::from(std::io::ErrorKind::InvalidData).into())
}

/// Keeps the meaning of `min_replicas` in one place: 0 asks for nothing.
pub(crate) fn wanted(least: u32, timeout: Duration) -> Option<Replicas> {
    (least > 0).then_some(Replicas { least, timeout })
}
