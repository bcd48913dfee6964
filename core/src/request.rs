// SPDX-License-Identifier: MIT OR Apache-2.0

//! What is asked for, from the command to the grant, and what the answer is.

use std::num::{NonZeroU32, NonZeroU64};
use std::rc::Rc;

use crate::error::LockError;
use crate::ids::{ConnectionId, HoldRef, RequestId, UserName};
use crate::mode::Want;

/// What is wanted, in numbers: the same from the command to the grant.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// What for. An upgrade is for one lock.
    pub want: Want,
    /// The fence of the hold that is to be upgraded; `None` for any.
    pub fence: Option<NonZeroU64>,
    /// How long the hold shall last, from the grant on. A hold that it has already does not end earlier for it.
    pub ttl_ms: u64,
    /// Beside how many readers at most, itself included, if it wants to read. `None` for any number.
    pub limit: Option<NonZeroU32>,
    /// The connection that asks; 0 where there is none.
    pub client: ConnectionId,
    /// Whether the hold shall end with that connection, and the request with it, where it is answered on a channel.
    pub is_ephemeral: bool,
    /// Whether the command counts its keys (`MLOCK`, not `LOCK`), for the check of permissions at the grant.
    pub counts_keys: bool,
}

/// What is wanted, and by whom.
#[derive(Clone, Copy, Debug)]
pub struct Claim<'a> {
    /// Who asks.
    pub token: &'a [u8],
    /// The metadata of the hold. `None` keeps what a refreshed or upgraded hold has.
    pub meta: Option<&'a [u8]>,
    /// The rest.
    pub terms: Terms,
}

impl<'a> Claim<'a> {
    /// The hold that is meant, if it is an upgrade.
    pub(crate) fn hold(&self) -> HoldRef<'a> {
        HoldRef { token: self.token, fence: self.terms.fence.map(NonZeroU64::get) }
    }
}

/// A request for a hold, of one lock or of several: all of them or none is granted.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// What is wanted.
    pub claim: Claim<'a>,
    /// What to do if it cannot be granted at once.
    pub wait: WaitPolicy,
    /// Where it is answered if it has to wait.
    pub reply_to: ReplyTo<'a>,
    /// The user. Only the user of a request that has to wait is looked up.
    pub user: &'a dyn Fn() -> UserName,
}

/// Where a request is answered that has to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyTo<'a> {
    /// The client that asked.
    Client,
    /// Those who listen to a channel. If the same keys are asked for again by the same token and in the same mode
    /// while it waits, that is the same request, in its place, with what is new.
    Channel {
        /// Its name.
        channel: &'a [u8],
        /// What the answer is known by there.
        tag: &'a [u8],
    },
}

/// How an extension moves deadlines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extension {
    /// To so many milliseconds from now, later or earlier.
    To(u64),
    /// The same, where that is later; else they stay.
    AtLeastTo(u64),
}

/// How long a request is willing to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitPolicy {
    /// Not at all, and it wants no new hold either: only a refresh of what the token holds already.
    OnlyRefresh,
    /// Not at all.
    NoWait,
    /// For this many milliseconds.
    Timeout(u64),
    /// Without limit.
    Forever,
}

/// What became of a request for a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcquireOutcome {
    /// It holds, with this fence.
    Granted(u64),
    /// It cannot have it now and did not want to wait.
    Refused,
    /// It waits. Its [`WaitResult`] comes later.
    Waiting(RequestId),
}

/// The end of a wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The request.
    pub request: RequestId,
    /// Who asked.
    pub user: UserName,
    /// Where it is answered, unless its client is.
    pub channel: Option<Destination>,
    /// How it ended.
    pub result: WaitResult,
}

/// Where an answer is published: the channel, and the tag.
pub type Destination = (Rc<[u8]>, Box<[u8]>);

/// How a wait ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WaitResult {
    /// The request holds, with this fence. Nothing takes it back.
    Granted(u64),
    /// It has waited as long as it wanted to.
    TimedOut,
    /// It can no longer be granted.
    Failed(LockError),
}
