//! What tests of the core give it: moments, requests, and what it is told of those who wait.

use std::collections::BTreeSet;

use crate::error::LockError;
use crate::manager::TimeSlice;
use crate::mode::{Mode, Want};
use crate::outside::{Clients, NotGranted};
use crate::queue::Waiter;
use crate::request::{Claim, ReplyTo, Request, Terms, WaitPolicy};
use crate::timestamp::Timestamp;

/// How long holds last, if a test does not say otherwise.
pub(super) const TTL_MS: u64 = 500;

pub(super) const WRITE: Want = Want::Hold(Mode::Write);
pub(super) const READ: Want = Want::Hold(Mode::Read);
pub(super) const UPGRADE: Want = Want::Upgrade;

/// A moment that is so many milliseconds after the start of both clocks.
pub(super) fn ms(ms: u64) -> Timestamp {
    Timestamp::new(ms * 1000, ms)
}

/// The clock of an event-loop iteration without a limit of time: it stands still at this moment.
pub(super) fn whole_turn(now: Timestamp) -> impl FnMut() -> Option<Timestamp> {
    move || Some(now)
}

/// For this connection: what it takes ends with it.
pub(super) fn bound(request: Request<'_>, client: u64) -> Request<'_> {
    changed(request, |claim| (claim.terms.client, claim.terms.is_ephemeral) = (client, true))
}

/// The same with another claim.
pub(super) fn changed<'a>(mut request: Request<'a>, change: impl FnOnce(&mut Claim<'a>)) -> Request<'a> {
    change(&mut request.claim);
    request
}

/// What the core is told of those who wait.
#[derive(Debug, Default)]
pub(super) struct TestClients {
    /// Tokens whose users have lost their permission.
    pub(super) denied: BTreeSet<Vec<u8>>,
    /// Channels to which nobody listens.
    pub(super) deaf: BTreeSet<Vec<u8>>,
}

impl Clients for TestClients {
    fn may_be_granted(&mut self, waiter: &Waiter, _: &[&[u8]]) -> Result<(), NotGranted> {
        if waiter.channel.as_ref().is_some_and(|channel| self.deaf.contains(&**channel)) {
            Err(NotGranted::NoSubscriber)
        } else if self.denied.contains(&*waiter.token) {
            Err(NotGranted::Failed(LockError::NoPermission))
        } else {
            Ok(())
        }
    }
}

pub(super) fn channel(number: u32) -> Vec<u8> {
    format!("channel {number}").into_bytes()
}

/// A request to write or read that waits without limit.
pub(super) fn request(token: &[u8], want: Want) -> Request<'_> {
    let (ttl_ms, fence, limit) = (TTL_MS, None, None);
    let terms = Terms { want, fence, ttl_ms, limit, client: 0, is_ephemeral: false, counts_keys: false };
    let claim = Claim { token, meta: None, terms };
    Request { claim, wait: WaitPolicy::Forever, reply_to: ReplyTo::Client, user: &|| None }
}

/// A slice whose clock is a function.
impl<F: FnMut() -> Option<Timestamp>> TimeSlice for F {
    fn now(&mut self) -> Option<Timestamp> {
        self()
    }

    fn has_room(&self, _: usize) -> bool {
        true
    }
}
