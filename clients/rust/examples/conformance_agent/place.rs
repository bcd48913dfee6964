//! Where the locks are, and the program's client.

use std::time::Duration;

use redis::aio::{ConnectionLike, ConnectionManager, ConnectionManagerConfig, MultiplexedConnection};
use redis::cluster::ClusterClient;
use redis::cluster_async::ClusterConnection;
use redis::sentinel::{SentinelClient, SentinelServerType};
use redis::{
    AsyncConnectionConfig, Client, Cmd, IntoConnectionInfo, ProtocolVersion, RedisError, RedisResult, Value,
};
use slock_client::Server;
use slock_client::testing::MemoryServer;

use crate::fields::Fields;
use crate::state::Failed;

#[derive(Clone)]
pub struct Place {
    pub kind: Kind,
    nodes: Vec<String>,
    service: String,
    user: Option<String>,
    password: Option<String>,
    password_file: Option<String>,
    read_timeout: Option<Duration>,
    /// The connection of the program's that the locks were given.
    pub given: Option<Raw>,
}

#[derive(Clone)]
pub enum Kind {
    /// The client alone.
    Client,
    /// The client and a connection of the program's.
    Multiplexed,
    Manager,
    Cluster,
    Sentinel,
    Memory(MemoryServer),
}

/// A connection of the program's.
#[derive(Clone)]
pub enum Raw {
    Multiplexed(MultiplexedConnection),
    Manager(ConnectionManager),
    Cluster(ClusterConnection),
}

impl ConnectionLike for Raw {
    fn req_packed_command<'a>(&'a mut self, command: &'a Cmd) -> redis::RedisFuture<'a, Value> {
        match self {
            Raw::Multiplexed(connection) => connection.req_packed_command(command),
            Raw::Manager(connection) => connection.req_packed_command(command),
            Raw::Cluster(connection) => connection.req_packed_command(command),
        }
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a redis::Pipeline,
        offset: usize,
        count: usize,
    ) -> redis::RedisFuture<'a, Vec<Value>> {
        match self {
            Raw::Multiplexed(connection) => connection.req_packed_commands(pipeline, offset, count),
            Raw::Manager(connection) => connection.req_packed_commands(pipeline, offset, count),
            Raw::Cluster(connection) => connection.req_packed_commands(pipeline, offset, count),
        }
    }

    fn get_db(&self) -> i64 {
        0
    }
}

impl Place {
    pub fn of(operation: &serde_json::Value, memory: impl FnOnce(&str) -> MemoryServer) -> Self {
        let nodes = operation.texts("nodes");
        let kind = match (operation["kind"].as_str(), operation["api"].as_str()) {
            (Some("cluster"), _) => Kind::Cluster,
            (Some("sentinel"), _) => Kind::Sentinel,
            (Some("memory"), _) => Kind::Memory(memory(&nodes[0])),
            (_, Some("multiplexed")) => Kind::Multiplexed,
            (_, Some("manager")) => Kind::Manager,
            _ => Kind::Client,
        };
        Self {
            kind,
            nodes,
            service: operation.text("service").unwrap_or_default(),
            user: operation.text("user"),
            password: operation.text("password"),
            password_file: operation.text("password_file"),
            read_timeout: operation.duration("read_timeout_ms"),
            given: None,
        }
    }

    fn info(&self, node: &str) -> RedisResult<redis::ConnectionInfo> {
        let info = format!("redis://{node}/").into_connection_info()?;
        let mut settings = info.redis_settings().clone();
        if let Some(user) = &self.user {
            settings = settings.set_username(user);
        }
        let read = |path: &String| std::fs::read_to_string(path).unwrap_or_default().trim().to_owned();
        if let Some(password) = self.password.clone().or(self.password_file.as_ref().map(read)) {
            settings = settings.set_password(password);
        }
        Ok(info.set_redis_settings(settings))
    }

    pub fn client(&self) -> RedisResult<Client> {
        Client::open(self.info(&self.nodes[0])?)
    }

    fn cluster(&self) -> RedisResult<ClusterClient> {
        let nodes = self.nodes.iter().map(|node| self.info(node)).collect::<RedisResult<Vec<_>>>()?;
        ClusterClient::builder(nodes).use_protocol(ProtocolVersion::RESP3).build()
    }

    fn sentinel(&self) -> RedisResult<SentinelClient> {
        let nodes = self.nodes.iter().map(|node| format!("redis://{node}/")).collect();
        SentinelClient::build(nodes, self.service.clone(), None, SentinelServerType::Master)
    }

    /// What the locks are made from.
    pub async fn server(&mut self) -> Result<Server, Failed> {
        if self.password_file.is_some() {
            let place = self.clone();
            return Ok(Server::connecting(&self.nodes[0], move |config| {
                let place = place.clone();
                async move {
                    let info = place.info(&place.nodes[0])?;
                    let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
                    let client = Client::open(info.set_redis_settings(settings))?;
                    client.get_multiplexed_async_connection_with_config(&config).await
                }
            }));
        }
        Ok(match &self.kind {
            Kind::Client => self.client()?.into(),
            Kind::Multiplexed | Kind::Manager => {
                self.given = self.connect().await.ok(); // nothing if the server is away
                match self.given.clone() {
                    Some(connection) => (self.client()?, connection).into(),
                    None => self.client()?.into(),
                }
            }
            Kind::Cluster => self.cluster()?.into(),
            Kind::Sentinel => self.sentinel()?.into(),
            Kind::Memory(server) => server.clone().into(),
        })
    }

    pub fn servers(&self) -> Result<Vec<Client>, Failed> {
        Ok(self.nodes.iter().map(|node| Client::open(self.info(node)?)).collect::<RedisResult<_>>()?)
    }

    /// A connection as a program has it.
    pub async fn connect(&self) -> Result<Raw, RedisError> {
        let limit = self.read_timeout.map(|limit| Some(limit).filter(|limit| !limit.is_zero()));
        Ok(match &self.kind {
            Kind::Cluster => Raw::Cluster(self.cluster()?.get_async_connection().await?),
            Kind::Sentinel => Raw::Multiplexed(self.sentinel()?.get_async_connection().await?),
            Kind::Manager => {
                let mut config = ConnectionManagerConfig::new();
                if let Some(limit) = limit {
                    config = config.set_response_timeout(limit);
                }
                Raw::Manager(ConnectionManager::new_lazy_with_config(self.client()?, config)?)
            }
            _ => {
                let mut config = AsyncConnectionConfig::new();
                if let Some(limit) = limit {
                    config = config.set_response_timeout(limit);
                }
                Raw::Multiplexed(self.client()?.get_multiplexed_async_connection_with_config(&config).await?)
            }
        })
    }
}
