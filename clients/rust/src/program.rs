//! A connection of the program's. What instruments it sees the commands of calls. If it is silent, or busy with a command that
//! blocks, it holds no call up.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use redis::aio::ConnectionLike;
use redis::{Cmd, RedisResult, Value};
use tokio::time::timeout_at;

use crate::errors::is_reply;
use crate::transport::{Call, Reply, SILENCE, silent};

/// For how long commands go over another connection after this one was silent.
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

    /// Sends a command. It is nothing if there is no reply for half the time, and for a while after that.
    pub(crate) async fn call(&self, call: Call<'_>) -> Option<RedisResult<Reply>> {
        let failed = *self.failed.lock().expect("nothing panics here");
        if failed.is_some_and(|since| since.elapsed() < PAUSE) {
            return None;
        }
        let now = Instant::now();
        let until = now + (call.until.saturating_duration_since(now) / 2).min(SILENCE);
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
