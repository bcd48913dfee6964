// SPDX-License-Identifier: MIT OR Apache-2.0

//! The search for a cycle in who waits for whom.
//!
//! An owner waits for another when one of its requests cannot be served before the other acts.
//! At each name a request asks for, it waits
//!
//! * for every live holder it cannot share the lock with: all others if it wants to write, the
//!   writer if it wants to read; and for every holder too when somebody ahead of it wants to write,
//!   for that one must be served and leave first;
//! * for every request ahead of it, except that a reader does not wait for another reader of that
//!   one lock when nobody who wants to write stands between them: they are let in together.
//!
//! But it waits for nobody at a name where it holds already what it wants or can never have it, nor
//! where an older request of its own token stands ahead: it is answered when that one is.
//!
//! A limit on readers (`LIMIT`) makes nobody wait for anybody in particular: any of the readers may go. So it
//! closes no cycle, and is not looked at here.
//!
//! Owners are tokens. A request that would close a cycle is refused when it comes ([`closed_by`]). An owner
//! may also come to wait in a cycle that no request closed: it loses a name that it waits for among others,
//! or a lock comes under another name. So the manager looks around each owner in turn ([`around`]), and refuses the
//! youngest request of a cycle.
//!
//! A search takes so many steps at most, whatever the crowd: a step is a place in a queue, a request ahead of it, or a
//! holder. What it does not reach, a look around another owner of the same cycle may. Of the requests ahead it looks
//! only at those that lead out of their queue ("multi-queue" ones): who waits behind a request waits behind all before
//! it. Of a lock's readers those who wait themselves are looked for by going through the readers or through the tokens
//! that wait, whichever are fewer.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use smallvec::SmallVec;

use crate::error::{DeadlockCycle, DeadlockStep, LockError};
use crate::ids::{LockId, LockIdRef, RequestId, UserName};
use crate::lock::{Admission, Lock};
use crate::mode::{Mode, Want};
use crate::outside::LockStore;
use crate::queue::{Queue, QueueId, TokenId, Waiter, Waitlist};

/// So many steps a search takes at most when a request comes, and when its owner is looked at later.
const STEPS_AT_REQUEST: usize = 100;
const STEPS_LATER: usize = 1000;

/// Owners that wait for each other.
#[derive(Debug)]
pub(crate) struct Cycle {
    /// Whose request waits where for that of the step before it. The last step is that of the owner the search began
    /// with.
    steps: Vec<(RequestId, QueueId)>,
    /// The request that came last, and its step.
    pub(crate) youngest: (RequestId, usize),
}

impl Cycle {
    /// So many steps are told.
    const TOLD: usize = 8;

    /// What is told to the owner the search began with.
    pub(crate) fn told(&self, waitlist: &Waitlist) -> LockError {
        self.told_from(self.steps.len() - 1, waitlist)
    }

    /// What is told to the owner of the youngest request.
    pub(crate) fn told_to_youngest(&self, waitlist: &Waitlist) -> LockError {
        self.told_from(self.youngest.1, waitlist)
    }

    fn told_from(&self, first: usize, waitlist: &Waitlist) -> LockError {
        let len = self.steps.len();
        let token = |number: usize| {
            let (request, _) = self.steps[(first + len - number) % len];
            waitlist.get(request).map(|waiter| waiter.token.clone())
        };
        let step = |number: usize| {
            let (_, queue) = self.steps[(first + len - number) % len];
            let lock = waitlist.lock_of(queue)?.clone();
            Some(DeadlockStep { token: token(number)?, lock, waits_for: token(number + 1)? })
        };
        let steps: Vec<DeadlockStep> = (0..len.min(Self::TOLD)).filter_map(step).collect();
        let told_to = waitlist.get(self.steps[first].0).and_then(|waiter| waiter.user.clone());
        LockError::Deadlock(DeadlockCycle { more: len - steps.len(), steps, told_to })
    }
}

/// Looks for a shortest cycle that this request closes. It must already stand in its queues, and be the last that
/// came.
pub(crate) fn closed_by(
    request: RequestId,
    waitlist: &Waitlist,
    now_unix_ms: u64,
    store: &mut impl LockStore,
) -> Option<Cycle> {
    let waiter = waitlist.get(request)?;
    let mut search = Search::new(waiter.token.clone(), waitlist, now_unix_ms, STEPS_AT_REQUEST);
    if waiter.terms.want == Want::Upgrade {
        // It goes before those who are there: they come to wait for its owner, so all that the owner waits for counts.
        search.frontier.push_back(waiter.token.clone());
        return search.go_on(store);
    }
    search.follow(request, store).or_else(|| search.go_on(store))
}

/// What is told to the second of two readers of a lock that both wait to write.
pub(crate) fn between_upgrades(
    lock: LockIdRef<'_>,
    second: &[u8],
    first: &Rc<[u8]>,
    told_to: UserName,
) -> LockError {
    let (lock, second) = (LockId::from(lock), Rc::from(second));
    let step = |token: &Rc<[u8]>, waits_for: &Rc<[u8]>| DeadlockStep {
        token: token.clone(),
        lock: lock.clone(),
        waits_for: waits_for.clone(),
    };
    let steps = vec![step(&second, first), step(first, &second)];
    LockError::Deadlock(DeadlockCycle { steps, more: 0, told_to })
}

