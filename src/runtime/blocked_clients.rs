//! Clients that are blocked because their requests wait.
//!
//! `RM_UnblockClient` must be called exactly once for each blocked client, also for one that has gone. And
//! if the same client is unblocked again (by its timeout, by `CLIENT UNBLOCK`) before the server has
//! noticed the first call, Redis 7.0 never answers it, and Redis 7.2 asserts. So it is called from the
//! timer only.

use std::collections::BTreeMap;

use slock_core::RequestId;

use crate::server::{Handle, HandleKey, Reply};

/// See the module. Trees, so that no client pays for the growth of a table.
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
