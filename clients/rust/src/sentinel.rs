//! Meets `SentinelClient`. The redis crate asks the Sentinels when it connects, and does not notice a failover after that.
//! So while a program uses locks, a Sentinel is listened to. When it names another primary, the connection is given up.

use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use redis::aio::{MultiplexedConnection, SendError};
use redis::sentinel::SentinelClient;
use redis::{AsyncConnectionConfig, ConnectionAddr, PushInfo, PushKind, RedisResult, cmd};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::client::{Direct, speaking_resp3};
use crate::server::Server;
use crate::transport::{Call, Events, Reply, SILENCE, Topology, Transport, silent};

/// How often the connection to the Sentinel is tested.
const BETWEEN_TESTS: Duration = Duration::from_secs(1);

/// Connections to the primary, and what tells of another one.
struct Followed {
    direct: Direct,
    client: tokio::sync::Mutex<SentinelClient>,
    /// The primary to which the last connection was made.
    primary: Mutex<Option<ConnectionAddr>>,
    /// The primary may be another one.
    doubt: Arc<Notify>,
    watch: Mutex<Option<JoinHandle<()>>>,
}

impl From<SentinelClient> for Server {
    /// The client must be one for the master.
    fn from(client: SentinelClient) -> Self {
        Self::over(Arc::new_cyclic(|followed: &Weak<Followed>| {
            let followed = followed.clone();
            let connect = move |config| connect(followed.clone(), config).boxed();
            Followed {
                direct: Direct::new("Sentinel".into(), true, Box::new(connect)),
                client: client.into(),
                primary: Mutex::default(),
                doubt: Arc::default(),
                watch: Mutex::default(),
            }
        }))
    }
}

async fn connect(
    followed: Weak<Followed>,
    config: AsyncConnectionConfig,
) -> RedisResult<MultiplexedConnection> {
    let Some(followed) = followed.upgrade() else { return Err(silent()) };
    let primary = followed.client.lock().await.async_get_client().await?;
    followed.named(primary.get_connection_info().addr());
    speaking_resp3(&primary)?.get_multiplexed_async_connection_with_config(&config).await
}

impl Followed {
    /// Notes which primary the Sentinels name.
    fn named(&self, address: &ConnectionAddr) {
        let before = self.primary.lock().expect("nothing panics here").replace(address.clone());
        if before.is_some_and(|before| before != *address) {
            self.direct.link.lose();
        }
    }

    /// Asks which primary the Sentinels name.
    async fn ask(&self) {
        let mut client = self.client.lock().await;
        if let Ok(Ok(primary)) = timeout(SILENCE, client.async_get_client()).await {
            self.named(primary.get_connection_info().addr());
        }
    }

    /// A connection to a Sentinel that tells of other primaries.
    async fn hear(&self) -> RedisResult<MultiplexedConnection> {
        let sentinel = speaking_resp3(&self.client.lock().await.async_get_sentinel_client().await?)?;
        let doubt = self.doubt.clone();
        let config = AsyncConnectionConfig::new().set_push_sender(move |push: PushInfo| {
            if matches!(push.kind, PushKind::Message | PushKind::Disconnection) {
                doubt.notify_one();
            }
            Ok::<_, SendError>(())
        });
        let mut connection = sentinel.get_multiplexed_async_connection_with_config(&config).await?;
        cmd("SUBSCRIBE").arg("+switch-master").exec_async(&mut connection).await?;
        Ok(connection)
    }
}

/// Listens to a Sentinel until nobody uses the connections any more.
async fn watch(followed: Weak<Followed>, doubt: Arc<Notify>) {
    let mut sentinel: Option<MultiplexedConnection> = None;
    let mut is_in_doubt = true;
    while let Some(followed) = followed.upgrade() {
        let is_there = match &mut sentinel {
            Some(connection) => {
                matches!(timeout(SILENCE, cmd("PING").exec_async(connection)).await, Ok(Ok(())))
            }
            None => false,
        };
        if !is_there {
            sentinel = timeout(SILENCE, followed.hear()).await.ok().and_then(Result::ok);
        }
        if is_in_doubt || !is_there {
            followed.ask().await;
        }
        drop(followed);
        is_in_doubt = timeout(BETWEEN_TESTS, doubt.notified()).await.is_ok();
    }
}

impl Transport for Arc<Followed> {
    fn start(&self, events: Weak<dyn Events>) {
        self.direct.start(events);
    }

    fn call<'a>(&'a self, call: Call<'a>) -> BoxFuture<'a, RedisResult<Reply>> {
        let mut watch = self.watch.lock().expect("nothing panics here");
        if watch.as_ref().is_none_or(JoinHandle::is_finished) {
            *watch = Some(tokio::spawn(self::watch(Arc::downgrade(self), self.doubt.clone())));
        }
        let reply = self.direct.call(call);
        async move {
            let reply = reply.await;
            // A former primary without replicas, or one that is a replica by now.
            if reply.as_ref().is_err_and(|error| matches!(error.code(), Some("READONLY" | "NOREPLICAS"))) {
                self.doubt.notify_one();
            }
            reply
        }
        .boxed()
    }

    fn listen<'a>(&'a self, channel: &'a str) -> BoxFuture<'a, RedisResult<()>> {
        self.direct.listen(channel)
    }

    fn topology(&self) -> Topology {
        self.direct.topology()
    }

    fn close(&self) {
        self.watch.lock().expect("nothing panics here").take().inspect(JoinHandle::abort);
        self.direct.close();
    }
}