/// What was found around an owner.
pub(crate) struct Around {
    pub(crate) cycle: Option<Cycle>,
    /// A request of the owner, for one name, that can be answered: its token holds that, or can never have it.
    pub(crate) answered: Option<RequestId>,
}

/// Looks for a shortest cycle through this owner, by whichever of its requests.
pub(crate) fn around(
    token: &Rc<[u8]>,
    waitlist: &Waitlist,
    now_unix_ms: u64,
    store: &mut impl LockStore,
) -> Around {
    let mut search = Search::new(token.clone(), waitlist, now_unix_ms, STEPS_LATER);
    search.frontier.push_back(token.clone());
    Around { cycle: search.go_on(store), answered: search.answered }
}

/// Who waits, and where.
#[derive(Clone, Debug)]
struct Edge {
    token: Rc<[u8]>,
    request: RequestId,
    queue: QueueId,
}

struct Search<'w> {
    waitlist: &'w Waitlist,
    now_unix_ms: u64,
    /// The owner that the search begins with.
    start: Rc<[u8]>,
    /// For each owner reached, who waits for it and where: the way back to the start.
    reached: BTreeMap<TokenId, Edge>,
    /// Owners reached whose requests were not looked at.
    frontier: VecDeque<Rc<[u8]>>,
    /// As many as a search has steps at most, and mostly one.
    walked: SmallVec<[(QueueId, Walked); 2]>,
    /// So many steps are left.
    left: usize,
    answered: Option<RequestId>,
}

/// Who was reached at one queue.
#[derive(Clone, Copy, Debug)]
struct Walked {
    has_holders: bool,
    has_upgrades: bool,
    /// All that stand before this request,
    all_before: RequestId,
    /// and before this one all but the lone readers.
    others_before: RequestId,
}

impl Walked {
    const NOBODY: Self = Self {
        has_holders: false,
        has_upgrades: false,
        all_before: RequestId::FIRST,
        others_before: RequestId::FIRST,
    };
}

impl<'w> Search<'w> {
    fn new(start: Rc<[u8]>, waitlist: &'w Waitlist, now_unix_ms: u64, left: usize) -> Self {
        let (reached, frontier, walked) = (BTreeMap::new(), VecDeque::new(), SmallVec::new());
        Self { waitlist, now_unix_ms, start, reached, frontier, walked, left, answered: None }
    }

    /// Goes on to all whom the owners reached wait for, as far as the steps suffice.
    fn go_on(&mut self, store: &mut impl LockStore) -> Option<Cycle> {
        while let Some(token) = self.frontier.pop_front() {
            for request in self.waitlist.requests_of(TokenId::of(&token)) {
                if self.left == 0 {
                    return None;
                }
                if let Some(cycle) = self.follow(request, store) {
                    return Some(cycle);
                }
            }
        }
        None
    }

    /// Goes on to all whom this request waits for.
    fn follow(&mut self, request: RequestId, store: &mut impl LockStore) -> Option<Cycle> {
        let waiter = self.waitlist.get(request)?;
        for &id in &waiter.queues {
            self.left = self.left.checked_sub(1)?;
            let Some(queue) = self.waitlist.queue(id) else { continue };
            if self.follow_at(request, waiter, queue, id, store) {
                return Some(self.way_back((request, id), &waiter.token));
            }
        }
        None
    }

    /// Goes on to all whom this request waits for at this queue, as far as a cycle can lead through them: owners
    /// that wait themselves. Whether one of them is the start.
    fn follow_at(
        &mut self,
        request: RequestId,
        waiter: &Waiter,
        queue: &Queue,
        id: QueueId,
        store: &mut impl LockStore,
    ) -> bool {
        if queue.has_own_ahead(waiter.token_id(), request) {
            return false;
        }
        let lock = store.peek(queue.lock.as_ref());
        if is_answered(waiter, lock, self.now_unix_ms) {
            if waiter.token == self.start && !waiter.is_for_many() {
                self.answered.get_or_insert(request);
            }
            return false;
        }
        let waits_for_holders = waits_for_holders(request, waiter, queue, lock);
        if waiter.token != self.start
            && ((waits_for_holders
                && lock.is_some_and(|lock| lock.holder(&self.start, self.now_unix_ms).is_some()))
                || self.is_ahead(request, waiter, queue, id))
        {
            return true;
        }
        let edge = Edge { token: waiter.token.clone(), request, queue: id };
        let known = self.walked.iter().position(|(queue, _)| *queue == id);
        let mut walked = known.map_or(Walked::NOBODY, |at| self.walked[at].1);
        if waits_for_holders && !std::mem::replace(&mut walked.has_holders, true) {
            for token in lock.map(|lock| self.waiting_holders(lock)).unwrap_or_default() {
                self.reach(&token, &edge);
            }
        }
        if waiter.terms.want != Want::Upgrade {
            if !std::mem::replace(&mut walked.has_upgrades, true)
                && let Some(upgrade) = queue.multi_queue_upgrade()
            {
                self.reach_request(upgrade, &edge, true);
            }
            // It waits for all that came before this, and beyond for all but the lone readers.
            let barrier = match waiter.terms.want {
                Want::Hold(Mode::Read) => queue
                    .last_writer_before(request)
                    .map_or(RequestId::FIRST, |writer| RequestId(writer.0 + 1)),
                _ => request,
            };
            // The last first: where it stands behind the others elsewhere too, they are all reached from it.
            let from = walked.all_before.max(walked.others_before).max(barrier);
            for ahead in queue.multi_queue_arrivals(from, request.max(from)).take(self.left) {
                self.reach_request(ahead, &edge, false);
            }
            let to = barrier.max(walked.all_before);
            for ahead in queue.multi_queue_arrivals(walked.all_before, to).take(self.left) {
                self.reach_request(ahead, &edge, true);
            }
            walked.others_before = walked.others_before.max(request);
            walked.all_before = walked.all_before.max(barrier);
        }
        match known {
            Some(at) => self.walked[at].1 = walked,
            None => self.walked.push((id, walked)),
        }
        false
    }

