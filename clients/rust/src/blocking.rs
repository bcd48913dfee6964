//! A wait that has a connection of its own.

use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::{Cmd, Value, cmd};

use crate::answers::{self, Failure};
use crate::node::{Node, REPLY_TIMEOUT, Words};

/// How often the server is asked whether it lives: the connection that waits cannot be tested itself.
const BETWEEN_TESTS: Duration = Duration::from_secs(5);

/// Waits for the reply. When the future is dropped the connection is closed.
pub(crate) async fn wait(
    node: &Node,
    mut connection: MultiplexedConnection,
    command: &Cmd,
) -> Result<Value, Failure> {
    tokio::select! {
        reply = connection.send_packed_command(command) => answers::value(reply),
        failure = until_it_fails(node) => Err(failure),
    }
}

async fn until_it_fails(node: &Node) -> Failure {
    loop {
        tokio::time::sleep(BETWEEN_TESTS).await;
        if let Err(failure) = node.send(Words::One(&cmd("PING")), Instant::now() + REPLY_TIMEOUT).await
            && !failure.is_answer()
        {
            return Failure::Unanswered(answers::no_answer(node.address()));
        }
    }
}
