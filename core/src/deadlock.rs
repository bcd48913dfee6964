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
//! or a lock comes under another name. Then the cycle is looked for around that owner ([`around`]).
//!
//! Only requests that lead out of a queue are looked at ("multi-edge" ones): where nobody asks for
//! several locks, no token waits twice and the lock has a writer, the ten-thousandth request costs what
//! the first did. Else it costs what the multi-edge requests that can be reached are: each is reached
//! once, and each queue gone through once, because whoever waits behind a request waits behind all before
//! it. Of a lock's readers those who wait themselves are looked for, by going through the readers or
//! through the tokens that wait, whichever are fewer.

use std::collections::VecDeque;

use hashbrown::HashMap;

use crate::error::DeadlockStep;
use crate::ids::{LockIdRef, RequestId};
use crate::lock::{Admission, Lock};
use crate::mode::{Mode, Want};
use crate::queue::{Queue, QueueId, TokenId, Waiter, Waitlist};
use crate::store::LockStore;

/// Owners that wait for each other.
#[derive(Debug)]
pub(crate) struct Cycle {
    /// Who waits where for the next one.
    pub(crate) steps: Vec<DeadlockStep>,
    /// The request of the cycle that came last.
    pub(crate) youngest: RequestId,
    youngest_at: usize,
}

/// A shortest cycle that this request closes, or `None`. It must already stand in its queues, and be
/// the last that came. Holds for which `has_ended` is true keep nobody waiting.
pub(crate) fn closed_by(
    request: RequestId,
    waitlist: &Waitlist,
    store: &mut impl LockStore,
    now_unix_ms: u64,
    has_ended: &dyn Fn(u64, LockIdRef<'_>) -> bool,
) -> Option<Cycle> {
    let waiter = waitlist.get(request)?;
    if leads_nowhere(waiter, waitlist, store, now_unix_ms) {
        return None;
    }
    // What else the token waits for closes no cycle now, unless others have just come to wait for
    // this request: an upgrade goes before those who are there.
    let is_upgrade = waiter.want == Want::Upgrade;
    let through = if is_upgrade { Through::AnyRequest } else { Through::NewRequest };
    let search = Search::new(request, waiter, through, waitlist, now_unix_ms, has_ended);
    // Where few other locks are waited for, to look first costs no more than to enqueue the request did.
    let is_cheap = waitlist.queues_len() <= 4 * waiter.queues.len();
    if waiter.is_for_many() && is_cheap && !search.is_start_waited_for(store) {
        return None;
    }
    search.run(store)
}

/// Whether all whom this request waits for wait for nobody else: it stands in one queue, which nobody leads out of, for a
/// lock whose writer does not wait. So it is for most, and a search would find no more, at a price.
fn leads_nowhere(waiter: &Waiter, waitlist: &Waitlist, store: &mut impl LockStore, now_unix_ms: u64) -> bool {
    let [id] = *waiter.queues else { return false };
    let Some(queue) = waitlist.queue(id).filter(|queue| !queue.has_multi_edge()) else { return false };
    let Some(lock) = store.peek(queue.lock.as_ref()) else { return false };
    lock.mode() == Mode::Write && waitlist.tokens_holding(lock, now_unix_ms).next().is_none()
}

/// A shortest cycle through the owner of this request, by whichever of its requests. Its steps begin with the
/// youngest request.
pub(crate) fn around(
    request: RequestId,
    waitlist: &Waitlist,
    store: &mut impl LockStore,
    now_unix_ms: u64,
    has_ended: &dyn Fn(u64, LockIdRef<'_>) -> bool,
) -> Option<Cycle> {
    let waiter = waitlist.get(request)?;
    let search = Search::new(request, waiter, Through::AnyRequest, waitlist, now_unix_ms, has_ended);
    let mut cycle = search.run(store)?;
    cycle.steps.rotate_left(cycle.youngest_at);
    Some(cycle)
}

/// By which requests of its owner a cycle is looked for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Through {
    /// The one that has just come: nobody waits for it yet.
    NewRequest,
    /// All of them.
    AnyRequest,
}

/// A search that has followed so many owners looks first whether anybody can wait for the start at all.
const LARGE: usize = 16;

/// Who waits, and where.
#[derive(Clone, Copy)]
struct Edge {
    token: TokenId,
    request: RequestId,
    queue: QueueId,
}

struct Search<'w> {
    /// The request that the search begins with, and its token.
    first: RequestId,
    start: TokenId,
    through: Through,
    waitlist: &'w Waitlist,
    now_unix_ms: u64,
    has_ended: &'w dyn Fn(u64, LockIdRef<'_>) -> bool,
    /// For each owner reached, who waits for it and where: the way back to the start.
    reached: HashMap<TokenId, Edge>,
    /// Owners reached, each by a request of its.
    frontier: VecDeque<RequestId>,
    seen: HashMap<QueueId, Seen>,
}

