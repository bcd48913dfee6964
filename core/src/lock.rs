//! One lock: its mode, its holders, and what may be granted on it.
//!
//! A lock is a value. It knows neither its own name nor who waits for it, and time is always passed
//! in: a holder whose deadline is at or before the moment asked about holds nothing, even while it
//! is still in the table. It leaves the table only by an [`Effect`], so that copies of a lock stay
//! equal to the byte.

use std::mem::size_of;

use smallvec::SmallVec;

use crate::effect::{Change, Effect};
use crate::footprint::allocated;
use crate::holders::Holders;

/// How a lock is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Mode {
    /// Shared with other readers.
    Read,
    /// By one holder alone.
    Write,
}

/// What a request wants of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Want {
    /// A hold in this mode.
    Hold(Mode),
    /// To turn a hold for read into the hold for write.
    Upgrade,
}

/// One token's hold of one lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The owner's identity, 1 to 255 bytes. The usual ones, such as UUIDs, need no allocation.
    pub token: SmallVec<[u8; 40]>,
    /// The fencing number of this hold, unique within the lock.
    pub fence: u64,
    /// When the hold began, in Unix milliseconds.
    pub since_ms: u64,
    /// When the hold ends, in Unix milliseconds. At this very millisecond it has ended.
    pub deadline_ms: u64,
    /// The owner's note to whoever looks; empty for none.
    pub meta: Box<[u8]>,
}

impl Holder {
    /// Whether the hold is in force at `now_ms`.
    #[must_use]
    pub fn is_live(&self, now_ms: u64) -> bool {
        self.deadline_ms > now_ms
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        let token = if self.token.spilled() { allocated(self.token.capacity()) } else { 0 };
        allocated(self.meta.len()) + token
    }
}

/// How one token's request stands with one lock, before the queue has its say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Nothing in the lock is in the way.
    Free,
    /// The token has what it wants already, with this fence.
    Held {
        /// The fence of the present hold.
        fence: u64,
    },
    /// The token holds the lock in this mode, which is not the one it wants.
    OtherMode(Mode),
    /// An upgrade was asked for and the token holds nothing.
    NotHeld,
    /// Others are in the way, and unless they act, nothing changes before this moment.
    Blocked {
        /// In Unix milliseconds.
        until_ms: u64,
    },
}

impl Standing {
    /// Whether others are in the way.
    #[must_use]
    pub fn is_blocked(&self) -> bool {
        matches!(self, Self::Blocked { .. })
    }
}

/// A lock that somebody holds or held. It is never without holders.
#[derive(Clone, Debug)]
pub struct Lock {
    mode: Mode,
    holders: Holders,
}

impl Lock {
    /// A lock from its parts, or `None` when they contradict each other: no holder, more than one
    /// writer, a token or a fence twice.
    pub(crate) fn from_parts(mode: Mode, holders: Vec<Holder>) -> Option<Self> {
        if holders.is_empty() || (mode == Mode::Write && holders.len() > 1) {
            return None;
        }
        let mut table = Holders::default();
        for holder in holders {
            if table.get(&holder.token).is_some() || table.with_fence(holder.fence).is_some() {
                return None;
            }
            table.insert(holder);
        }
        Some(Self { mode, holders: table })
    }

    /// The lock that an effect makes out of nothing, if it makes one.
    #[must_use]
    pub fn born_of(effect: &Effect<'_>) -> Option<Self> {
        match effect.change {
            Change::Hold { mode, token, fence, since_ms, deadline_ms, meta } => Some(Self {
                mode,
                holders: Holders::one(Holder {
                    token: token.into(),
                    fence,
                    since_ms,
                    deadline_ms,
                    meta: meta.into(),
                }),
            }),
            Change::Extend { .. } | Change::Release { .. } => None,
        }
    }

