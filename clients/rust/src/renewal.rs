//! How the holds of one [`Locks`](crate::Locks) are renewed: those of one node in one pipeline.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use redis::RedisError;
use tokio::sync::OwnedMutexGuard;

use crate::answer::{self, Failure};
use crate::command;
use crate::hold::Core;
use crate::lease::{Lease, counted};
use crate::locks::Inner;
use crate::node::{Node, REPLY_TIMEOUT};
use crate::on_its_way::OnItsWay;
use crate::route::Route;
use crate::watchdog::{Renewal, Renewed};

pub(crate) struct LocksRenewal;

/// Holds on one node, with their places in the round.
#[derive(Default)]
struct Batch {
    held: Vec<(usize, Arc<Core>, OwnedMutexGuard<()>)>,
}

impl Renewal for LocksRenewal {
    type Held = Core;

    fn lease(held: &Core) -> &Lease {
        &held.lease
    }

    async fn renew(held: Vec<Arc<Core>>) -> Vec<Option<Renewed>> {
        let mut renewed = vec![None; held.len()];
        let Some(inner) = held.first().map(|held| held.inner.clone()) else { return renewed };
        // A node that does not answer must not keep those from their next renewal that are on another.
        let shortest = held.iter().map(|held| held.lease.sure_ttl()).min().unwrap_or_default();
        let mut batches: HashMap<String, (Arc<Node>, Batch)> = HashMap::new();
        for (place, held) in held.into_iter().enumerate() {
            // An extension is under way: it sets the deadline.
            let Ok(guard) = held.renewing.clone().try_lock_owned() else { continue };
            let node = match Route::new(&inner.servers, &held.owner).node().await {
                Ok(node) => node,
                Err(failure) => {
                    // Without a map of the cluster there is none for the next hold either.
                    renewed[place..].fill(Some(Renewed::Failed(failure.into_error())));
                    break;
                }
            };
            let entry = batches.entry(node.address().to_owned());
            let (_, batch) = entry.or_insert_with(|| (node, Batch::default()));
            batch.held.push((place, held, guard));
        }
        let limit = (shortest / 3).min(REPLY_TIMEOUT);
        let answers = batches.into_values().map(|(node, batch)| renew_on(&inner, node, batch, limit));
        let answers = join_all(answers);
        for (place, answer) in answers.await.into_iter().flatten() {
            renewed[place] = Some(answer);
        }
        renewed
    }
}

async fn renew_on(inner: &Inner, node: Arc<Node>, batch: Batch, limit: Duration) -> Vec<(usize, Renewed)> {
    let link = match within(limit, &node, node.link()).await {
        Ok(link) => link,
        Err(error) => return not_renewed(inner, &batch, Failure::Connection(error)),
    };
    let mut commands = redis::pipe();
    for (_, held, _) in &batch.held {
        commands.add_command(command::extend(&held.owner, held.lease.ttl()));
    }
    let on_its_way = OnItsWay::new(|| batch.held.iter().for_each(|(_, held, _)| may_come_late(held)));
    let sent = Instant::now();
    let replies = within(limit, &node, link.send_all(&commands)).await;
    let replies = replies.map_err(Failure::Connection);
    on_its_way.ended(&replies);
    let replies = match replies {
        Ok(replies) => replies,
        Err(failure) => {
            link.discard();
            return not_renewed(inner, &batch, failure);
        }
    };
    let mut renewed = Vec::new();
    for ((place, held, _guard), reply) in std::iter::zip(batch.held, replies) {
        let answer = match answer::number(Ok(reply)) {
            Ok(Some(1)) => extended(&held, sent),
            Ok(_) => Renewed::Gone,
            Err(failure) => after(inner, &held, &link.node, failure).await,
        };
        renewed.push((place, answer));
    }
    renewed
}

async fn within<T>(
    limit: Duration,
    node: &Node,
    answer: impl Future<Output = Result<T, RedisError>>,
) -> Result<T, RedisError> {
    let answered = tokio::time::timeout(limit, answer).await;
    answered.unwrap_or_else(|_| Err(answer::no_answer(node.address())))
}

fn not_renewed(inner: &Inner, batch: &Batch, failure: Failure) -> Vec<(usize, Renewed)> {
    inner.servers.doubt();
    let failed = Renewed::Failed(failure.into_error());
    batch.held.iter().map(|(place, ..)| (*place, failed.clone())).collect()
}

fn extended(held: &Core, sent: Instant) -> Renewed {
    let ttl = held.lease.ttl();
    // An answer that came too late is noticed at the next look at the lease.
    let _ = held.lease.extended(ttl, sent, counted(ttl));
    Renewed::Extended
}

/// An extension of this hold got no answer.
fn may_come_late(held: &Core) {
    held.lease.may_come_late(counted(held.lease.ttl()));
}

/// Follows a redirection at once, since the validity goes on to run.
async fn after(inner: &Inner, held: &Core, asked: &Arc<Node>, failure: Failure) -> Renewed {
    let mut route = Route::new(&inner.servers, &held.owner);
    let (mut failure, mut asked) = (failure, asked.clone());
    let extend = command::extend(&held.owner, held.lease.ttl());
    while route.follow(&failure, &asked) {
        let (link, asking) = match route.link().await {
            Ok(link) => link,
            Err(next) => {
                failure = next;
                break;
            }
        };
        let on_its_way = OnItsWay::new(|| may_come_late(held));
        let sent = Instant::now();
        let answer = link.ask(&extend, asking).await;
        on_its_way.ended(&answer);
        match answer {
            Ok(Some(1)) => return extended(held, sent),
            Ok(_) => return Renewed::Gone,
            Err(next) => (failure, asked) = (next, link.node.clone()),
        }
    }
    inner.servers.doubt();
    Renewed::Failed(failure.into_error())
}