    /// Whether the start stands before this request in this queue, so that it waits for it.
    fn is_ahead(&mut self, request: RequestId, waiter: &Waiter, queue: &Queue, id: QueueId) -> bool {
        self.waitlist.of_token_at(id, TokenId::of(&self.start)).any(|own| {
            self.left = self.left.saturating_sub(1);
            let are_let_in_together = || {
                let is_like =
                    |first: &Waiter| first.is_lone_reader() && waiter.terms.want == first.terms.want;
                self.waitlist.get(own).is_some_and(is_like) && !queue.has_writer_between(own, request)
            };
            queue.is_ahead(own, request) && !are_let_in_together()
        })
    }

    /// Of those who hold this lock, the tokens that wait, as far as the steps that are left suffice.
    fn waiting_holders(&mut self, lock: &Lock) -> Vec<Rc<[u8]>> {
        let (waitlist, left, mut looked_at) = (self.waitlist, self.left, 0);
        let found = if lock.len() <= waitlist.tokens_len() {
            let holders = lock.holders().take(left).inspect(|_| looked_at += 1);
            let live = holders.filter(|holder| holder.is_live(self.now_unix_ms));
            live.filter_map(|holder| waitlist.token(holder.token()).cloned()).collect()
        } else {
            let tokens = waitlist.tokens_after(None).take(left).inspect(|_| looked_at += 1);
            tokens.filter(|token| lock.holder(token, self.now_unix_ms).is_some()).cloned().collect()
        };
        self.left -= looked_at;
        found
    }

    fn reach_request(&mut self, request: RequestId, edge: &Edge, with_lone_readers: bool) {
        let Some(left) = self.left.checked_sub(1) else { return };
        self.left = left;
        let Some(waiter) = self.waitlist.get(request) else { return };
        if with_lone_readers || !waiter.is_lone_reader() {
            self.reach(&waiter.token, edge);
        }
    }

    /// The start is not reached in this way: whether somebody waits for it is asked of each by itself.
    fn reach(&mut self, token: &Rc<[u8]>, edge: &Edge) {
        let is_new = *token != edge.token && *token != self.start;
        if is_new && !self.reached.contains_key(&TokenId::of(token)) {
            self.reached.insert(TokenId::of(token), edge.clone());
            self.frontier.push_back(token.clone());
        }
    }

    /// The cycle whose last step, to the start, is this one of this owner.
    fn way_back(&self, last: (RequestId, QueueId), token: &Rc<[u8]>) -> Cycle {
        let (mut steps, mut token) = (vec![last], token);
        while let Some(edge) = self.reached.get(&TokenId::of(token)) {
            steps.push((edge.request, edge.queue));
            token = &edge.token;
        }
        let numbered = (0..).zip(&steps).map(|(number, (request, _))| (*request, number));
        let youngest = numbered.max().unwrap_or((last.0, 0));
        Cycle { steps, youngest }
    }
}

/// Whether a request of this queue waits for those who hold the lock.
fn waits_for_holders(request: RequestId, waiter: &Waiter, queue: &Queue, lock: Option<&Lock>) -> bool {
    waiter.wants_write()
        || lock.is_some_and(|lock| lock.mode() == Mode::Write)
        || queue.has_writer_ahead(request)
}

/// Whether a request is answered before anybody acts, so that it waits for nobody at this queue: its token holds
/// already what it wants, or can never have it.
fn is_answered(waiter: &Waiter, lock: Option<&Lock>, now_unix_ms: u64) -> bool {
    let admission =
        lock.map(|lock| lock.admission(waiter.claim().hold(), waiter.terms.want, None, now_unix_ms));
    matches!(admission, Some(Admission::Held { .. } | Admission::WrongMode(_) | Admission::NotHeld))
}
