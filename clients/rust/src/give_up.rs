//! Clears what a request that was given up may have left: first what waits, then what was granted.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use redis::{Cmd, Value};

use crate::answer::Failure;
use crate::attempt::Purpose;
use crate::blocked::Blocked;
use crate::locks::Inner;
use crate::node::Link;
use crate::on_its_way::OnItsWay;
use crate::route::Note;
use crate::{Error, Reason, answer, command, route};

const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

pub(crate) struct Remains {
    pub(crate) purpose: Purpose,
    /// Connections on which the request may still be on its way. The last one is the last that was used.
    pub(crate) links: Vec<Link>,
    pub(crate) blocked: Option<Blocked>,
    /// Nothing can be left after this moment but what its channel keeps.
    pub(crate) until: Instant,
}

pub(crate) async fn clear(inner: Arc<Inner>, remains: Remains) {
    let Remains { purpose, mut links, blocked, until } = remains;
    if purpose.owner().given {
        // What an earlier connection delivers late could end a later hold of the token.
        links.drain(..links.len().saturating_sub(1));
    }
    if let Some(blocked) = blocked {
        withdraw_blocked(&inner, &purpose, blocked, until).await;
    }
    // On the connection of the request the two commands cannot pass it.
    let undo = undo(&purpose);
    let late = || may_come_late(&purpose);
    let cleared = join_all(links.iter().map(|link| clear_on(link, &purpose, &undo, &late))).await;
    let number = match cleared.last() {
        Some(Some(number)) => Ok(*number),
        _ => clear_by_route(&inner, &purpose, &undo, until, &late).await,
    };
    if let Purpose::Upgrade { hold, .. } = &purpose {
        match number {
            Ok(Some(fence)) => hold.changed(fence, crate::Mode::Read),
            Err(Error::NotHeld) => hold.lease.lose(Reason::Gone),
            _ => {}
        }
    }
}

/// What follows the withdrawal: a release, or for an upgrade the way back to reading.
fn undo(purpose: &Purpose) -> Cmd {
    match purpose {
        Purpose::Acquire(request) => command::release(&request.owner, Some(request.mode)),
        Purpose::Upgrade { hold, ttl, .. } => command::downgrade(&hold.owner, *ttl),
    }
}

/// An upgrade got no answer.
fn upgrade_may_come_late(purpose: &Purpose) {
    if let Purpose::Upgrade { hold, ttl, .. } = purpose {
        hold.late_extension(*ttl);
    }
}

/// An upgrade and its undoing got no answer.
fn may_come_late(purpose: &Purpose) {
    if let Purpose::Upgrade { hold, ttl, .. } = purpose {
        hold.late_downgrade(*ttl);
    }
}

async fn clear_on(link: &Link, purpose: &Purpose, undo: &Cmd, late: Note<'_>) -> Option<Option<i64>> {
    let mut commands = redis::pipe();
    commands.add_command(command::cancel(purpose.owner())).add_command(undo.clone());
    let on_its_way = OnItsWay::new(late);
    let replies = link.send_all(&commands).await.map_err(Failure::Connection);
    on_its_way.ended(&replies);
    let replies: [Value; 2] = replies.ok()?.try_into().ok()?;
    let [cancelled, undone] = replies.map(|reply| answer::number(Ok(reply)));
    cancelled.ok()?;
    undone.ok()
}

async fn clear_by_route(
    inner: &Inner,
    purpose: &Purpose,
    undo: &Cmd,
    until: Instant,
    late: Note<'_>,
) -> Result<Option<i64>, Error> {
    route::call(inner, purpose.owner(), &command::cancel(purpose.owner()), until).await?;
    Ok(route::call_noting(inner, purpose.owner(), undo, until, late).await?.number)
}

/// The connection that waits can take no other command. So the request is withdrawn over another one, again
/// and again, until it was there to be withdrawn: then it is answered.
async fn withdraw_blocked(inner: &Inner, purpose: &Purpose, mut blocked: Blocked, until: Instant) {
    let cancel = command::cancel(purpose.owner());
    let on_its_way = OnItsWay::new(|| upgrade_may_come_late(purpose));
    let mut pause = FIRST_PAUSE;
    while Instant::now() < until {
        let asked = route::call(inner, purpose.owner(), &cancel, until).await;
        if asked.is_err() && inner.closing.is_closed() {
            return;
        }
        let answered = tokio::time::timeout(pause, blocked.reply()).await;
        match answered.map(answer::number) {
            Err(_) => pause = (pause * 2).min(LONGEST_PAUSE),
            Ok(answer) => return on_its_way.ended(&answer),
        }
    }
}
