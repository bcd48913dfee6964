// SPDX-License-Identifier: MIT OR Apache-2.0

//! What `slock top` asks of the servers, once a second: INFO slock, the longest queues, and a slice of the keys
//! in search of the longest holds. So a frame costs a server the same, however many locks it has.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use serde_json::Value as Json;
use slock_client::redis::cmd;
use tokio::time::timeout;

use crate::address::Place;
use crate::failure::Failure;
use crate::list::{Name, Slices, locks};
use crate::nodes::{self, Node, full_info, info_of, json_of};

/// So many of the longest queues, and of the longest holds, are known.
const QUEUES: usize = 30;
const HOLDS: usize = 30;
/// So many keys of a server are looked at in a frame.
const SLICE: usize = 200;
/// A server that takes longer counts as away.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// How often it is asked which servers there are.
const BETWEEN_SEARCHES: Duration = Duration::from_secs(10);

/// One moment.
#[derive(Clone, Default)]
pub struct Frame {
    pub servers: Vec<Server>,
    pub locks: Vec<Lock>,
    /// Why nothing can be shown.
    pub problem: Option<String>,
    /// What SLOCK.INFO says of the lock that was looked into.
    pub opened: Option<Json>,
}

#[derive(Clone, Default)]
pub struct Server {
    pub address: String,
    pub is_replica: bool,
    /// The fields of INFO slock; null when it is away.
    pub info: Json,
    pub grants_per_second: f64,
    pub problem: Option<String>,
}

impl Server {
    /// A number of INFO slock, or one of the parts of a field.
    pub fn number(&self, field: &str, part: Option<&str>) -> u64 {
        let text = self.info[field].as_str().unwrap_or("");
        let text = match part {
            None => text,
            Some(part) => {
                text.split(',').find_map(|one| one.strip_prefix(part)?.strip_prefix('=')).unwrap_or("")
            }
        };
        text.parse().unwrap_or(0)
    }
}

/// A lock that is held or waited for.
#[derive(Clone, Debug)]
pub struct Lock {
    name: Name,
    pub key: String,
    pub node: String,
    /// What SLOCK.INFO says.
    pub info: Json,
    pub longest_wait: u64,
}

impl Lock {
    pub fn waiters(&self) -> u64 {
        self.info["waiters"].as_u64().unwrap_or(0)
    }

    pub fn held(&self) -> u64 {
        self.info["holders"][0]["held-ms"].as_u64().unwrap_or(0)
    }
}

/// What is known of a server between two frames.
struct Watched {
    node: Node,
    slices: Slices,
    long_held: Vec<Name>,
    grants: Option<(u64, Instant)>,
}

pub struct Sampler {
    place: Place,
    watched: Vec<Watched>,
    searched: Option<Instant>,
}

impl Sampler {
    pub fn new(place: Place) -> Self {
        Self { place, watched: Vec::new(), searched: None }
    }

    /// The next frame. Never longer than a few seconds, and never an error: what fails is in the frame.
    pub async fn frame(&mut self, opened: Option<&(String, String)>) -> Frame {
        let mut frame = Frame::default();
        if self.searched.is_none_or(|at| at.elapsed() > BETWEEN_SEARCHES) {
            match timeout(ANSWER_WITHIN, nodes::all(&self.place)).await {
                Ok(Ok(nodes)) => self.watch(nodes),
                Ok(Err(failure)) => frame.problem = Some(failure.line),
                Err(_) => frame.problem = Some(format!("{} does not answer", self.place.shown)),
            }
        }
        for watched in &mut self.watched {
            let mut server = Server {
                address: watched.node.address.clone(),
                is_replica: watched.node.is_replica,
                ..Server::default()
            };
            let asked =
                timeout(ANSWER_WITHIN, watched.look(&self.place, &mut server, &mut frame.locks)).await;
            match asked.unwrap_or_else(|_| Err(Failure::usage(format!("{} does not answer", server.address))))
            {
                Ok(()) => {}
                Err(failure) => {
                    watched.grants = None;
                    server.problem = Some(failure.line);
                }
            }
            if let Some((key, node)) = opened
                && *node == server.address
            {
                let info = full_info(self.place.full(key), 100);
                let answer = timeout(ANSWER_WITHIN, watched.node.answer(info)).await;
                frame.opened = answer.ok().and_then(Result::ok).map(|answer| json_of(&answer));
            }
            frame.servers.push(server);
        }
        frame
    }

    /// Keeps what is known of servers that are still there.
    fn watch(&mut self, nodes: Vec<Node>) {
        self.searched = Some(Instant::now());
        let mut known: HashMap<String, Watched> =
            self.watched.drain(..).map(|watched| (watched.node.address.clone(), watched)).collect();
        for node in nodes {
            let slices = Slices::new(&self.place, None);
            let watched = match known.remove(&node.address) {
                Some(mut watched) => {
                    watched.node.is_replica = node.is_replica;
                    watched
                }
                None => Watched { node, slices, long_held: Vec::new(), grants: None },
            };
            self.watched.push(watched);
        }
    }
}

impl Watched {
    async fn look(
        &mut self,
        place: &Place,
        server: &mut Server,
        shown: &mut Vec<Lock>,
    ) -> Result<(), Failure> {
        let info = info_of(&self.node.answer(cmd("INFO").arg("slock").clone()).await?);
        if info["slock_grants"].is_null() {
            let line = format!("{}: {}", server.address, slock_client::Error::ModuleNotLoaded);
            return Err(Failure::usage(line));
        }
        server.info = info;
        let now = (server.number("slock_grants", None), Instant::now());
        if let Some((before, at)) = self.grants.replace(now) {
            // After a restart the server counts from 0.
            let seconds = (now.1 - at).as_secs_f64().max(0.001);
            server.grants_per_second = now.0.saturating_sub(before) as f64 / seconds;
        }
        if server.is_replica {
            return Ok(());
        }
        let queues = json_of(&self.node.answer(cmd("SLOCK.QUEUES").arg("COUNT").arg(QUEUES).clone()).await?);
        let longest_waits: HashMap<&str, u64> = queues[1]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|queue| Some((queue["key"].as_str()?, queue["longest-wait-ms"].as_u64()?)))
            .collect();

        let new = match self.slices.next_names(&mut self.node, SLICE).await? {
            Some(names) => names,
            None => {
                self.slices = Slices::new(place, None);
                Vec::new()
            }
        };
        let mut names: Vec<Name> = longest_waits.keys().map(|&name| name.into()).collect();
        names.extend(self.long_held.drain(..).chain(new));
        names.sort();
        names.dedup();
        let lock = |(name, info): (Name, Json)| {
            let longest_wait = longest_waits.get(&*String::from_utf8_lossy(&name)).copied().unwrap_or(0);
            let key = info["key"].as_str().unwrap_or("").to_owned();
            Lock { name, key, node: server.address.clone(), info, longest_wait }
        };
        let locks = locks(place, &mut self.node, &names, 1).await?;
        let mut locks: Vec<Lock> = locks.into_iter().map(lock).collect();
        locks.sort_by_key(|lock| std::cmp::Reverse(lock.held()));
        self.long_held = locks.iter().take(HOLDS).map(|lock| lock.name.clone()).collect();
        let is_shown =
            |number: usize, lock: &Lock| number < HOLDS || lock.longest_wait > 0 || lock.waiters() > 0;
        shown.extend(
            locks.into_iter().enumerate().filter(|(n, lock)| is_shown(*n, lock)).map(|(_, lock)| lock),
        );
        Ok(())
    }
}
