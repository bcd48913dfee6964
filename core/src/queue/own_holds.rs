//! Holds of those who wait: what a token holds of that for which it waits among others, and which tokens that
//! wait hold a lock. The search for deadlocks asks.

use std::ops::Bound;

use super::one_queue::HoldersSeen;
use super::{QueueId, TokenId, Waitlist};
use crate::ids::RequestId;
use crate::lock::{Holder, Lock};

impl Waitlist {
    /// Notes until when this token, which waits at this queue among others, has a hold on its lock, in Unix
    /// milliseconds. Then it waits for nobody there until that hold ends. Whether one was noted that is not there any more.
    pub(crate) fn set_own_hold(&mut self, id: QueueId, token: TokenId, ends_ms: Option<u64>) -> bool {
        let waits_there = self.queues.get(&id).is_some_and(|queue| queue.has_spanning_of(token));
        let ends_ms = ends_ms.filter(|_| waits_there);
        let noted_ms = match ends_ms {
            Some(ends_ms) => self.own_holds.insert((id, token), ends_ms),
            None => self.own_holds.remove(&(id, token)),
        };
        if noted_ms != ends_ms {
            if let Some(noted_ms) = noted_ms {
                self.own_hold_ends.remove(&(noted_ms, id, token));
            }
            self.own_hold_ends.extend(ends_ms.map(|ends_ms| (ends_ms, id, token)));
        }
        noted_ms.is_some() && ends_ms.is_none()
    }

    /// Forgets the hold of a token that does not wait among others at this queue any more.
    pub(super) fn forget_own_hold(&mut self, id: QueueId, token: TokenId) {
        if !self.own_holds.is_empty() {
            self.set_own_hold(id, token, self.own_holds.get(&(id, token)).copied());
        }
    }

    /// The first token after this one that was seen to have a hold on the lock of this queue while it waits there.
    pub(crate) fn next_own_hold(&self, id: QueueId, after: TokenId) -> Option<TokenId> {
        let rest = (Bound::Excluded((id, after)), Bound::Included((id, TokenId::LAST)));
        self.own_holds.range(rest).next().map(|((_, token), _)| *token)
    }

    /// When the next of these holds ends, in Unix milliseconds.
    pub(crate) fn next_own_hold_end_ms(&self) -> Option<u64> {
        self.own_hold_ends.first().map(|(ends_ms, ..)| *ends_ms)
    }

    /// A token for which such a hold has ended.
    pub(crate) fn pop_own_hold_end(&mut self, now_unix_ms: u64) -> Option<TokenId> {
        let (_, id, token) = *self.own_hold_ends.first().filter(|(ends_ms, ..)| *ends_ms <= now_unix_ms)?;
        self.set_own_hold(id, token, None);
        Some(token)
    }

    /// Goes on with a look at the tokens that wait, for whatever, and have a hold on this lock: through the holders
    /// or through the tokens, whichever are fewer, and through `most` of them at most. `found` is given a request of
    /// the token, and its hold.
    pub(crate) fn tokens_holding(
        &self,
        lock: &Lock,
        now_unix_ms: u64,
        seen: &mut HoldersSeen,
        most: usize,
        mut found: impl FnMut(RequestId, &Holder),
    ) {
        if matches!(seen, HoldersSeen::None) {
            *seen = if lock.len() <= self.tokens.len() {
                HoldersSeen::UpToFence(0)
            } else {
                HoldersSeen::UpToToken(None)
            };
        }
        let mut last = None;
        let looked_at = match seen {
            HoldersSeen::None | HoldersSeen::All => 0,
            HoldersSeen::UpToFence(fence) => {
                let holders = lock.holders_after(*fence).take(most);
                let each = holders.map(|holder| {
                    last = Some(HoldersSeen::UpToFence(holder.fence));
                    if let Some(request) = self.next_of_token(holder.token(), None)
                        && holder.is_live(now_unix_ms)
                    {
                        found(request, holder);
                    }
                });
                each.count()
            }
            HoldersSeen::UpToToken(place) => {
                let tokens = self.tokens.after(*place).take(most);
                let each = tokens.map(|(place, token)| {
                    last = Some(HoldersSeen::UpToToken(Some(place)));
                    if let Some(own) = lock.holder(token, now_unix_ms)
                        && let Some(request) = self.requests_of(TokenId::of(token)).next()
                    {
                        found(request, own);
                    }
                });
                each.count()
            }
        };
        *seen = last.filter(|_| looked_at == most).unwrap_or(HoldersSeen::All);
    }
}