/// What the search has done at one lock.
struct Seen {
    /// Whether the lock is held for write.
    is_written: bool,
    /// Whether the start holds the lock.
    start_holds: bool,
    /// Where the start stands in the queue, as far as others can stand behind it.
    start_requests: Vec<RequestId>,
    /// Whether all holders have been reached.
    has_holders: bool,
    /// Whether the waiting upgrades have been reached.
    has_upgrades: bool,
    /// All that stand before this request have been reached,
    all_before: RequestId,
    /// and before this one all but the lone readers.
    others_before: RequestId,
}

impl Seen {
    /// Whether all whom the request waits for here have been reached, and the start is not among them.
    fn is_done(&self, request: RequestId, waiter: &Waiter, queue: &Queue) -> bool {
        !self.start_holds
            && self.start_requests.is_empty()
            && self.has_upgrades
            && (self.all_before >= request
                || (self.others_before >= request && self.all_before >= barrier(request, waiter, queue)))
            && (self.has_holders || !self.waits_for_holders(request, waiter, queue))
    }

    fn waits_for_holders(&self, request: RequestId, waiter: &Waiter, queue: &Queue) -> bool {
        waiter.wants_write() || self.is_written || queue.has_writer_ahead(request)
    }
}

/// The request waits for all that came before this: for everybody ahead, if it wants to write, and as a
/// reader for all up to the last writer (and beyond for all but lone readers).
fn barrier(request: RequestId, waiter: &Waiter, queue: &Queue) -> RequestId {
    match waiter.want {
        Want::Hold(Mode::Read) => queue.last_writer_before(request).map_or(RequestId::FIRST, RequestId::next),
        _ => request,
    }
}

