//! A hold from what a token holds already.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use futures_util::future::join_all;

use super::attempt::Granted;
use super::members::{self, Members};
use super::{Inner, renewal};
use crate::Error;
use crate::command::{self, Acquire, Wait};
use crate::error::Answer;
use crate::route::Note;
use crate::watchdog::Renewed;

/// Extends on all servers. The hold counts when a majority of them did it.
pub(super) async fn adopt(inner: &Inner, acquire: &Acquire, members: &Members) -> Result<Granted, Error> {
    let extend = command::extend(&acquire.owner, acquire.ttl);
    let late = AtomicBool::new(false);
    let note = || late.store(true, Ordering::Relaxed);
    let sent = Instant::now();
    let answers = members::ask_all(&inner.nodes, &extend, inner.node_timeout(acquire.ttl), &note).await;
    let answers: Vec<_> = answers.into_iter().map(renewal::extended).collect();
    match inner.renewed(&answers) {
        Renewed::Extended => {}
        Renewed::Gone => return Err(Error::NotHeld),
        Renewed::Failed(error) => return Err(error),
    }
    let fences = fences(inner, acquire, members, &answers, &note).await?;
    Ok(Granted { sent, fences, late: late.into_inner() })
}

/// The fences of the servers that extended: the owner that asks again gets the fence of its hold, or an error
/// when it has the hold in the other mode.
async fn fences(
    inner: &Inner,
    acquire: &Acquire,
    members: &Members,
    extended: &[Answer],
    note: Note<'_>,
) -> Result<Vec<Option<i64>>, Error> {
    let limit = inner.node_timeout(acquire.ttl);
    let again = &command::acquire(acquire, &Wait::No);
    let ask = |(number, extended): (usize, &Answer)| {
        let there = *extended == Answer::Granted;
        async move { if there { members.grant(number, again, limit, note).await } else { (Answer::Gone, None) } }
    };
    let mut fences = Vec::new();
    for (answer, fence) in join_all(extended.iter().enumerate().map(ask)).await {
        match answer {
            Answer::Failed(text) if text.starts_with("WRONGMODE") => return Err(Error::WrongMode(text)),
            _ => fences.push(fence),
        }
    }
    Ok(fences)
}
