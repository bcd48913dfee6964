// SPDX-License-Identifier: MIT OR Apache-2.0

//! The servers themselves, asked directly: which there are, and what they answer. Takes and releases no locks.

use std::time::Duration;

use serde_json::{Value as Json, json};
use slock_client::redis::aio::MultiplexedConnection;
use slock_client::redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionInfo, Pipeline, ProtocolVersion, RedisError, ToRedisArgs,
    Value, cmd,
};

use crate::address::{Kind, Place};
use crate::failure::{Failure, UNAVAILABLE, error_of};
use crate::table::clean;

const CONNECT_WITHIN: Duration = Duration::from_secs(2);
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// One server.
#[derive(Clone)]
pub struct Node {
    pub address: String,
    pub is_replica: bool,
    /// In a cluster the slots that it serves.
    slots: Vec<(i64, i64)>,
    info: ConnectionInfo,
    connection: Option<MultiplexedConnection>,
}

impl Node {
    fn new(info: ConnectionInfo, is_replica: bool) -> Self {
        let address = info.addr().to_string();
        Self { address, is_replica, slots: Vec::new(), info, connection: None }
    }

    /// The answers to these commands, errors among them, over one connection that is opened when it is needed.
    pub async fn answers(&mut self, commands: &[Cmd]) -> Result<Vec<Value>, RedisError> {
        if commands.is_empty() {
            return Ok(Vec::new());
        }
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => self.connect().await?,
        };
        let mut pipeline = Pipeline::with_capacity(commands.len());
        for command in commands {
            pipeline.add_command(command.clone());
        }
        let answers = connection.send_packed_commands(&pipeline, 0, commands.len()).await?;
        self.connection = Some(connection);
        Ok(answers)
    }

    /// The answer to one command.
    pub async fn answer(&mut self, command: Cmd) -> Result<Value, Failure> {
        let answers = self.answers(&[command]).await.map_err(|error| self.failure(&error))?;
        let answer = answers.into_iter().next().unwrap_or(Value::Nil);
        match error_of(&answer) {
            Some(error) => Err(self.failure(&error)),
            None => Ok(answer),
        }
    }

    /// The user who logs in.
    pub fn user(&self) -> &str {
        self.info.redis_settings().username().unwrap_or("default")
    }

    pub fn failure(&self, error: &RedisError) -> Failure {
        Failure::of_reply(error, &self.address)
    }

    /// Protocol 3 gives maps as maps.
    async fn connect(&self) -> Result<MultiplexedConnection, RedisError> {
        let settings = self.info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        let client = Client::open(self.info.clone().set_redis_settings(settings))?;
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_WITHIN))
            .set_response_timeout(Some(ANSWER_WITHIN));
        client.get_multiplexed_async_connection_with_config(&config).await
    }
}

/// All servers, primaries first. A single one is not asked.
pub async fn all(place: &Place) -> Result<Vec<Node>, Failure> {
    if let Kind::Single = place.kind {
        return Ok(vec![Node::new(place.first[0].clone(), false)]);
    }
    let mut failure = None;
    for first in &place.first {
        let mut asked = Node::new(first.clone(), false);
        let found = match &place.kind {
            Kind::Sentinel(name) => of_sentinel(place, &mut asked, name).await,
            _ => of_cluster(place, &mut asked).await,
        };
        match found {
            Ok(mut nodes) => {
                nodes.sort_by_key(|node| node.is_replica);
                return Ok(nodes);
            }
            Err(error) => failure = Some(error),
        }
    }
    Err(failure.unwrap_or_else(|| Failure::usage("the URL names no server")))
}

/// Those that grant locks.
pub async fn primaries(place: &Place) -> Result<Vec<Node>, Failure> {
    Ok(all(place).await?.into_iter().filter(|node| !node.is_replica).collect())
}

/// The one that serves this key.
pub async fn of_key(place: &Place, key: &str) -> Result<Node, Failure> {
    let mut nodes = primaries(place).await?;
    if let Kind::Cluster = place.kind {
        let name = place.full(key);
        let slot = nodes[0].answer(cmd("CLUSTER").arg("KEYSLOT").arg(name).clone()).await?;
        let slot = json_of(&slot).as_i64().unwrap_or(-1);
        nodes.retain(|node| node.slots.iter().any(|&(from, to)| (from..=to).contains(&slot)));
    }
    nodes.into_iter().next().ok_or_else(|| {
        Failure::new(UNAVAILABLE, format!("{}: no node serves '{}' now: try again", place.shown, clean(key)))
    })
}

