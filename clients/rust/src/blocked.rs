//! A wait that has a connection of its own.

use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisError, Value};
use tokio::sync::oneshot;
use tokio::task::AbortHandle;

/// A command that blocks its connection. When this is dropped the connection is closed.
pub(crate) struct Blocked {
    reply: oneshot::Receiver<Result<Value, RedisError>>,
    task: AbortHandle,
}

impl Blocked {
    pub(crate) fn send(mut connection: MultiplexedConnection, command: Cmd) -> Self {
        let (sender, reply) = oneshot::channel();
        let task = tokio::spawn(async move {
            let _ = sender.send(connection.send_packed_command(&command).await);
        });
        Self { reply, task: task.abort_handle() }
    }

    pub(crate) async fn reply(&mut self) -> Result<Value, RedisError> {
        match (&mut self.reply).await {
            Ok(reply) => reply,
            Err(_) => Err(std::io::Error::from(std::io::ErrorKind::ConnectionAborted).into()),
        }
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        self.task.abort();
    }
}
