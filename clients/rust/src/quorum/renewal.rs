//! How the holds of one quorum are renewed: on each server in one pipeline.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::future::{BoxFuture, join_all};
use tokio::sync::OwnedMutexGuard;

use super::Inner;
use super::hold::Core;
use super::members::{failed, on_a_connection_that_lives};
use crate::answer;
use crate::command::{self, Wait};
use crate::error::Answer;
use crate::lease::Lease;
use crate::node::Node;
use crate::on_its_way::OnItsWay;
use crate::watchdog::{Renewal, Renewed};

pub(super) struct QuorumRenewal;

/// A hold that is to be extended, and cannot be released meanwhile.
pub(super) struct Due {
    pub(super) core: Arc<Core>,
    pub(super) ttl: Duration,
    pub(super) _renewing: OwnedMutexGuard<()>,
}

impl Renewal for QuorumRenewal {
    type Held = Core;

    fn lease(held: &Core) -> &Lease {
        &held.lease
    }

    async fn renew(held: Vec<Arc<Core>>) -> Vec<Option<Renewed>> {
        let mut renewed = vec![None; held.len()];
        let Some(inner) = held.first().map(|core| core.inner.clone()) else { return renewed };
        let (mut places, mut due) = (Vec::new(), Vec::new());
        for (place, core) in held.into_iter().enumerate() {
            // An extension or a release is under way.
            let Ok(guard) = core.renewing.clone().try_lock_owned() else { continue };
            // A release may have begun before the lock was there.
            if core.lease.check().is_ok() {
                places.push(place);
                due.push(Due { ttl: core.lease.ttl(), core, _renewing: guard });
            }
        }
        for (place, answer) in std::iter::zip(places, extend(&inner, due).await) {
            renewed[place] = Some(answer);
        }
        renewed
    }
}

/// Extends all these holds on all servers, and brings back what single servers have lost.
/// Boxed, so that the depth of types in the programs of users stays small.
pub(super) fn extend(inner: &Inner, due: Vec<Due>) -> BoxFuture<'_, Vec<Renewed>> {
    Box::pin(extend_all(inner, due))
}

async fn extend_all(inner: &Inner, due: Vec<Due>) -> Vec<Renewed> {
    if due.is_empty() {
        return Vec::new();
    }
    let shortest = due.iter().map(|due| due.core.lease.sure_ttl().min(due.ttl)).min().unwrap_or_default();
    let limit = inner.node_timeout(shortest);
    let sent = Instant::now();
    let by_node = join_all(inner.nodes.iter().map(|node| extend_on(node, &due, limit))).await;
    let mut results = Vec::new();
    let mut anew = Vec::new();
    for (place, due) in due.iter().enumerate() {
        let answers: Vec<_> = by_node.iter().map(|answers| answers[place].clone()).collect();
        let renewed = inner.renewed(&answers);
        if let Renewed::Extended = renewed {
            for (node, answer) in answers.iter().enumerate() {
                if *answer == Answer::Gone {
                    anew.push(grant_anew(due, node, limit));
                }
            }
            // An answer that came too late is noticed at the next look at the lease.
            let _ = due.core.lease.extended(due.ttl, sent, inner.validity(due.ttl));
        }
        results.push(renewed);
    }
    join_all(anew).await;
    results
}

async fn extend_on(node: &Arc<Node>, due: &[Due], limit: Duration) -> Vec<Answer> {
    let mut commands = redis::pipe();
    for due in due {
        commands.add_command(command::extend(&due.core.acquire.owner, due.ttl));
    }
    let used = Mutex::new(None);
    let (last, commands) = (&used, &commands);
    let ask = on_a_connection_that_lives(node, |link| async move {
        *last.lock().expect("nobody panics here") = Some(link.clone());
        let on_its_way = OnItsWay::new(|| due.iter().for_each(|due| due.core.may_come_late(due.ttl)));
        let answers = link.send_all(commands).await.map_err(answer::failure);
        on_its_way.ended(&answers);
        answers
    });
    let answers = tokio::time::timeout(limit, ask).await;
    match answers {
        Err(_) => {
            if let Some(link) = used.into_inner().expect("nobody panics here") {
                link.discard();
            }
            vec![Answer::NoAnswer; due.len()]
        }
        Ok(Err(failure)) => vec![failed(failure); due.len()],
        Ok(Ok(replies)) => {
            let reply = |reply| extended(answer::number(Ok(reply)).map_err(failed));
            replies.into_iter().map(reply).collect()
        }
    }
}

/// What an answer to an extension means.
pub(super) fn extended(reply: Result<Option<i64>, Answer>) -> Answer {
    match reply {
        Ok(Some(1)) => Answer::Granted,
        Ok(_) => Answer::Gone,
        Err(answer) => answer,
    }
}

async fn grant_anew(due: &Due, node: usize, limit: Duration) {
    let mut acquire = (*due.core.acquire).clone();
    acquire.ttl = due.ttl;
    let again = command::acquire(&acquire, &Wait::No);
    let note = || due.core.may_come_late(due.ttl);
    let (_, fence) = due.core.members.grant(node, &again, limit, &note).await;
    if let Some(fence) = fence {
        due.core.granted_anew(node, fence);
    }
}
