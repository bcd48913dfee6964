// SPDX-License-Identifier: MIT OR Apache-2.0

//! One lock: its mode, its holders, and what may be granted on it.
//!
//! A lock is a value. It knows neither its own name nor who waits for it, and time is always passed
//! in: a holder whose deadline is at or before the moment asked about holds nothing, even while it
//! is still in the table. It leaves the table only by an [`Effect`], so that copies of a lock stay
//! equal to the byte.

mod holder;
mod holders;

use std::mem::{self, size_of};
use std::num::NonZeroU32;

use crate::alloc_size::allocated;
use crate::effect::{Change, Effect};
use crate::ids::HoldRef;
use crate::mode::{Mode, Want};
pub use holder::Holder;
use holders::Holders;

/// Whether one token's request can be granted on one lock, if nobody waited for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Nothing in the lock is in the way.
    Free,
    /// The token has what it wants already, with this fence.
    Held {
        /// The fence of the present hold.
        fence: u64,
    },
    /// The token holds the lock in this mode, which is not the one it wants.
    WrongMode(Mode),
    /// An upgrade was asked for and the token holds nothing.
    NotHeld,
    /// Others are in the way, and unless they act, nothing changes before this moment.
    Blocked {
        /// In Unix milliseconds.
        until_ms: u64,
    },
}

impl Admission {
    /// Whether others are in the way.
    #[must_use]
    pub fn is_blocked(&self) -> bool {
        matches!(self, Self::Blocked { .. })
    }
}

/// What an effect left behind.
#[derive(Debug)]
pub struct Applied {
    /// The lock has no holders left: it must be deleted.
    pub is_empty: bool,
    /// So many holders went because their time was up.
    pub ended: usize,
    /// All holders that there were are among them.
    pub had_expired: bool,
    /// The lock as it was, where the new holder took the place of several: the others' time was up. For the caller to
    /// drop.
    pub replaced: Option<Box<Lock>>,
}

/// A lock that somebody holds or held. It is without holders only between the effect that removes the last one and the
/// removal of its key.
#[derive(Clone, Debug)]
pub struct Lock {
    mode: Mode,
    holders: Holders,
}

const _: () = assert!(size_of::<Lock>() <= 48);

impl Lock {
    /// A lock from its parts, or `None` when they contradict each other: no holder, more than one
    /// writer, a token or a fence twice.
    pub(crate) fn from_parts(mode: Mode, holders: Vec<Holder>) -> Option<Self> {
        if holders.is_empty() || (mode == Mode::Write && holders.len() > 1) {
            return None;
        }
        let mut table = Holders::default();
        for holder in holders {
            if table.get(holder.token()).is_some() || table.with_fence(holder.fence).is_some() {
                return None;
            }
            table.put(holder);
        }
        Some(Self { mode, holders: table })
    }

    /// The lock that an effect makes out of nothing, if it makes one.
    #[must_use]
    #[inline(always)]
    pub fn born_of(effect: &Effect<'_>) -> Option<Self> {
        match effect.change {
            Change::Hold { mode, token, fence, since_ms, deadline_ms, meta } => Some(Self {
                mode,
                holders: Holders::one(Holder::new(token, meta, fence, since_ms, deadline_ms)),
            }),
            Change::Extend { .. } | Change::Release { .. } => None,
        }
    }

    /// Makes the change.
    #[inline(always)]
    pub fn apply(&mut self, effect: &Effect<'_>) -> Applied {
        let mut replaced = None;
        let ended = if effect.at_ms > 0 { self.holders.drop_ended(effect.at_ms) } else { 0 };
        let had_expired = ended > 0 && self.holders.is_empty();
        match effect.change {
            Change::Hold { mode, token, fence, since_ms, deadline_ms, meta } => {
                if mode == Mode::Write || self.mode == Mode::Write {
                    let old = Self { mode: self.mode, holders: mem::take(&mut self.holders) };
                    replaced = Some(old).filter(|old| old.len() > 1).map(Box::new);
                }
                self.mode = mode;
                self.holders.put(Holder::new(token, meta, fence, since_ms, deadline_ms));
            }
            Change::Extend { token, deadline_ms } => {
                self.holders.set_deadline(token, deadline_ms);
            }
            Change::Release { token } => {
                self.holders.remove(token);
            }
        }
        Applied { is_empty: self.holders.is_empty(), ended, had_expired, replaced }
    }

    /// The mode of the lock, live or not.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// The holder with this token, if its hold is in force.
    #[must_use]
    #[inline(always)]
    pub fn holder(&self, token: &[u8], now_ms: u64) -> Option<&Holder> {
        self.holders.get(token).filter(|holder| holder.is_live(now_ms))
    }

    /// The holder with this fence, if its hold is in force.
    #[must_use]
    pub fn holder_with_fence(&self, fence: u64, now_ms: u64) -> Option<&Holder> {
        self.holders.with_fence(fence).filter(|holder| holder.is_live(now_ms))
    }

