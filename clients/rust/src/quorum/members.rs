//! The servers of a quorum, as far as one token is concerned.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use redis::Cmd;
use tokio::sync::watch;

use super::Inner;
use crate::answer::{self, Failure};
use crate::backoff::Backoff;
use crate::error::Answer;
use crate::given_tokens::Ending;
use crate::node::{Link, Node};
use crate::route::{self, Note};

/// What was sent to each server for one token, so that a release never passes a request.
pub(super) struct Members {
    members: Vec<Member>,
}

struct Member {
    node: Arc<Node>,
    /// The connection that took the last request for a hold.
    sent_on: Mutex<Option<Link>>,
    /// True when nothing is on its way any more that could release a later grant.
    released: Mutex<watch::Receiver<bool>>,
}

impl Member {
    fn sent_on(&self) -> std::sync::MutexGuard<'_, Option<Link>> {
        self.sent_on.lock().expect("no panic while the link of a member is locked")
    }

    fn released(&self) -> std::sync::MutexGuard<'_, watch::Receiver<bool>> {
        self.released.lock().expect("no panic while the release of a member is locked")
    }
}

impl Members {
    pub(super) fn new(nodes: &[Arc<Node>]) -> Self {
        let member = |node: &Arc<Node>| Member {
            node: node.clone(),
            sent_on: Mutex::default(),
            released: Mutex::new(watch::channel(true).1),
        };
        Self { members: nodes.iter().map(member).collect() }
    }

    /// Asks one server for a hold. While an earlier release may be on its way there, nothing is asked: it
    /// could be executed after the grant.
    pub(super) async fn grant(
        &self,
        number: usize,
        command: &Cmd,
        limit: Duration,
        note: Note<'_>,
    ) -> (Answer, Option<i64>) {
        let member = &self.members[number];
        if !*member.released().borrow() {
            return (Answer::NoAnswer, None);
        }
        let ask = on_a_connection_that_lives(&member.node, |link| async move {
            *member.sent_on() = Some(link.clone());
            route::ask(&link, false, command, note).await
        });
        match tokio::time::timeout(limit, ask).await {
            Err(_) => {
                // The release goes on over this connection, and others try a new one.
                if let Some(link) = &*member.sent_on() {
                    link.discard();
                }
                (Answer::NoAnswer, None)
            }
            Ok(Ok(Some(fence))) if fence != 0 => (Answer::Granted, Some(fence)),
            Ok(Ok(_)) => (Answer::Refused, None),
            Ok(Err(failure)) => (failed(failure), None),
        }
    }

    /// Releases on all servers at once, each in a task of its own that ends when its server has answered or
    /// the hold would be over. Gives a way to wait for each answer: whether the hold was there.
    pub(super) fn release(
        &self,
        inner: &Arc<Inner>,
        runtime: &tokio::runtime::Handle,
        command: &Cmd,
        until: Instant,
        ending: Option<Arc<Ending>>,
    ) -> Vec<tokio::sync::oneshot::Receiver<Released>> {
        let release = |member: &Member| {
            let (sender, receiver) = tokio::sync::oneshot::channel();
            let (done, released) = watch::channel(false);
            *member.released() = released;
            let (node, link, command) = (member.node.clone(), member.sent_on().take(), command.clone());
            let (releasing, ending) = (inner.clone(), ending.clone());
            inner.background.spawn(runtime, async move {
                let (answer, settled) = release_on(&releasing, &node, link, command, until).await;
                // It may have begun when the connections were closed already, and opened one.
                if releasing.closing.is_closed() {
                    node.close();
                }
                // Nobody may listen any more to either.
                let _ = sender.send(answer);
                if settled {
                    let _ = done.send(true);
                }
                drop(ending);
            });
            receiver
        };
        self.members.iter().map(release).collect()
    }
}

/// Tries again at once on a new connection when the present one turns out to be closed: the server may have
/// been started anew since it was used.
pub(super) async fn on_a_connection_that_lives<T, F>(
    node: &Arc<Node>,
    ask: impl Fn(Link) -> F,
) -> Result<T, Failure>
where
    F: Future<Output = Result<T, Failure>>,
{
    let link = node.link().await.map_err(answer::failure)?;
    match ask(link).await {
        Err(Failure::Connection(error)) if !error.is_timeout() => {
            ask(node.link().await.map_err(answer::failure)?).await
        }
        result => result,
    }
}

/// How a release went.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Released {
    /// It was there, or an attempt without an answer released it.
    Yes,
    No,
    NoAnswer,
}

/// Gives how it went, and whether nothing is on its way any more.
async fn release_on(
    inner: &Inner,
    node: &Arc<Node>,
    link: Option<Link>,
    command: Cmd,
    until: Instant,
) -> (Released, bool) {
    let mut repeated = false;
    let mut settled = true;
    // On the connection of the request the release cannot pass it.
    if let Some(link) = link {
        match link.ask(&command, false).await {
            Err(Failure::Connection(error)) => {
                repeated = true;
                settled = !error.is_timeout();
            }
            answer => return (of(answer, repeated), true),
        }
    }
    let mut backoff = Backoff::new();
    loop {
        let answer = match node.link().await {
            Ok(link) => link.ask(&command, false).await,
            Err(error) => Err(answer::failure(error)),
        };
        match answer {
            Err(Failure::Connection(_) | Failure::Passing(_))
                if !inner.closing.is_closed() && Instant::now() < until => {}
            answer => return (of(answer, repeated), settled),
        }
        tokio::time::sleep(backoff.next()).await;
    }
}

fn of(answer: Result<Option<i64>, Failure>, repeated: bool) -> Released {
    match answer {
        Ok(Some(number)) if number > 0 || repeated => Released::Yes,
        Ok(_) => Released::No,
        Err(_) => Released::NoAnswer,
    }
}

pub(super) fn failed(failure: Failure) -> Answer {
    Answer::Failed(failure.into_error().to_string())
}

/// Sends one command to all servers at once, and notes when one got no answer. Gives the answers in the order
/// of the servers.
pub(super) async fn ask_all(
    nodes: &[Arc<Node>],
    command: &Cmd,
    limit: Duration,
    note: Note<'_>,
) -> Vec<Result<Option<i64>, Answer>> {
    let ask =
        |node: Arc<Node>| async move {
            let ask = on_a_connection_that_lives(&node, |link| async move {
                route::ask(&link, false, command, note).await
            });
            match tokio::time::timeout(limit, ask).await {
                Err(_) => Err(Answer::NoAnswer),
                Ok(result) => result.map_err(failed),
            }
        };
    join_all(nodes.iter().cloned().map(ask)).await
}
