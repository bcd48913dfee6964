// SPDX-License-Identifier: MIT OR Apache-2.0

//! One server, or one cluster, as the library uses it: commands are sent again until they are answered.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::{Arg, Cmd, RedisError, RedisResult, Value};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};
use tracing::{Instrument, info_span};

use crate::clock::Moment;
use crate::errors::{Details, Error, Result, is_reply, passes};
use crate::hooks::Outage;
use crate::info::{self, Holder};
use crate::listener::Listener;
use crate::options::AFTER_ERRORS;
use crate::protocol::{self, Wanted, number};
use crate::server::Make;
use crate::shared::Shared;
use crate::transport::{Call, Reply, SILENCE, Topology};

/// How many ends are on their way at once. During an outage the others cost their memory.
const MOST_ENDING: usize = 8;

/// How long after the end of a wait a reply is still waited for.
pub(crate) const LATE_REPLY: Duration = Duration::from_millis(500);
/// How long after the end of its time an attempt ends only if the process stood still.
const LATE: Duration = Duration::from_millis(100);
/// How much more time such a process gets at most.
const MOST_MORE: Duration = Duration::from_secs(3);

pub(crate) struct Node {
    pub(crate) listener: Arc<Listener>,
    pub(crate) shared: Arc<Shared>,
    /// What lets ends be sent.
    ends: Semaphore,
    outage: Outage,
}

/// The reply to a command that may have been sent several times.
#[derive(Clone, Copy)]
pub(crate) struct Answer {
    pub(crate) number: i64,
    /// Before the copy was sent that was answered.
    pub(crate) sent: Moment,
    /// No other copy was sent.
    pub(crate) is_alone: bool,
}

/// The part of a ttl that counts at one server. A clock that is slewed runs up to 500 ppm fast, on both sides, and the server
/// counts in milliseconds.
pub(crate) fn counted(ttl: Duration) -> Duration {
    ttl.saturating_sub(ttl / 1000 + Duration::from_millis(1))
}

impl Node {
    pub(crate) fn new(make: Make, shared: &Arc<Shared>) -> Arc<Self> {
        let (ends, outage) = (Semaphore::new(MOST_ENDING), Outage::default());
        Arc::new(Self { listener: Listener::new(make, shared), shared: shared.clone(), ends, outage })
    }

    pub(crate) fn topology(&self) -> &Topology {
        self.listener.transport.topology()
    }

    /// Sends a command once.
    async fn send(&self, call: Call<'_>) -> RedisResult<Reply> {
        let name = || match call.command.args_iter().next() {
            Some(Arg::Simple(word)) => String::from_utf8_lossy(word).into_owned(),
            _ => String::new(),
        };
        let span = info_span!(
            "slock.command",
            otel.kind = "client",
            otel.name = name(),
            db.system.name = "redis",
            db.operation.name = name(),
            server.address = self.topology().name,
        );
        let reply = self.listener.transport.call(call).instrument(span).await;
        self.outage.reached(&self.topology().name, reply.as_ref().err().filter(|error| !is_reply(error)));
        if self.shared.closed.is_cancelled() {
            self.listener.close(); // the release of a hold has opened a connection again
        }
        reply
    }

    /// Sends a command once. A reply that is no number, such as null, counts as 0.
    pub(crate) async fn number(&self, call: Call<'_>) -> RedisResult<Answer> {
        let sent = Moment::now();
        let reply = self.send(call).await?;
        Ok(Answer { number: number(&reply.value), sent, is_alone: reply.is_alone })
    }

    /// Sends a command, and again after an error that passes, until it is too late.
    pub(crate) async fn ask(&self, wanted: &Wanted, call: Call<'_>) -> Result<Answer> {
        let ask = |until| async move { Ok(self.number(Call { until, ..call }).await?) };
        let (answer, failures) = repeat(&wanted.keys, call.until, ask).await?;
        Ok(Answer { is_alone: answer.is_alone && failures == 0, ..answer })
    }

    /// The reply to a question; without a key it is an array of the replies of all nodes.
    pub(crate) async fn query(&self, key: Option<&str>, names: &[String], command: &Cmd) -> Result<Value> {
        let call = Call { key, ..Call::new("", command, Instant::now() + self.shared.retry_for) };
        let ask = |until| async move { Ok(self.send(Call { until, ..call }).await?.value) };
        let (value, _) = repeat(&names.into(), call.until, ask).await?;
        Ok(if key.is_some() || self.topology().is_cluster { value } else { Value::Array(vec![value]) })
    }

    /// The holders of the first key that somebody holds, at most 10; nobody if the server does not tell in time.
    pub(crate) async fn holders(&self, keys: &[String], within: Duration) -> Vec<Holder> {
        let until = Instant::now() + within;
        for key in keys {
            let Ok(reply) = self.send(Call::new(key, &protocol::info(key, 10), until)).await else { break };
            match info::info(reply.value) {
                Ok(Some(info)) if !info.holders.is_empty() => return info.holders,
                _ => {}
            }
        }
        Vec::new()
    }

