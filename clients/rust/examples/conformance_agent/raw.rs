//! Plain commands of the base library, beside the locks.

use redis::aio::MultiplexedConnection;
use redis::cluster::ClusterClientBuilder;
use redis::cluster_async::ClusterConnection;
use redis::sentinel::{SentinelClient, SentinelNodeConnectionInfo, SentinelServerType};
use redis::{
    Client, Cmd, ConnectionInfo, FromRedisValue, IntoConnectionInfo, RedisConnectionInfo, RedisError,
};
use slock_client::Server;

/// Where the servers are.
#[derive(Clone)]
pub struct Place {
    pub kind: String,
    pub nodes: Vec<String>,
    pub service: String,
    pub user: Option<String>,
    pub password: Option<String>,
}

pub enum Raw {
    One(MultiplexedConnection),
    Cluster(ClusterConnection),
}

impl Place {
    fn settings(&self) -> RedisConnectionInfo {
        let mut settings = RedisConnectionInfo::default();
        if let Some(user) = &self.user {
            settings = settings.set_username(user);
        }
        if let Some(password) = &self.password {
            settings = settings.set_password(password);
        }
        settings
    }

    fn node(&self, node: &str) -> Result<ConnectionInfo, RedisError> {
        Ok(format!("redis://{node}").into_connection_info()?.set_redis_settings(self.settings()))
    }

    fn nodes(&self) -> Result<Vec<ConnectionInfo>, RedisError> {
        self.nodes.iter().map(|node| self.node(node)).collect()
    }

    pub fn client(&self) -> Result<Client, RedisError> {
        Client::open(self.node(&self.nodes[0])?)
    }

    pub fn clients(&self) -> Result<Vec<Client>, RedisError> {
        self.nodes()?.into_iter().map(Client::open).collect()
    }

    fn sentinel(&self) -> Result<SentinelClient, RedisError> {
        let sentinels = self.nodes.iter().map(|node| format!("redis://{node}")).collect();
        let settings = SentinelNodeConnectionInfo::default().set_redis_connection_info(self.settings());
        SentinelClient::build(sentinels, self.service.clone(), Some(settings), SentinelServerType::Master)
    }

    pub fn server(&self) -> Result<Server, RedisError> {
        match self.kind.as_str() {
            "cluster" => Server::cluster(self.nodes()?),
            "sentinel" => Ok(self.sentinel()?.into()),
            _ => Ok(self.client()?.into()),
        }
    }

    pub async fn connect(&self) -> Result<Raw, RedisError> {
        Ok(match self.kind.as_str() {
            "cluster" => {
                let client = ClusterClientBuilder::new(self.nodes()?).build()?;
                Raw::Cluster(client.get_async_connection().await?)
            }
            "sentinel" => Raw::One(self.sentinel()?.get_async_connection().await?),
            _ => Raw::One(self.client()?.get_multiplexed_async_connection().await?),
        })
    }
}

impl Raw {
    pub async fn ask<T: FromRedisValue>(&mut self, command: &Cmd) -> Result<T, RedisError> {
        match self {
            Raw::One(connection) => command.query_async(connection).await,
            Raw::Cluster(connection) => command.query_async(connection).await,
        }
    }
}
