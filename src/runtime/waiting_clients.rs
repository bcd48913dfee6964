// SPDX-License-Identifier: MIT OR Apache-2.0

//! Those who wait: blocked clients, and the subscribers of the channels on which requests are answered.
//! Also checks again, at the grant, whether the user may run the command.

use std::collections::BTreeMap;
use std::iter;

use slock_core::{
    Answer, Clients, LockError, Mode, NotGranted, RequestId, UserName, WaitResult, Waiter, Want,
};
use smallvec::SmallVec;

use super::notify::{Heard, may_use};
use crate::errors::error_reply;
use crate::server::{Handle, HandleKey, OwnedString, Reply, Str, User};

/// See the module.
#[derive(Default)]
pub struct WaitingClients {
    /// Clients that are blocked.
    pub blocked: BlockedClients,
    last_user: LastUser,
    heard: Heard,
}

impl WaitingClients {
    /// Sends the end of a wait to its client or channel, if somebody is still there; not to a channel that the user may
    /// not use any more. Only from a timer.
    pub fn answer(&mut self, answer: Answer) {
        // Of a grant this was found right before.
        let may_tell = |channel: &[u8]| {
            matches!(answer.result, WaitResult::Granted(_)) || may_use(answer.user.as_deref(), channel)
        };
        if answer.channel.as_ref().is_some_and(|(channel, _)| !may_tell(channel)) {
            return;
        }
        let reply = match answer.result {
            WaitResult::Granted(fence) => Reply::Int(fence.cast_signed()),
            WaitResult::TimedOut => Reply::Int(0),
            WaitResult::Failed(error) => error_reply(&error),
        };
        match answer.channel {
            None => self.blocked.answer(answer.request, reply),
            Some((channel, tag)) => self.heard.publish(&channel, reply, &tag),
        }
    }

    /// The call of the timer is over.
    pub fn end_turn(&mut self) {
        self.heard = Heard::default(); // the subscriber may go
        self.blocked.free_left_over();
    }
}

impl Clients for WaitingClients {
    /// The permissions of a user may have changed since it asked: core commands that wait look again too, from
    /// Redis 8.0 on. And the subscriber may have gone.
    fn may_be_granted(&mut self, waiter: &Waiter, names: &[&[u8]]) -> Result<(), NotGranted> {
        if waiter.channel.as_ref().is_some_and(|channel| !self.heard.is_heard(channel)) {
            return Err(NotGranted::NoSubscriber);
        }
        if self.last_user.may_be_granted(waiter, names) {
            Ok(())
        } else {
            Err(NotGranted::Failed(LockError::NoPermission))
        }
    }
}

/// Clients that are blocked because their requests wait.
///
/// `RM_UnblockClient` must be called exactly once for each blocked client, also for one that has gone. And
/// if the same client is unblocked again (by its timeout, by `CLIENT UNBLOCK`) before the server has
/// noticed the first call, Redis 7.0 never answers it, and Redis 7.2 asserts. So it is called from the
/// timer only.
///
/// They are kept in trees, so that no client pays for the growth of a table.
#[derive(Default)]
pub struct BlockedClients {
    handle_of: BTreeMap<RequestId, Handle>,
    request_of: BTreeMap<HandleKey, RequestId>,
    /// Clients that have gone or were answered by a callback; the server's part is to be freed.
    left_over: Vec<Handle>,
}

impl BlockedClients {
    /// This client waits for the answer to this request.
    pub fn insert(&mut self, request: RequestId, handle: Handle) {
        self.request_of.insert(handle.key(), request);
        self.handle_of.insert(request, handle);
    }

    /// The client has gone, or is answered by a callback. Its request, if it has not been answered.
    pub fn remove(&mut self, client: HandleKey) -> Option<RequestId> {
        let request = self.request_of.remove(&client)?;
        self.left_over.extend(self.handle_of.remove(&request));
        Some(request)
    }

    /// Answers the client of this request, if it is still there. Only from a timer.
    pub fn answer(&mut self, request: RequestId, reply: Reply) {
        if let Some(handle) = self.handle_of.remove(&request) {
            self.request_of.remove(&handle.key());
            handle.answer(Some(reply));
        }
    }

    /// Frees what the server keeps for clients that need no answer. Only from a timer.
    pub fn free_left_over(&mut self) {
        for handle in std::mem::take(&mut self.left_over) {
            handle.answer(None);
        }
    }

    /// Whether [`BlockedClients::free_left_over`] has something to do.
    pub fn has_left_over(&self) -> bool {
        !self.left_over.is_empty()
    }
}

/// The user that was checked last, as the server's strings: mostly the next one is the same.
#[derive(Default)]
struct LastUser(Option<(UserName, OwnedString)>);

impl LastUser {
    /// Whether the user may still run the command of this request on these keys, and use its channel.
    fn may_be_granted(&mut self, waiter: &Waiter, names: &[&[u8]]) -> bool {
        // Who comes from no connection may do everything.
        let Some(user) = &waiter.user else { return true };
        let known = self.0.take().filter(|(name, _)| *name == waiter.user);
        let (_, name) = self.0.insert(known.unwrap_or_else(|| (waiter.user.clone(), OwnedString::new(user))));
        let Some(user) = User::named(name.as_str()) else { return false };
        let channel = waiter.channel.as_deref().map(OwnedString::new);
        if channel.is_some_and(|channel| !user.may_subscribe(channel.as_str())) {
            return false;
        }
        let counts_keys = waiter.terms.counts_keys;
        let command: &[u8] = match (waiter.terms.want, counts_keys) {
            (Want::Hold(Mode::Write), false) => b"SLOCK.LOCK",
            (Want::Hold(Mode::Read), false) => b"SLOCK.RLOCK",
            (Want::Hold(Mode::Write), true) => b"SLOCK.MLOCK",
            (Want::Hold(Mode::Read), true) => b"SLOCK.MRLOCK",
            (Want::Upgrade, _) => b"SLOCK.UPGRADE",
        };
        let count = counts_keys.then(|| names.len().to_string());
        let words =
            iter::once(command).chain(count.as_ref().map(String::as_bytes)).chain(names.iter().copied());
        // Permissions do not depend on the token and the ttl.
        let words: SmallVec<[OwnedString; 5]> = words.chain([&b"1"[..]; 2]).map(OwnedString::new).collect();
        let command: SmallVec<[Str<'_>; 5]> = words.iter().map(OwnedString::as_str).collect();
        user.may_run(&command)
    }
}
