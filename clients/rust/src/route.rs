//! The way of a command to the node that serves its keys.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use redis::Cmd;

use crate::answer::{self, Failure};
use crate::backoff::Backoff;
use crate::locks::Inner;
use crate::node::{Link, Node};
use crate::on_its_way::OnItsWay;
use crate::servers::Servers;
use crate::{Error, command::Owner};

/// More redirections than this in a row are no way but a circle.
const MOST_REDIRECTIONS: u32 = 8;

/// Follows the redirections of a cluster.
pub(crate) struct Route<'a> {
    servers: &'a Servers,
    slot: u16,
    asking: Option<Arc<Node>>,
    redirections: u32,
}

impl<'a> Route<'a> {
    pub(crate) fn new(servers: &'a Servers, owner: &Owner) -> Self {
        Self { servers, slot: servers.slot(owner.first_key()), asking: None, redirections: 0 }
    }

    pub(crate) fn slot(&self) -> u16 {
        self.slot
    }

    pub(crate) async fn node(&mut self) -> Result<Arc<Node>, Failure> {
        self.servers.node(self.slot).await.map_err(answer::failure)
    }

    /// Where to send next, and whether `ASKING` must come first.
    pub(crate) async fn link(&mut self) -> Result<(Link, bool), Failure> {
        let (node, asking) = match self.asking.take() {
            Some(node) => (node, true),
            None => (self.node().await?, false),
        };
        Ok((node.link().await.map_err(answer::failure)?, asking))
    }

    /// Gives whether to ask again at once, at another node.
    pub(crate) fn follow(&mut self, failure: &Failure, asked: &Arc<Node>) -> bool {
        self.redirections += 1;
        if self.redirections > MOST_REDIRECTIONS {
            self.servers.doubt();
            return false;
        }
        match failure {
            Failure::Moved { address } => self.servers.moved(self.slot, address, asked),
            Failure::Ask { address } => {
                self.asking = self.servers.at(address, asked);
                self.asking.is_some()
            }
            _ => false,
        }
    }
}

/// The answer to a command that may have been sent several times.
pub(crate) struct Called {
    pub(crate) number: Option<i64>,
    /// When the attempt was sent that was answered.
    pub(crate) sent: Instant,
    /// An earlier attempt got no answer, so it may have been executed.
    pub(crate) repeated: bool,
}

/// Sends a command that may be repeated, until it is answered or this moment has come. Boxed, so that the
/// depth of types in the programs of users stays small.
pub(crate) fn call<'a>(
    inner: &'a Inner,
    owner: &'a Owner,
    command: &'a Cmd,
    until: Instant,
) -> BoxFuture<'a, Result<Called, Error>> {
    Box::pin(repeat(inner, owner, command, until, &|| {}))
}

/// What is called for each attempt that got no answer.
pub(crate) type Note<'a> = &'a (dyn Fn() + Send + Sync);

/// As [`call`]. Notes each attempt that got no answer, also when the future is dropped.
pub(crate) fn call_noting<'a>(
    inner: &'a Inner,
    owner: &'a Owner,
    command: &'a Cmd,
    until: Instant,
    note: Note<'a>,
) -> BoxFuture<'a, Result<Called, Error>> {
    Box::pin(repeat(inner, owner, command, until, note))
}

/// Sends a command once, and notes when it got no answer.
pub(crate) async fn ask(
    link: &Link,
    asking: bool,
    command: &Cmd,
    note: Note<'_>,
) -> Result<Option<i64>, Failure> {
    let on_its_way = OnItsWay::new(note);
    let answer = link.ask(command, asking).await;
    on_its_way.ended(&answer);
    answer
}

async fn repeat(
    inner: &Inner,
    owner: &Owner,
    command: &Cmd,
    until: Instant,
    note: Note<'_>,
) -> Result<Called, Error> {
    let mut backoff = Backoff::new();
    let mut route = Route::new(&inner.servers, owner);
    let mut repeated = false;
    loop {
        let sent = Instant::now();
        let failure = match route.link().await {
            Err(failure) => failure,
            Ok((link, asking)) => match ask(&link, asking, command, note).await {
                Ok(number) => return Ok(Called { number, sent, repeated }),
                Err(failure) if route.follow(&failure, &link.node) => continue,
                Err(failure) => {
                    repeated |= matches!(failure, Failure::Connection(_));
                    failure
                }
            },
        };
        if let Failure::Final(error) = failure {
            return Err(error);
        }
        inner.servers.doubt();
        let pause = backoff.next();
        if inner.closing.is_closed() || time_left(until) < pause {
            return Err(failure.into_error());
        }
        tokio::time::sleep(pause).await;
        route = Route::new(&inner.servers, owner);
    }
}

pub(crate) fn time_left(until: Instant) -> Duration {
    until.saturating_duration_since(Instant::now())
}
