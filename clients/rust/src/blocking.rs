//! Commands that keep the server waiting, on a connection of their own.

use std::time::{Duration, Instant};

use redis::{Cmd, Value, cmd};

use crate::answers::{self, Failure};
use crate::node::{Node, REPLY_TIMEOUT, exchange, in_time};
use crate::servers::Servers;

/// How often the server is asked whether it lives: the connection that waits cannot be tested itself.
const BETWEEN_TESTS: Duration = Duration::from_secs(5);

/// Opens the connection until this moment, tells that it sends now, and waits for the reply. When the future is
/// dropped the connection is closed.
pub(crate) async fn ask(
    servers: &Servers,
    key: &str,
    commands: &[Cmd],
    until: Instant,
    sends: impl FnOnce(),
) -> Result<Value, Failure> {
    let node = in_time(until, servers.node(key)).await?;
    let connects = async { node.connect().await.map_err(|error| answers::failure(error).before_sending()) };
    let mut connection = in_time(until, connects).await?;
    sends();
    tokio::select! {
        reply = exchange(&mut connection, commands) => {
            answers::value(reply).map_err(|failure| servers.note(key, &node, failure))
        }
        failure = until_it_fails(&node) => Err(failure),
    }
}

async fn until_it_fails(node: &Node) -> Failure {
    loop {
        tokio::time::sleep(BETWEEN_TESTS).await;
        if let Err(failure) = node.send(&[cmd("PING")], Instant::now() + REPLY_TIMEOUT).await
            && !failure.is_answer()
        {
            return Failure::Unanswered(answers::no_answer(node.address()));
        }
    }
}