    /// The highest fence of a hold that is in force.
    #[must_use]
    pub fn highest_live_fence(&self, now_ms: u64) -> Option<u64> {
        self.holders.after(0).rev().find(|holder| holder.is_live(now_ms)).map(|holder| holder.fence)
    }

    /// The highest fence of all holds, live or not.
    #[must_use]
    pub fn highest_fence(&self) -> u64 {
        self.holders.highest_fence()
    }

    /// How many holders are in the table, whether or not their deadlines have passed.
    #[must_use]
    pub fn len(&self) -> usize {
        self.holders.len()
    }

    /// Only after an effect that left nobody, until the key is removed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.holders.is_empty()
    }

    /// How many holds are in force.
    #[must_use]
    pub fn live_len(&self, now_ms: u64) -> usize {
        self.holders.len() - self.holders.count_ended(now_ms)
    }

    /// Whether any hold is in force.
    #[must_use]
    pub fn is_live(&self, now_ms: u64) -> bool {
        self.last_deadline_ms() > now_ms
    }

    /// The latest deadline, in Unix milliseconds: the expiry of the key.
    #[must_use]
    pub fn last_deadline_ms(&self) -> u64 {
        self.holders.last_deadline_ms(None)
    }

    /// The holders in the order in which their holds began, live or not.
    pub fn holders(&self) -> impl Iterator<Item = &Holder> {
        self.holders.after(0)
    }

    /// The holders whose holds are in force, in the order in which these began.
    pub fn live_holders(&self, now_ms: u64) -> impl Iterator<Item = &Holder> {
        self.holders().filter(move |holder| holder.is_live(now_ms))
    }

    /// The holders that an effect at `at_ms` drops.
    pub fn to_drop(&self, at_ms: u64) -> impl Iterator<Item = &Holder> {
        self.holders.to_drop(at_ms)
    }

    /// How many holders have ended by `at_ms` and are still in the table.
    #[must_use]
    pub fn count_ended(&self, at_ms: u64) -> usize {
        self.holders.count_ended(at_ms)
    }

    /// Whether a request of `token` can be granted on this lock at `now_ms`; as a reader beside fewer than
    /// `limit` others, if there is one. What is to be upgraded is the hold that is meant; who writes already has
    /// what an upgrade gives, whatever the fence.
    #[must_use]
    pub fn admission(
        &self,
        hold: HoldRef<'_>,
        want: Want,
        limit: Option<NonZeroU32>,
        now_ms: u64,
    ) -> Admission {
        let own = self.holder(hold.token, now_ms);
        match (want, own) {
            (Want::Hold(mode), Some(own)) if mode == self.mode => Admission::Held { fence: own.fence },
            (Want::Hold(_), Some(_)) => Admission::WrongMode(self.mode),
            (Want::Hold(mode), None) => {
                if !self.is_live(now_ms) {
                    Admission::Free
                } else if mode == Mode::Read && self.mode == Mode::Read {
                    match limit.and_then(|limit| self.below_limit_ms(limit)).filter(|at_ms| *at_ms > now_ms) {
                        None => Admission::Free,
                        Some(until_ms) => Admission::Blocked { until_ms },
                    }
                } else {
                    Admission::Blocked { until_ms: self.last_deadline_ms() }
                }
            }
            (Want::Upgrade, None) => Admission::NotHeld,
            (Want::Upgrade, Some(own)) if self.mode == Mode::Write => Admission::Held { fence: own.fence },
            (Want::Upgrade, Some(own)) if !hold.means(own.fence) => Admission::NotHeld,
            (Want::Upgrade, Some(own)) => {
                let others_ms = self.holders.last_deadline_ms(Some(own));
                if others_ms <= now_ms {
                    Admission::Free
                } else {
                    Admission::Blocked { until_ms: others_ms.min(own.deadline_ms) }
                }
            }
        }
    }

    /// When fewer than `limit` holders are left if nobody acts; `None` if there are so few in the table.
    fn below_limit_ms(&self, limit: NonZeroU32) -> Option<u64> {
        let surplus = self.len().checked_sub(usize::try_from(limit.get()).unwrap_or(usize::MAX))?;
        self.holders.deadline_after(surplus)
    }

    /// Whether to drop the lock takes more than a moment, so that another thread should.
    #[must_use]
    pub fn is_large(&self) -> bool {
        self.holders.is_large()
    }

    /// Bytes that the lock occupies on the heap, itself included.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        allocated(size_of::<Self>()) + self.holders.heap_bytes()
    }

    /// The holders with a fence above this one, by their fences, and what they have on the heap, for a defragmenting
    /// allocator to move. Where there are many, they come in the order of their fences.
    pub fn bytes_after(&mut self, fence: u64) -> impl Iterator<Item = (u64, Option<&mut Box<[u8]>>)> {
        self.holders.bytes_after(fence)
    }
}
