// SPDX-License-Identifier: MIT OR Apache-2.0

//! How many places in queues the requests of each user have.

use super::Waitlist;
use crate::ids::UserName;

impl Waitlist {
    /// How many places in queues all requests have together: a request for several names has one in each of them.
    #[must_use]
    pub fn places(&self) -> usize {
        self.places.all
    }

    /// How many users have requests.
    #[must_use]
    pub fn users_len(&self) -> usize {
        self.places.of_user.len()
    }

    /// How many places this user has.
    pub(crate) fn places_of_user(&self, user: &UserName) -> usize {
        self.places.of_user.get(user).copied().unwrap_or(0)
    }

    /// How many of them this user has with this token. There are not so many that they have to be counted beforehand.
    pub(crate) fn places_of_token(&self, token: &[u8], user: &UserName) -> usize {
        let requests = self.token_id(token).into_iter().flat_map(|token| self.requests_of(token));
        let theirs = requests.map(|request| &self.waiters[&request]).filter(|waiter| waiter.user == *user);
        theirs.map(|waiter| waiter.queues.len()).sum()
    }

    /// Counts so many places more. Returns the name as all requests of the user share it.
    pub(super) fn add_places(&mut self, user: UserName, places: usize) -> UserName {
        self.places.all += places;
        let user = self.places.of_user.get_key_value(&user).map_or(user, |(known, _)| known.clone());
        *self.places.of_user.entry(user.clone()).or_default() += places;
        user
    }

    pub(super) fn remove_places(&mut self, user: &UserName, places: usize) {
        self.places.all -= places;
        let Some(left) = self.places.of_user.get_mut(user) else { return };
        *left -= places;
        if *left == 0 {
            self.places.of_user.remove(user);
        }
    }
}
