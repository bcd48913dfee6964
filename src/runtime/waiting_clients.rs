//! Those who wait: blocked clients, and whoever has subscribed to the channels on which requests are answered.
//! And who asked: the user and the command, whose permissions are looked at again at the grant.

use std::collections::BTreeMap;

use slock_core::{Answer, Caller, Clients, LockError, NotGranted, RequestId, WaitResult, Waiter};
use smallvec::SmallVec;

use super::notify::{Heard, may_use};
use crate::errors::error_reply;
use crate::server::{Ctx, Handle, HandleKey, OwnedString, Reply, Str, User};

/// See the module.
#[derive(Default)]
pub struct WaitingClients {
    /// Clients that are blocked.
    pub blocked: BlockedClients,
    last_caller: LastCaller,
    heard: Heard,
}

impl WaitingClients {
    /// Sends the end of a wait to its client or channel, if somebody is still there; not to a channel that the user may not
    /// use any more. Only from a timer.
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
        self.heard.forget();
        self.blocked.free_left_over();
    }
}

impl Clients for WaitingClients {
    /// The permissions of a user may have changed since it asked: core commands that wait look again too, from
    /// Redis 8.0 on. And whoever listened may have gone.
    fn may_be_granted(&mut self, waiter: &Waiter, names: &[&[u8]]) -> Result<(), NotGranted> {
        if waiter.channel.as_ref().is_some_and(|channel| !self.heard.is_heard(channel)) {
            return Err(NotGranted::Unheard);
        }
        if self.last_caller.may_run(&waiter.caller, names, waiter.channel.as_deref()) {
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

/// The command of a client that may have to wait.
#[derive(Clone, Copy)]
pub struct WaitingCommand<'a> {
    /// Its name, as it was sent.
    pub name: Str<'a>,
    /// Whether the number of keys stands before them.
    pub counts_keys: bool,
}

impl WaitingCommand<'_> {
    /// Who asks, by this command.
    pub fn caller(self, ctx: Ctx<'_>) -> Caller {
        Caller {
            user: ctx.user_name().map(|user| user.as_str().bytes().into()),
            command: self.name.bytes().into(),
            counts_keys: self.counts_keys,
        }
    }
}

/// What the caller that was looked at last is called as the server's strings: mostly the next one is the same.
#[derive(Default)]
pub struct LastCaller(Option<Words>);

struct Words {
    caller: Caller,
    /// Of a user; `None` for who may do everything.
    user: Option<OwnedString>,
    command: OwnedString,
    /// For the token and the ttl, which permissions do not depend on.
    any: OwnedString,
}

impl Words {
    fn of(caller: &Caller) -> Self {
        Self {
            caller: caller.clone(),
            user: caller.user.as_deref().map(OwnedString::new),
            command: OwnedString::new(&caller.command),
            any: OwnedString::new(b"1"),
        }
    }
}

impl LastCaller {
    /// Whether this user may still run the command on these keys, and use this channel.
    pub fn may_run(&mut self, caller: &Caller, names: &[&[u8]], channel: Option<&[u8]>) -> bool {
        let known = self.0.take().filter(|words| words.caller == *caller);
        let words = self.0.insert(known.unwrap_or_else(|| Words::of(caller)));
        let Some(user) = &words.user else { return true };
        let Some(user) = User::named(user.as_str()) else { return false };
        if channel.is_some_and(|channel| !user.may_subscribe(OwnedString::new(channel).as_str())) {
            return false;
        }
        let count = caller.counts_keys.then(|| OwnedString::new(names.len().to_string().as_bytes()));
        let keys = names.iter().map(|name| OwnedString::new(name));
        let arguments: SmallVec<[OwnedString; 2]> = count.into_iter().chain(keys).collect();
        let mut command: SmallVec<[Str<'_>; 5]> = SmallVec::from_slice(&[words.command.as_str()]);
        command.extend(arguments.iter().map(OwnedString::as_str));
        command.extend([words.any.as_str(), words.any.as_str()]);
        user.may_run(&command)
    }
}
