//! Clients that are blocked because their requests wait.
//!
//! `RM_UnblockClient` must be called exactly once for each blocked client, also for one that has gone. And
//! if the same client is unblocked again (by its timeout, by `CLIENT UNBLOCK`) before the server has
//! noticed the first call, Redis 7.0 never answers it, and Redis 7.2 asserts. So it is called from the
//! timer only.

use std::collections::BTreeMap;

use smallvec::SmallVec;

use slock_core::{Clients, LockError, RequestId, Waiter};

use crate::server::{Ctx, Handle, HandleKey, OwnedString, Reply, Str, User};

/// A client that waits.
struct Waiting {
    handle: Handle,
    /// Its user. `None` for one that may do everything.
    user: Option<OwnedString>,
    /// The name of its command, as it was sent.
    command: OwnedString,
    /// Whether the number of keys stands before them.
    counts_keys: bool,
}

/// The command of a client that is about to wait.
#[derive(Clone, Copy)]
pub struct WaitingCommand<'a> {
    /// Its name, as it was sent.
    pub name: Str<'a>,
    /// Whether the number of keys stands before them.
    pub counts_keys: bool,
}

/// See the module. Trees, so that no client pays for the growth of a table.
#[derive(Default)]
pub struct BlockedClients {
    waiting: BTreeMap<RequestId, Waiting>,
    request_of: BTreeMap<HandleKey, RequestId>,
    /// Clients that have gone or were answered by a callback; the server's part is to be freed.
    left_over: Vec<Handle>,
}

impl BlockedClients {
    /// The client of this command waits for the answer to this request.
    pub fn insert(&mut self, request: RequestId, handle: Handle, ctx: Ctx<'_>, command: WaitingCommand<'_>) {
        self.request_of.insert(handle.key(), request);
        let (user, counts_keys) = (ctx.user_name(), command.counts_keys);
        let command = OwnedString::new(command.name.bytes());
        self.waiting.insert(request, Waiting { handle, user, command, counts_keys });
    }

    /// The client has gone, or is answered by a callback. Its request, if it has not been answered.
    pub fn remove(&mut self, client: HandleKey) -> Option<RequestId> {
        let request = self.request_of.remove(&client)?;
        self.left_over.extend(self.waiting.remove(&request).map(|waiting| waiting.handle));
        Some(request)
    }

    /// Answers the client of this request, if it is still there. Only from a timer.
    pub fn answer(&mut self, request: RequestId, reply: Reply) {
        if let Some(Waiting { handle, .. }) = self.waiting.remove(&request) {
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

impl Clients for BlockedClients {
    /// The permissions of a user may have changed since it asked. Core commands that wait look again too, from
    /// Redis 8.0 on.
    fn may_be_granted(&mut self, request: RequestId, _: &Waiter, names: &[&[u8]]) -> Result<(), LockError> {
        let Some(Waiting { user: Some(user), command, counts_keys, .. }) = self.waiting.get(&request) else {
            return Ok(());
        };
        let may_run = User::named(user.as_str()).is_some_and(|user| {
            let count = counts_keys.then(|| OwnedString::new(names.len().to_string().as_bytes()));
            let keys = names.iter().map(|name| OwnedString::new(name));
            // For the token and the ttl, which permissions do not depend on.
            let more = [OwnedString::new(b"1"), OwnedString::new(b"1")];
            let arguments: SmallVec<[OwnedString; 4]> = count.into_iter().chain(keys).chain(more).collect();
            let mut words: SmallVec<[Str<'_>; 5]> = SmallVec::from_slice(&[command.as_str()]);
            words.extend(arguments.iter().map(OwnedString::as_str));
            user.may_run(&words)
        });
        if may_run { Ok(()) } else { Err(LockError::NoPermission) }
    }
}