    /// Sends one extension of the hold with the fencing token, or of whatever the owner holds, and waits for replicas if it
    /// has to. It says whether the hold is there.
    pub(crate) async fn extend(
        &self,
        until: Instant,
        wanted: &Wanted,
        ttl: Duration,
        fence: Option<i64>,
    ) -> Result<bool> {
        let (replicas, timeout) = (wanted.options.min_replicas, wanted.options.replica_timeout);
        // WAIT counts the replicas that have what its connection wrote last. An extension to the same millisecond would
        // write nothing, and any replica would do.
        let longer = Duration::from_millis(u64::from(replicas > 0));
        let (command, wait) = (wanted.extend(ttl + longer, fence), protocol::replicas(replicas, timeout));
        let then = (replicas > 0).then_some((&wait, timeout));
        let reply = self.send(Call { then, is_reserved: true, ..wanted.call(&command, until) }).await?;
        let (is_there, acknowledged) = (number(&reply.value) > 0, number(&reply.then));
        if is_there && acknowledged < i64::from(replicas) {
            let text = format!("{acknowledged} of {replicas} replicas acknowledged");
            return Err(Error::TooFewReplicas(Details::new(&wanted.keys, text)));
        }
        Ok(is_there)
    }

    /// Sends the end of an owner, which may be repeated, in the background: until it is answered, with growing pauses, for the
    /// time in which the server would refuse the owner token. The command `before` needs a reply first.
    pub(crate) fn leave(
        self: &Arc<Self>,
        wanted: &Wanted,
        fence: Option<i64>,
        after: Duration,
        before: Option<Cmd>,
    ) {
        let (command, limit) = wanted.ending(fence, after);
        let (node, owner, end) = (self.clone(), wanted.clone(), Instant::now() + limit);
        let deliver = async move {
            let send = |_| async {
                // For no longer than a command: another runtime may stand still with one.
                let _turn = timeout(SILENCE, node.ends.acquire()).await;
                let until = end.min(Instant::now() + node.shared.retry_for);
                let send = |command| {
                    let call = Call { is_reserved: true, ..owner.call(command, until) };
                    Box::pin(node.number(call)) // so that those who wait are small
                };
                if let Some(before) = &before
                    && let Err(error) = send(before).await
                    && passes(&error)
                {
                    return Err(error.into());
                }
                Ok(send(&command).await?)
            };
            repeat(&owner.keys, end, send).await
        };
        let closed = self.shared.closed.clone();
        let deliver = async move { closed.run_until_cancelled(deliver).await };
        // The runtime that acquired may have shut down.
        let runtime = Handle::try_current().unwrap_or_else(|_| wanted.runtime.clone());
        self.shared.tracker.spawn_on(deliver.instrument(wanted.span.clone()), &runtime);
    }
}

/// The limit after an attempt that failed. A process that stood still may have missed the reply. It gets the time for one more:
/// as much as it came late. This is not done twice.
pub(crate) fn extended(until: Instant) -> Instant {
    let late = until.elapsed();
    if late < LATE { until } else { Instant::now() + late.clamp(LATE_REPLY, MOST_MORE) }
}

/// Sends, and again after an error that passes, until it is too late. Gives the answer, and how often there was such an error.
pub(crate) async fn repeat<T, F: Future<Output = Result<T>>>(
    keys: &Arc<[String]>,
    until: Instant,
    mut send: impl FnMut(Instant) -> F,
) -> Result<(T, u32)> {
    let (began, mut end, mut last) = (Instant::now(), until, None);
    for failures in 0.. {
        match send(end).await {
            Ok(answer) => return Ok((answer, failures)),
            Err(Error::Redis(error)) if passes(&error) => last = Some(more_telling(last, error)),
            Err(error) => return Err(error.explained(keys)),
        }
        let pause = AFTER_ERRORS.pause(failures).unwrap_or_default();
        if end == until {
            end = extended(until);
        }
        if Instant::now() + pause >= end {
            break;
        }
        sleep(pause).await;
    }
    Err(Error::no_answer(keys, until.saturating_duration_since(began), last))
}

/// The later of two errors, unless it only says that nothing came.
pub(crate) fn more_telling(last: Option<RedisError>, error: RedisError) -> RedisError {
    last.filter(|_| error.is_timeout()).unwrap_or(error)
}

/// Does something when it is dropped, unless it has been taken out.
pub(crate) struct OnDrop<F: FnOnce()>(pub(crate) Option<F>);

impl<F: FnOnce()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        if let Some(act) = self.0.take() {
            act();
        }
    }
}