async fn of_sentinel(place: &Place, sentinel: &mut Node, name: &str) -> Result<Vec<Node>, Failure> {
    let primary = sentinel.answer(cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(name).clone()).await?;
    let primary = json_of(&primary);
    let Some((host, port)) = host_and_port(&primary[0], &primary[1]) else {
        let line = format!("{}: the Sentinels know no primary '{name}'; see SENTINEL MASTERS", place.shown);
        return Err(Failure::new(UNAVAILABLE, line));
    };
    let mut nodes = vec![Node::new(place.at(host, port), false)];
    let replicas = json_of(&sentinel.answer(cmd("SENTINEL").arg("REPLICAS").arg(name).clone()).await?);
    for replica in replicas.as_array().into_iter().flatten() {
        if let Some((host, port)) = host_and_port(&replica["ip"], &replica["port"]) {
            nodes.push(Node::new(place.at(host, port), true));
        }
    }
    Ok(nodes)
}

async fn of_cluster(place: &Place, asked: &mut Node) -> Result<Vec<Node>, Failure> {
    let ranges = json_of(&asked.answer(cmd("CLUSTER").arg("SLOTS").clone()).await?);
    let mut nodes: Vec<Node> = Vec::new();
    for range in ranges.as_array().into_iter().flatten() {
        let slots = (range[0].as_i64().unwrap_or(0), range[1].as_i64().unwrap_or(-1));
        for (number, node) in range.as_array().into_iter().flatten().skip(2).enumerate() {
            // A node that does not know its own address leaves it out: it is the one that was asked.
            let info = match host_and_port(&node[0], &node[1]) {
                Some((host, port)) => place.at(host, port),
                None => asked.info.clone(),
            };
            let node = Node::new(info, number > 0);
            let known = nodes.iter().position(|known| known.address == node.address);
            let index = known.unwrap_or_else(|| {
                nodes.push(node);
                nodes.len() - 1
            });
            if number == 0 {
                nodes[index].slots.push(slots);
            }
        }
    }
    if nodes.is_empty() {
        return Err(Failure::new(
            UNAVAILABLE,
            format!("{}: no node of the cluster serves slots", asked.address),
        ));
    }
    Ok(nodes)
}

/// Replicas of which a primary tells.
pub fn replicas_in(place: &Place, info: &Json) -> Vec<Node> {
    let lines = info.as_object().into_iter().flatten();
    let is_replica =
        |name: &str| name.strip_prefix("slave").is_some_and(|n| n.bytes().all(|b| b.is_ascii_digit()));
    let replicas = lines.filter(|(name, _)| is_replica(name)).filter_map(|(_, line)| {
        let parts: Json = line.as_str()?.split(',').filter_map(|part| part.split_once('=')).collect();
        host_and_port(&parts["ip"], &parts["port"])
    });
    replicas.map(|(host, port)| Node::new(place.at(host, port), true)).collect()
}

fn host_and_port(host: &Json, port: &Json) -> Option<(String, u16)> {
    let host = host.as_str().filter(|host| !host.is_empty() && *host != "?")?;
    let port = port.as_u64().or_else(|| port.as_str()?.parse().ok())?;
    Some((host.to_owned(), u16::try_from(port).ok()?))
}

/// The `name:value` lines of INFO, as an object of texts.
pub fn info_of(answer: &Value) -> Json {
    let text = json_of(answer);
    let lines = text.as_str().unwrap_or("").lines();
    lines.filter_map(|line| line.split_once(':')).collect()
}

/// What a server answered. What is no text in it is replaced.
pub fn json_of(value: &Value) -> Json {
    match value {
        Value::Nil => Json::Null,
        Value::Int(number) => json!(number),
        Value::Double(number) => json!(number),
        Value::Boolean(flag) => json!(flag),
        Value::BulkString(bytes) => json!(String::from_utf8_lossy(bytes)),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => json!(text),
        Value::Okay => json!("OK"),
        Value::Array(values) | Value::Set(values) => values.iter().map(json_of).collect(),
        Value::Map(pairs) => {
            let name = |name: &Value| json_of(name).as_str().unwrap_or("").to_owned();
            Json::Object(pairs.iter().map(|(key, value)| (name(key), json_of(value))).collect())
        }
        other => json!(format!("{other:?}")),
    }
}

/// Who holds the lock and who waits for it, up to so many of each.
pub fn full_info(key: impl ToRedisArgs, count: usize) -> Cmd {
    cmd("SLOCK.INFO").arg(key).arg("FULL").arg("COUNT").arg(count).clone()
}
