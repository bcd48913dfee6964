//! Meets connections of the program's, such as `MultiplexedConnection` and `ConnectionManager`. What instruments them sees the
//! commands of calls. A connection that is silent, or busy with a command that blocks, holds no call up.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use redis::aio::ConnectionLike;
use redis::{Cmd, RedisResult, Value};
use tokio::time::timeout_at;

use crate::errors::is_reply;
use crate::transport::{Call, Reply, silent};

/// How long the program's connection may say nothing.
const SILENCE: Duration = Duration::from_millis(300);
/// For how long commands go over another connection after that.
const PAUSE: Duration = Duration::from_secs(1);

pub(crate) struct Program {
    send: Box<dyn Fn(Cmd) -> BoxFuture<'static, RedisResult<Value>> + Send + Sync>,
    /// When it last gave no reply.
    failed: Mutex<Option<Instant>>,
}

impl Program {
    pub(crate) fn new(connection: impl ConnectionLike + Clone + Send + Sync + 'static) -> Self {
        let send = move |command: Cmd| {
            let mut connection = connection.clone();
            async move { connection.req_packed_command(&command).await }.boxed()
        };
        Self { send: Box::new(send), failed: Mutex::default() }
    }

    /// Sends a command. It is nothing if there is no reply, and for a while after that.
    pub(crate) async fn call(&self, call: Call<'_>) -> Option<RedisResult<Reply>> {
        let failed = *self.failed.lock().expect("nothing panics here");
        if failed.is_some_and(|since| since.elapsed() < PAUSE) {
            return None;
        }
        let until = call.until.min(Instant::now() + SILENCE);
        let reply = timeout_at(until.into(), (self.send)(call.command.clone())).await;
        match reply.unwrap_or_else(|_| Err(silent())).and_then(Value::extract_error) {
            Err(error) if !is_reply(&error) => {
                *self.failed.lock().expect("nothing panics here") = Some(Instant::now());
                None
            }
            reply => Some(reply.map(|value| Reply { value, then: Value::Nil, is_alone: true })),
        }
    }
}
