// SPDX-License-Identifier: MIT OR Apache-2.0

//! Those who wait: blocked clients, and the subscribers of the channels on which requests are answered.
//! Also checks again, at the grant, whether the user may run the command.

use std::collections::BTreeMap;
use std::iter;

use slock_core::{Answer, Clients, LockError, Mode, NotGranted, RequestId, WaitResult, Waiter, Want};
use smallvec::SmallVec;

use super::notify::{Heard, may_use};
use crate::errors::error_reply;
use crate::server::{Handle, HandleKey, LastString, OwnedString, Reply, Str, User};

/// See the module.
#[derive(Default)]
pub struct WaitingClients {
    /// Clients that are blocked.
    pub blocked: BlockedClients,
    permissions: Permissions,
    heard: Heard,
}

impl WaitingClients {
    /// Sends the end of a wait to its client or channel, if somebody is still there; not to a channel that the user may
    /// not use any more. Only from a timer.
    pub fn answer(&mut self, answer: Answer) {
        // Of a grant this was found right before.
        let is_granted = matches!(answer.result, WaitResult::Granted(_));
        let mut may_tell = |channel| is_granted || self.permissions.may_use(answer.user.as_deref(), channel);
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
        self.heard.end_turn();
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
        if self.permissions.may_be_granted(waiter, names) {
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

/// What users may do now; with the server's strings of the last question, as mostly the next one is about the same.
#[derive(Default)]
struct Permissions {
    user: LastString,
    channel: LastString,
    command: LastString,
    number: LastString,
}

impl Permissions {
    /// Whether the user may still run the command of this request on these keys, and use its channel.
    fn may_be_granted(&mut self, waiter: &Waiter, names: &[&[u8]]) -> bool {
        // Who comes from no connection may do everything.
        let Some(user) = &waiter.user else { return true };
        let Some(user) = User::named(self.user.with(user)) else { return false };
        let channel = waiter.channel.as_deref();
        if channel.is_some_and(|channel| !user.may_subscribe(self.channel.with(channel))) {
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
        let words = count.as_ref().map(String::as_bytes).into_iter().chain(names.iter().copied());
        let words: SmallVec<[OwnedString; 1]> = words.map(OwnedString::new).collect();
        // Permissions do not depend on the token and the ttl.
        let number = self.number.with(b"1");
        let keys = words.iter().map(OwnedString::as_str);
        let words = iter::once(self.command.with(command)).chain(keys).chain([number, number]);
        user.may_run(&words.collect::<SmallVec<[Str<'_>; 4]>>())
    }

    /// Whether the user may use a channel.
    fn may_use(&mut self, user: Option<&[u8]>, channel: &[u8]) -> bool {
        may_use(user.map(|user| self.user.with(user)), self.channel.with(channel))
    }
}
