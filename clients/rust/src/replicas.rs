//! Whether enough replicas have a hold.

use std::time::Duration;

use redis::Value;

use crate::answers::{self, Failure};
use crate::clock::Moment;
use crate::commands::{self, Owner};
use crate::errors::Error;
use crate::servers::Servers;

/// The hold counts only when this many replicas have it within this time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Replicas {
    pub(crate) least: u32,
    pub(crate) timeout: Duration,
}

/// Renews the hold and waits until that has reached the replicas. The server's `WAIT` blocks the connection
/// and asks for what this connection wrote, so both go over one that nobody else uses. Gives when the renewal
/// was sent; nothing when the hold is gone.
pub(crate) async fn confirm(
    servers: &Servers,
    owner: &Owner,
    ttl: Duration,
    fence: i64,
    wanted: Replicas,
) -> Result<Option<Moment>, Failure> {
    let mut commands = redis::pipe();
    commands.add_command(commands::extend(owner, ttl, fence));
    commands.add_command(commands::wait_for_replicas(wanted.least, wanted.timeout));
    let mut route = servers.route(owner.first_key());
    loop {
        let node = route.node().await?;
        let sent = Moment::now();
        let mut connection = node.take_spare().await.map_err(answers::failure)?;
        let replies = connection.send_packed_commands(&commands, 0, 2).await;
        if replies.is_ok() {
            node.keep_spare(connection);
        }
        let numbers = match answers::value(replies.map(Value::Array)) {
            Ok(replies) => answers::numbers(&replies),
            Err(failure) if route.follow(&failure, &node) => continue,
            Err(failure) => return Err(failure),
        };
        let [extended, reached] = numbers[..] else { return Ok(None) };
        if extended != 1 {
            return Ok(None);
        }
        let reached = u32::try_from(reached).unwrap_or(0);
        if reached < wanted.least {
            return Err(Failure::Final(Error::TooFewReplicas { wanted: wanted.least, reached }));
        }
        return Ok(Some(sent));
    }
}
