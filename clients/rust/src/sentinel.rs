// SPDX-License-Identifier: MIT OR Apache-2.0

//! Meets `SentinelClient`. The redis crate asks the Sentinels when it connects, and does not notice a failover after that.
//! So while there is a connection, a Sentinel is listened to. If it names another primary, the connection is given up.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use redis::aio::{MultiplexedConnection, SendError};
use redis::sentinel::SentinelClient;
use redis::{AsyncConnectionConfig, ConnectionAddr, PushInfo, PushKind, RedisResult, cmd};
use tokio::sync::Mutex;
use tokio::time::timeout;

use crate::client::speaking_resp3;
use crate::link::Health;
use crate::server::Server;
use crate::transport::SILENCE;

/// How often the connection to the Sentinel is tested.
const BETWEEN_TESTS: Duration = Duration::from_secs(1);

impl From<SentinelClient> for Server {
    /// The client must be one for the master.
    fn from(client: SentinelClient) -> Self {
        let client = Arc::new(Mutex::new(client));
        let connect = move |config: AsyncConnectionConfig, health: Option<Arc<Health>>| {
            let client = client.clone();
            async move {
                let primary = client.lock().await.async_get_client().await?;
                let connection = speaking_resp3(&primary)?;
                let connection = connection.get_multiplexed_async_connection_with_config(&config).await?;
                if let Some(health) = health {
                    let address = primary.get_connection_info().addr().clone();
                    tokio::spawn(watch(client, address, health));
                }
                Ok(connection)
            }
            .boxed()
        };
        Self::direct("Sentinel".into(), true, None, Box::new(connect))
    }
}

/// Listens to a Sentinel while there is the connection to the primary, which is given up if another one is named.
async fn watch(client: Arc<Mutex<SentinelClient>>, primary: ConnectionAddr, health: Arc<Health>) {
    let mut sentinel: Option<MultiplexedConnection> = None;
    let mut is_in_doubt = true;
    while !health.is_lost() {
        let is_there = match &mut sentinel {
            Some(connection) => {
                matches!(timeout(SILENCE, cmd("PING").exec_async(connection)).await, Ok(Ok(())))
            }
            None => false,
        };
        if !is_there {
            sentinel = timeout(SILENCE, hear(&client, &health)).await.ok().and_then(Result::ok);
        }
        if is_in_doubt || !is_there {
            let named = async { client.lock().await.async_get_client().await };
            if let Ok(Ok(named)) = timeout(SILENCE, named).await
                && *named.get_connection_info().addr() != primary
            {
                return health.lose();
            }
        }
        is_in_doubt = timeout(BETWEEN_TESTS, health.doubt.notified()).await.is_ok();
    }
}

/// A connection to a Sentinel that tells of other primaries.
async fn hear(client: &Mutex<SentinelClient>, health: &Arc<Health>) -> RedisResult<MultiplexedConnection> {
    let sentinel = speaking_resp3(&client.lock().await.async_get_sentinel_client().await?)?;
    let health = health.clone();
    let config = AsyncConnectionConfig::new().set_push_sender(move |push: PushInfo| {
        if matches!(push.kind, PushKind::Message | PushKind::Disconnection) {
            health.doubt.notify_one();
        }
        Ok::<_, SendError>(())
    });
    let mut connection = sentinel.get_multiplexed_async_connection_with_config(&config).await?;
    cmd("SUBSCRIBE").arg("+switch-master").exec_async(&mut connection).await?;
    Ok(connection)
}