    /// Makes the change. Returns false when that leaves a lock without holders: it must be deleted.
    #[must_use]
    pub fn apply(&mut self, effect: &Effect<'_>) -> bool {
        if effect.at_ms > 0 {
            self.holders.remove_ended(effect.at_ms);
        }
        match effect.change {
            Change::Hold { mode, token, fence, since_ms, deadline_ms, meta } => {
                if mode == Mode::Write || self.mode == Mode::Write {
                    self.holders = Holders::default();
                } else {
                    self.holders.remove(token);
                    // Only a damaged stream could bring another token's fence; the newer word counts.
                    if let Some(other) = self.holders.with_fence(fence).map(|holder| holder.token.clone()) {
                        self.holders.remove(&other);
                    }
                }
                self.mode = mode;
                self.holders.insert(Holder {
                    token: token.into(),
                    fence,
                    since_ms,
                    deadline_ms,
                    meta: meta.into(),
                });
            }
            Change::Extend { token, deadline_ms } => {
                self.holders.set_deadline(token, deadline_ms);
            }
            Change::Release { token } => {
                self.holders.remove(token);
            }
        }
        !self.holders.is_empty()
    }

    /// The mode of the lock, live or not.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// The holder with this token, if its hold is in force.
    #[must_use]
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
        self.holders.by_fence().rev().find(|holder| holder.is_live(now_ms)).map(|holder| holder.fence)
    }

    /// The highest fence of all holds, live or not.
    #[must_use]
    pub fn highest_fence(&self) -> u64 {
        self.holders.by_fence().next_back().map_or(0, |holder| holder.fence)
    }

    /// How many holders are in the table, whether or not their deadlines have passed.
    #[must_use]
    pub fn len(&self) -> usize {
        self.holders.len()
    }

    /// Never: a lock without holders does not exist.
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
    pub fn holders(&self) -> impl DoubleEndedIterator<Item = &Holder> {
        self.holders.by_fence()
    }

    /// The holders in no particular order, live or not, at no cost.
    pub fn holders_unordered(&self) -> impl Iterator<Item = &Holder> {
        self.holders.iter()
    }

    /// How many holders would be dropped by an effect at `at_ms` although another holder was due to
    /// stay longer than they: those whose deadline "passed while others kept the lock".
    #[must_use]
    pub fn count_outlived(&self, at_ms: u64) -> usize {
        if self.holders.count_ended(at_ms) == 0 {
            return 0;
        }
        self.holders.count_ended(at_ms.min(self.last_deadline_ms().saturating_sub(1)))
    }

    /// The holders that an effect at `at_ms` drops.
    pub fn ended(&self, at_ms: u64) -> impl Iterator<Item = &Holder> {
        self.holders.ended(at_ms)
    }

    /// How many holders an effect at `at_ms` drops.
    #[must_use]
    pub fn count_ended(&self, at_ms: u64) -> usize {
        self.holders.count_ended(at_ms)
    }

    /// How a request of `token` stands with this lock at `now_ms`.
    #[must_use]
    pub fn standing(&self, token: &[u8], want: Want, now_ms: u64) -> Standing {
        let own = self.holder(token, now_ms);
        match (want, own) {
            (Want::Hold(mode), Some(own)) if mode == self.mode => Standing::Held { fence: own.fence },
            (Want::Hold(_), Some(_)) => Standing::OtherMode(self.mode),
            (Want::Hold(mode), None) => {
                if !self.is_live(now_ms) || (mode == Mode::Read && self.mode == Mode::Read) {
                    Standing::Free
                } else {
                    Standing::Blocked { until_ms: self.last_deadline_ms() }
                }
            }
            (Want::Upgrade, None) => Standing::NotHeld,
            (Want::Upgrade, Some(own)) if self.mode == Mode::Write => Standing::Held { fence: own.fence },
            (Want::Upgrade, Some(own)) => {
                let others_ms = self.holders.last_deadline_ms(Some(own));
                if others_ms <= now_ms {
                    Standing::Free
                } else {
                    Standing::Blocked { until_ms: others_ms.min(own.deadline_ms) }
                }
            }
        }
    }

    /// Bytes that the lock occupies on the heap, itself included.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        allocated(size_of::<Self>()) + self.holders.heap_bytes()
    }

    /// The metadata of the holders, for a defragmenting allocator to move.
    pub fn metas_mut(&mut self) -> impl Iterator<Item = &mut Box<[u8]>> {
        self.holders.metas_mut()
    }
}

/// Two locks are equal when they have the same mode and the same holders, live or not.
impl PartialEq for Lock {
    fn eq(&self, other: &Self) -> bool {
        self.mode == other.mode && self.len() == other.len() && self.holders().eq(other.holders())
    }
}

impl Eq for Lock {}
