//! Commands that keep the server waiting, on a connection of their own.

use std::sync::Arc;
use std::time::Instant;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, Value, cmd};

use crate::answers::{Failure, Reply};
use crate::connection::{BETWEEN_TESTS, REPLY_TIMEOUT, exchange};
use crate::node::{Node, in_time};
use crate::servers::Server;

/// A connection for one use to the node that serves a key.
pub(crate) struct Own<'a> {
    server: &'a Arc<Server>,
    key: &'a str,
    node: Arc<Node>,
    connection: MultiplexedConnection,
}

impl<'a> Own<'a> {
    pub(crate) async fn open(server: &'a Arc<Server>, key: &'a str, until: Instant) -> Result<Self, Failure> {
        let opens = async {
            let node = server.node(key).await?;
            Ok(Self { server, key, connection: node.connect().await?, node })
        };
        in_time(until, opens).await
    }

    /// Waits for the reply until this moment. When the future is dropped the connection is closed.
    pub(crate) async fn ask(mut self, commands: &[Cmd], until: Instant) -> Reply {
        tokio::select! {
            reply = exchange(&mut self.connection, commands) => {
                reply
                    .and_then(Value::extract_error)
                    .map_err(|error| self.server.redirected(self.key, &self.node, error.into()))
            }
            failure = until_it_fails(&self.node) => Err(failure),
            () = tokio::time::sleep_until(until.into()) => Err(Failure::no_answer("the server")),
        }
    }
}

/// The connection that waits cannot be tested itself: the server is asked whether it lives.
async fn until_it_fails(node: &Node) -> Failure {
    loop {
        tokio::time::sleep(BETWEEN_TESTS).await;
        if let Err(failure) = node.send(&[cmd("PING")], Instant::now() + REPLY_TIMEOUT).await
            && !failure.is_answer()
        {
            return Failure::no_answer(&node.address().to_string());
        }
    }
}
