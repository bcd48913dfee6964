//! One server, or one cluster, as the library uses it: commands are sent again until they are answered.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::{Arg, Cmd, RedisError, Value};
use tokio::sync::Semaphore;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{Instrument, info_span};

use crate::clock::Moment;
use crate::errors::{Error, is_reply, passes};
use crate::hooks::{Outage, Reporter};
use crate::info::{self, Holder};
use crate::listener::Listener;
use crate::options::{AFTER_ERRORS, Options, Settings};
use crate::protocol::{self, Owner, number};
use crate::transport::{Call, Reply, Topology, Transport};
use crate::watchdog::Holds;

/// How many ends are on their way at once. During an outage the others cost their memory.
const MOST_ENDING: usize = 8;

pub(crate) struct Node {
    transport: Arc<dyn Transport>,
    pub(crate) topology: Topology,
    pub(crate) listener: Arc<Listener>,
    pub(crate) settings: Arc<Settings>,
    /// What lets ends be sent.
    pub(crate) ends: Semaphore,
    outage: Outage,
    /// `close` has ended.
    pub(crate) closed: CancellationToken,
    /// What `close` waits for.
    pub(crate) tracker: TaskTracker,
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

/// A command that prolongs a hold.
#[derive(Clone, Copy)]
pub(crate) struct Extension<'a> {
    pub(crate) ttl: Duration,
    /// Nothing: whatever the owner holds.
    pub(crate) fence: Option<i64>,
    pub(crate) options: &'a Options,
}

/// The part of a ttl that counts at one server. A clock that is slewed runs up to 500 ppm fast, on both sides, and the server
/// counts in milliseconds.
pub(crate) fn counted(ttl: Duration) -> Duration {
    ttl.saturating_sub(ttl / 1000 + Duration::from_millis(1))
}

impl Node {
    pub(crate) fn new(
        transport: Arc<dyn Transport>,
        settings: &Arc<Settings>,
        reporter: &Arc<Reporter>,
        holds: &Arc<Holds>,
        tracker: &TaskTracker,
    ) -> Arc<Self> {
        Arc::new(Self {
            topology: transport.topology(),
            listener: Listener::new(&transport, reporter, holds),
            settings: settings.clone(),
            ends: Semaphore::new(MOST_ENDING),
            outage: Outage::default(),
            closed: CancellationToken::new(),
            tracker: tracker.clone(),
            transport,
        })
    }

    /// Sends a command once.
    pub(crate) async fn send(&self, call: Call<'_>) -> Result<Reply, RedisError> {
        let name = || String::from_utf8_lossy(first_word(call.command)).into_owned();
        let span = info_span!(
            "slock.command",
            otel.kind = "client",
            otel.name = name(),
            db.system.name = "redis",
            db.operation.name = name(),
            server.address = self.topology.name,
        );
        let reply = self.transport.call(call).instrument(span).await;
        self.outage.reached(&self.topology.name, reply.as_ref().err().filter(|error| !is_reply(error)));
        if self.closed.is_cancelled() {
            self.transport.close(); // the release of a hold has opened a connection again
        }
        reply
    }

    /// Sends a command once. A reply that is no number, such as null, counts as 0.
    pub(crate) async fn number(&self, call: Call<'_>) -> Result<Answer, RedisError> {
        let sent = Moment::now();
        let reply = self.send(call).await?;
        Ok(Answer { number: number(&reply.value), sent, is_alone: reply.is_alone })
    }

    /// As [`Node::number`], and again while the server says nothing and it is not too late.
    pub(crate) async fn number_until(&self, call: Call<'_>) -> Result<Answer, RedisError> {
        loop {
            match self.number(call).await {
                Err(error) if error.is_timeout() && Instant::now() < call.until => {}
                answer => return answer,
            }
        }
    }

