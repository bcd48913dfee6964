//! Who asks, and how many requests of one token each user has.

use std::rc::Rc;

use super::Waitlist;
use crate::ids::{Caller, RequestId, UserName};

impl Waitlist {
    /// A user with a command, as the other requests share it.
    pub(super) fn caller(&mut self, caller: &Caller) -> Rc<Caller> {
        match self.callers.get(caller) {
            Some(known) => known.clone(),
            None => {
                let new = Rc::new(caller.clone());
                self.callers.insert(new.clone());
                new
            }
        }
    }

    /// Another caller has asked for the same again.
    pub(super) fn set_caller(&mut self, request: RequestId, caller: &Caller) {
        let caller = self.caller(caller);
        self.count_if_several(request, -1);
        if let Some(waiter) = self.waiters.get_mut(&request) {
            let earlier = std::mem::replace(&mut waiter.caller, caller);
            self.forget_caller(&earlier);
        }
        self.count_if_several(request, 1);
    }

    /// A request of this caller has gone, or has another one now.
    pub(super) fn forget_caller(&mut self, caller: &Rc<Caller>) {
        // One for the table, and one for whoever calls this.
        if Rc::strong_count(caller) <= 2 {
            self.callers.remove(caller);
        }
    }

    /// How many users, each with each command, have requests.
    #[must_use]
    pub fn callers_len(&self) -> usize {
        self.callers.len()
    }

    /// How many requests of this token wait that this user has asked for and that were not cancelled.
    pub(crate) fn len_of_user(&self, token: &[u8], user: &UserName) -> usize {
        let Some(token) = self.token_id(token) else { return 0 };
        if self.has_several(token) {
            return self.by_user.get(&(token, user.clone())).copied().unwrap_or(0);
        }
        let is_theirs =
            |only: &RequestId| self.waiters[only].caller.user == *user && !self.is_cancelled(*only);
        self.requests_of(token).filter(is_theirs).count()
    }

    /// Counts a request once more, or less, if its token has several.
    pub(super) fn count_if_several(&mut self, request: RequestId, more: isize) {
        if self.waiters.get(&request).is_some_and(|waiter| self.has_several(waiter.token_id())) {
            self.count_of_user(request, more);
        }
    }

    /// Counts a request once more, or less, unless it was cancelled.
    pub(super) fn count_of_user(&mut self, request: RequestId, more: isize) {
        let Some(waiter) = self.waiters.get(&request).filter(|_| !self.is_cancelled(request)) else { return };
        let key = (waiter.token_id(), waiter.caller.user.clone());
        let number = self.by_user.entry(key.clone()).or_default();
        *number = number.saturating_add_signed(more);
        if *number == 0 {
            self.by_user.remove(&key);
        }
    }

    /// From now on this request is as good as gone: it is not granted, nobody waits for it, and it is not counted. It
    /// stands in its queues until it is removed. False if it does not wait or was cancelled before.
    pub(crate) fn cancel(&mut self, request: RequestId) -> bool {
        if !self.waiters.contains_key(&request) || self.is_cancelled(request) {
            return false;
        }
        self.count_if_several(request, -1);
        self.cancelled.insert(request)
    }

    pub(crate) fn is_cancelled(&self, request: RequestId) -> bool {
        self.cancelled.contains(&request)
    }

    /// The first request that was cancelled and still stands in its queues.
    pub(crate) fn first_cancelled(&self) -> Option<RequestId> {
        self.cancelled.first().copied()
    }
}