impl<'w> Search<'w> {
    fn new(
        first: RequestId,
        waiter: &Waiter,
        through: Through,
        waitlist: &'w Waitlist,
        now_unix_ms: u64,
        has_ended: &'w dyn Fn(u64, LockIdRef<'_>) -> bool,
    ) -> Self {
        let start = waiter.token_id();
        let (reached, seen, frontier) = (HashMap::new(), HashMap::new(), VecDeque::from([first]));
        Self { first, start, through, waitlist, now_unix_ms, has_ended, reached, frontier, seen }
    }

    fn run(mut self, store: &mut impl LockStore) -> Option<Cycle> {
        let is_new = self.through == Through::NewRequest;
        let mut followed = 0;
        while let Some(waiting) = self.frontier.pop_front() {
            followed += 1;
            if followed == LARGE && is_new && !self.is_start_waited_for(store) {
                return None;
            }
            let is_only = waiting == self.first && is_new;
            let first = self.first;
            for own in self.waitlist.siblings(waiting).filter(|own| !is_only || *own == first) {
                if let Some(last) = self.follow(own, store) {
                    return self.way_back(last);
                }
            }
        }
        None
    }

    /// Whether anybody can wait for the start: it has another request, or holds a lock that is waited for.
    /// Where so many locks are waited for that looking is no cheaper than the search, it may be.
    fn is_start_waited_for(&self, store: &mut impl LockStore) -> bool {
        const MANY: usize = 2000;
        let Some(token) = self.waitlist.get(self.first).map(|waiter| &waiter.token) else { return false };
        let has_other = self.waitlist.siblings(self.first).nth(1).is_some();
        has_other
            || self.waitlist.queues_len() > MANY
            || self.waitlist.locks().any(|lock| {
                let own = store.peek(lock.as_ref()).and_then(|held| held.holder(token, self.now_unix_ms));
                own.is_some_and(|own| !(self.has_ended)(own.fence, lock.as_ref()))
            })
    }

    /// Goes on to all whom this request waits for, as far as a cycle can lead through them: owners that
    /// wait themselves. The last edge of the cycle, if one of them is the start.
    fn follow(&mut self, request: RequestId, store: &mut impl LockStore) -> Option<Edge> {
        let waiter = self.waitlist.get(request)?;
        waiter.queues.iter().find_map(|queue| self.follow_at(request, waiter, *queue, store))
    }

    fn follow_at(
        &mut self,
        request: RequestId,
        waiter: &Waiter,
        id: QueueId,
        store: &mut impl LockStore,
    ) -> Option<Edge> {
        let queue = self.waitlist.queue(id)?;
        if self.seen.get(&id).is_some_and(|seen| seen.is_done(request, waiter, queue)) {
            return None;
        }
        let mut own = queue.multi_edge_of(waiter.token_id());
        if own.any(|own| own != request && queue.is_ahead(own, request)) {
            return None;
        }
        let lock = store.peek(queue.lock.as_ref());
        let own = lock.and_then(|lock| lock.holder(&waiter.token, self.now_unix_ms));
        let is_answered = if own.is_some_and(|own| (self.has_ended)(own.fence, queue.lock.as_ref())) {
            waiter.want == Want::Upgrade
        } else {
            let admission =
                lock.map(|lock| lock.admission(waiter.hold(), waiter.want, None, self.now_unix_ms));
            matches!(admission, Some(Admission::Held { .. } | Admission::WrongMode(_) | Admission::NotHeld))
        };
        if is_answered {
            return None;
        }
        let mut seen = self.seen.remove(&id).unwrap_or_else(|| self.look(queue, id, lock));
        let edge = Edge { token: waiter.token_id(), request, queue: id };
        let found = self.holders(request, waiter, edge, queue, lock, &mut seen);
        let found = found.or_else(|| self.ahead(request, waiter, edge, queue, &mut seen));
        self.seen.insert(id, seen);
        found
    }

    fn look(&self, queue: &Queue, id: QueueId, lock: Option<&Lock>) -> Seen {
        let mut start_requests: Vec<RequestId> = queue.multi_edge_of(self.start).collect();
        if start_requests.is_empty() {
            start_requests.extend(
                self.waitlist.get(self.first).filter(|own| own.queues.contains(&id)).map(|_| self.first),
            );
        }
        if self.through == Through::NewRequest {
            start_requests.retain(|own| *own != self.first);
        }
        let start = self.waitlist.get(self.first).map(|waiter| &waiter.token);
        let own = lock.zip(start).and_then(|(lock, token)| lock.holder(token, self.now_unix_ms));
        Seen {
            is_written: lock.is_some_and(|lock| lock.mode() == Mode::Write),
            start_holds: own.is_some_and(|own| !(self.has_ended)(own.fence, queue.lock.as_ref())),
            start_requests,
            has_holders: false,
            has_upgrades: false,
            all_before: RequestId::FIRST,
            others_before: RequestId::FIRST,
        }
    }

    /// Reaches the holders, if the request waits for them.
    fn holders(
        &mut self,
        request: RequestId,
        waiter: &Waiter,
        edge: Edge,
        queue: &Queue,
        lock: Option<&Lock>,
        seen: &mut Seen,
    ) -> Option<Edge> {
        let (waitlist, now_ms) = (self.waitlist, self.now_unix_ms);
        if !seen.waits_for_holders(request, waiter, queue) {
            return None;
        }
        if seen.start_holds && waiter.token_id() != self.start {
            return Some(edge);
        }
        if seen.has_holders {
            return None;
        }
        seen.has_holders = true;
        let lock = lock?;
        let has_ended = self.has_ended;
        let live = waitlist.tokens_holding(lock, now_ms);
        live.filter(|(_, _, fence)| !has_ended(*fence, queue.lock.as_ref()))
            .for_each(|(request, token, _)| self.reach(request, token, edge));
        None
    }

    /// Reaches those ahead of the request in the queue, if it waits for them.
    fn ahead(
        &mut self,
        request: RequestId,
        waiter: &Waiter,
        edge: Edge,
        queue: &Queue,
        seen: &mut Seen,
    ) -> Option<Edge> {
        if waiter.token_id() != self.start {
            let mut ahead = seen.start_requests.iter().filter(|own| queue.is_ahead(**own, request));
            if ahead.any(|own| !self.are_let_in_together(queue, *own, request)) {
                return Some(edge);
            }
        }
        if waiter.want == Want::Upgrade {
            return None; // Only its own token's stand before it.
        }
        if !seen.has_upgrades {
            seen.has_upgrades = true;
            queue.multi_edge_upgrades().for_each(|(request, token)| self.reach(request, token, edge));
        }
        let barrier = barrier(request, waiter, queue);
        // The last first: where it stands behind the others elsewhere too, they are all reached from it.
        if barrier > seen.all_before {
            let between = queue.multi_edge_arrivals(seen.all_before, barrier);
            between.for_each(|(request, token)| self.reach(request, token, edge));
            seen.all_before = barrier;
        }
        let from = seen.all_before.max(seen.others_before);
        if request > from {
            let waitlist = self.waitlist;
            let others = queue
                .multi_edge_arrivals(from, request)
                .filter(|(other, _)| waitlist.get(*other).is_some_and(|other| !other.is_lone_reader()));
            others.for_each(|(request, token)| self.reach(request, token, edge));
            seen.others_before = request;
        }
        None
    }

    fn are_let_in_together(&self, queue: &Queue, ahead: RequestId, behind: RequestId) -> bool {
        let (Some(first), Some(second)) = (self.waitlist.get(ahead), self.waitlist.get(behind)) else {
            return false;
        };
        first.is_lone_reader() && second.want == first.want && !queue.has_writer_between(ahead, behind)
    }

    /// The start is not reached in this way: whether somebody waits for it is asked of each by itself.
    fn reach(&mut self, request: RequestId, blocker: TokenId, edge: Edge) {
        if blocker != edge.token && blocker != self.start && !self.reached.contains_key(&blocker) {
            self.reached.insert(blocker, edge);
            self.frontier.push_back(request);
        }
    }

    fn way_back(&self, last: Edge) -> Option<Cycle> {
        let mut edges = vec![last];
        while let Some(edge) = edges.last()
            && edge.token != self.start
        {
            edges.push(self.reached[&edge.token]);
        }
        let step = |edge: &Edge| {
            let token = self.waitlist.get(edge.request)?.token.clone();
            Some(DeadlockStep { token, lock: self.waitlist.lock_of(edge.queue)?.clone() })
        };
        edges.reverse();
        let youngest = edges.iter().map(|edge| edge.request).max()?;
        let youngest_at = edges.iter().position(|edge| edge.request == youngest)?;
        Some(Cycle { steps: edges.iter().filter_map(step).collect(), youngest, youngest_at })
    }
}
