//! Whether enough replicas have a hold.

use redis::Value;

use crate::answers::{self, Failure};
use crate::clock::Moment;
use crate::commands::{self, Owner};
use crate::errors::Error;
use crate::options::Options;
use crate::servers::Servers;

/// Renews the hold and waits until that has reached the replicas. The server's `WAIT` blocks the connection
/// and asks for what this connection wrote, so both go over one that nobody else uses. Gives when the renewal
/// was sent; nothing when the hold is gone.
pub(crate) async fn confirm(
    servers: &Servers,
    owner: &Owner,
    options: &Options,
    fence: i64,
) -> Result<Option<Moment>, Failure> {
    let wanted = options.min_replicas;
    let mut commands = redis::pipe();
    commands.add_command(commands::extend(owner, options.ttl, fence));
    commands.add_command(commands::wait_for_replicas(wanted, options.replica_timeout));
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
        let [1, reached] = numbers[..] else { return Ok(None) };
        let reached = u32::try_from(reached).unwrap_or(0);
        if reached < wanted {
            return Err(Failure::Final(Error::TooFewReplicas { wanted, reached }));
        }
        return Ok(Some(sent));
    }
}
