//! Who asks, and how many places in queues each user has.

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
        let Some(waiter) = self.waiters.get_mut(&request) else { return };
        let (places, later) = (waiter.queues.len(), caller.user.clone());
        let earlier = std::mem::replace(&mut waiter.caller, caller);
        self.count_places(&later, places);
        self.uncount_places(&earlier.user, places);
        self.forget_caller(&earlier);
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

    /// How many places in queues all requests have together: a request for several names has one in each of them.
    #[must_use]
    pub fn places(&self) -> usize {
        self.places
    }

    /// How many of them this user has.
    pub(crate) fn places_of_user(&self, user: &UserName) -> usize {
        self.places_of.get(user).copied().unwrap_or(0)
    }

    /// How many of them this user has with this token. There are not so many that they have to be counted beforehand.
    pub(crate) fn places_of_token(&self, token: &[u8], user: &UserName) -> usize {
        let requests = self.token_id(token).into_iter().flat_map(|token| self.requests_of(token));
        let theirs =
            requests.map(|request| &self.waiters[&request]).filter(|waiter| waiter.caller.user == *user);
        theirs.map(|waiter| waiter.queues.len()).sum()
    }

    pub(super) fn count_places(&mut self, user: &UserName, places: usize) {
        self.places += places;
        *self.places_of.entry(user.clone()).or_default() += places;
    }

    pub(super) fn uncount_places(&mut self, user: &UserName, places: usize) {
        let Some(own) = self.places_of.get_mut(user) else { return };
        self.places -= places;
        *own -= places;
        if *own == 0 {
            self.places_of.remove(user);
        }
    }
}