    /// Sends a command until it is answered, for a time.
    pub(crate) async fn ask(
        &self,
        keys: &Arc<[String]>,
        limit: Duration,
        call: Call<'_>,
    ) -> Result<Answer, Error> {
        let mut copies = 0;
        let answer = repeat(keys, limit, |until| {
            copies += 1;
            async move { Ok(self.number(Call { until, ..call }).await?) }
        });
        let answer = answer.await?;
        Ok(Answer { is_alone: answer.is_alone && copies == 1, ..answer })
    }

    /// The reply to a question; without a key it is an array of the replies of all nodes.
    pub(crate) async fn query(&self, keys: &Arc<[String]>, call: Call<'_>) -> Result<Value, Error> {
        let ask = |until| async move { Ok(self.send(Call { until, ..call }).await?.value) };
        let value = repeat(keys, self.settings.retry_for, ask).await?;
        Ok(if call.key.is_some() || self.topology.is_cluster { value } else { Value::Array(vec![value]) })
    }

    /// The holders of the first key that somebody holds, at most 10; nobody if the server does not tell in time.
    pub(crate) async fn holders(&self, keys: &[String], within: Duration) -> Vec<Holder> {
        let until = Instant::now() + within;
        for key in keys {
            let question = protocol::info(key, 10);
            let Ok(reply) = self.send(Call { until, ..Call::new(key, &question) }).await else { break };
            match info::info(reply.value) {
                Ok(Some(info)) if !info.holders.is_empty() => return info.holders,
                _ => {}
            }
        }
        Vec::new()
    }

    /// Sends an extension, and waits for replicas if it has to.
    pub(crate) async fn prolong(
        &self,
        until: Instant,
        owner: &Owner,
        by: Extension<'_>,
    ) -> Result<Answer, Error> {
        let (wanted, timeout) = (by.options.min_replicas, by.options.replica_timeout);
        // WAIT counts the replicas that have what its connection wrote last. An extension to the same millisecond would
        // write nothing, and any replica would do.
        let longer = Duration::from_millis(u64::from(wanted > 0));
        let (command, wait) = (owner.extend(by.ttl + longer, by.fence), protocol::replicas(wanted, timeout));
        let then = (wanted > 0).then_some((&wait, timeout));
        let call = Call { then, is_reserved: true, until, ..Call::new(owner.key(), &command) };
        let sent = Moment::now();
        let reply = self.send(call).await?;
        let number = protocol::number(&reply.value);
        let acknowledged = u32::try_from(protocol::number(&reply.then)).unwrap_or(0);
        if number > 0 && acknowledged < wanted {
            return Err(Error::TooFewReplicas { keys: owner.keys.clone(), wanted, acknowledged });
        }
        Ok(Answer { number, sent, is_alone: reply.is_alone })
    }

    pub(crate) fn close(&self) {
        self.closed.cancel();
        self.listener.close();
        self.transport.close();
    }
}

fn first_word(command: &Cmd) -> &[u8] {
    if let Some(Arg::Simple(word)) = command.args_iter().next() { word } else { b"" }
}

/// Sends until there is an answer, for a time.
pub(crate) async fn repeat<T, F>(
    keys: &Arc<[String]>,
    limit: Duration,
    mut send: impl FnMut(Instant) -> F,
) -> Result<T, Error>
where
    F: Future<Output = Result<T, Error>>,
{
    let end = Instant::now() + limit;
    let mut last = None;
    for failures in 0.. {
        match send(end).await {
            Ok(answer) => return Ok(answer),
            Err(Error::Redis(error)) if passes(&error) => last = Some(more_telling(last, error)),
            Err(error) => return Err(error.explained(keys)),
        }
        let pause = AFTER_ERRORS.pause(failures).unwrap_or_default();
        if Instant::now() + pause >= end {
            break;
        }
        sleep(pause).await;
    }
    Err(Error::NoAnswer { keys: keys.clone(), within: limit, last })
}

/// The later of two errors, unless it only says that nothing came.
pub(crate) fn more_telling(last: Option<RedisError>, error: RedisError) -> RedisError {
    last.filter(|_| error.is_timeout()).unwrap_or(error)
}
