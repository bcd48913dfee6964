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
//! Owners are tokens. A request that would close a cycle is refused when it comes, so that no cycle
//! stands among owners that only wait. (One that loses a name while it waits for that name among
//! others can come to wait in a cycle that no request closed; a deadline ends it.)
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

/// A shortest cycle that this request closes, or `None`. It must already stand in its queues, and be
/// the last that came. Holds for which `has_ended` is true keep nobody waiting.
pub(crate) fn cycle(
    request: RequestId,
    waitlist: &Waitlist,
    store: &mut impl LockStore,
    now_unix_ms: u64,
    has_ended: &dyn Fn(u64, LockIdRef<'_>) -> bool,
) -> Option<Vec<DeadlockStep>> {
    let waiter = waitlist.get(request)?;
    let start = waiter.token_id;
    // What else the token waits for closes no cycle now, unless others have just come to wait for
    // this request: an upgrade goes before those who are there.
    let jumps_queue = waiter.want == Want::Upgrade;
    let mut search = Search {
        new: request,
        start,
        jumps_queue,
        waitlist,
        now_unix_ms,
        has_ended,
        reached: HashMap::new(),
        frontier: VecDeque::from([start]),
        seen: HashMap::new(),
    };
    let mut followed = 0;
    // Where few other locks are waited for, to look first costs no more than to enqueue the request did.
    let is_cheap = waitlist.queues_len() <= 4 * waiter.queues.len();
    if waiter.is_for_many() && is_cheap && !jumps_queue && !search.is_start_waited_for(store) {
        return None;
    }
    while let Some(waiting) = search.frontier.pop_front() {
        followed += 1;
        if followed == LARGE && !jumps_queue && !search.is_start_waited_for(store) {
            return None;
        }
        let is_only = waiting == start && !jumps_queue;
        for own in waitlist.of_token(waiting).filter(|own| !is_only || *own == request) {
            if let Some(last) = search.follow(own, store) {
                return Some(search.way_back(last));
            }
        }
    }
    None
}

/// A search that has followed so many owners looks first whether anybody can wait for the start at all.
const LARGE: usize = 16;

/// Who waits, and where.
#[derive(Clone, Copy)]
struct Edge {
    token: TokenId,
    queue: QueueId,
}

struct Search<'w> {
    /// The request that has just come, and its token.
    new: RequestId,
    start: TokenId,
    jumps_queue: bool,
    waitlist: &'w Waitlist,
    now_unix_ms: u64,
    has_ended: &'w dyn Fn(u64, LockIdRef<'_>) -> bool,
    /// For each owner reached, who waits for it and where: the way back to the start.
    reached: HashMap<TokenId, Edge>,
    frontier: VecDeque<TokenId>,
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

impl Search<'_> {
    /// Whether anybody can wait for the start: it has another request, or holds a lock that is waited for.
    /// Where so many locks are waited for that looking is no cheaper than the search, it may be.
    fn is_start_waited_for(&self, store: &mut impl LockStore) -> bool {
        const MANY: usize = 2000;
        let Some(token) = self.waitlist.token(self.start) else { return false };
        let has_other = self.waitlist.of_token(self.start).nth(1).is_some();
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
        let mut own = queue.multi_edge_of(waiter.token_id);
        if own.any(|own| own != request && queue.is_ahead(own, request)) {
            return None;
        }
        let lock = store.peek(queue.lock.as_ref());
        let own = lock.and_then(|lock| lock.holder(&waiter.token, self.now_unix_ms));
        let is_answered = if own.is_some_and(|own| (self.has_ended)(own.fence, queue.lock.as_ref())) {
            waiter.want == Want::Upgrade
        } else {
            let admission = lock.map(|lock| lock.admission(&waiter.token, waiter.want, self.now_unix_ms));
            matches!(admission, Some(Admission::Held { .. } | Admission::WrongMode(_) | Admission::NotHeld))
        };
        if is_answered {
            return None;
        }
        let mut seen = self.seen.remove(&id).unwrap_or_else(|| self.look(queue, id, lock));
        let edge = Edge { token: waiter.token_id, queue: id };
        let found = self.holders(request, waiter, edge, queue, lock, &mut seen);
        let found = found.or_else(|| self.ahead(request, waiter, edge, queue, &mut seen));
        self.seen.insert(id, seen);
        found
    }

    fn look(&self, queue: &Queue, id: QueueId, lock: Option<&Lock>) -> Seen {
        let mut start_requests: Vec<RequestId> = queue.multi_edge_of(self.start).collect();
        if start_requests.is_empty() {
            start_requests
                .extend(self.waitlist.get(self.new).filter(|new| new.queues.contains(&id)).map(|_| self.new));
        }
        if !self.jumps_queue {
            start_requests.retain(|own| *own != self.new);
        }
        let start = self.waitlist.token(self.start);
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
        if seen.start_holds && waiter.token_id != self.start {
            return Some(edge);
        }
        if seen.has_holders {
            return None;
        }
        seen.has_holders = true;
        let lock = lock?;
        let has_ended = self.has_ended;
        if lock.len() <= waitlist.tokens().len() {
            let live = lock
                .holders_unordered()
                .filter(|holder| holder.is_live(now_ms) && !has_ended(holder.fence, queue.lock.as_ref()));
            let waiting = live.filter_map(|holder| waitlist.token_id(&holder.token));
            waiting.for_each(|token| self.reach(token, edge));
        } else {
            let holding = waitlist.tokens().filter(|(token, _)| {
                lock.holder(token, now_ms).is_some_and(|holder| !has_ended(holder.fence, queue.lock.as_ref()))
            });
            holding.for_each(|(_, token)| self.reach(token, edge));
        }
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
        if waiter.token_id != self.start {
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
            queue.multi_edge_upgrades().for_each(|token| self.reach(token, edge));
        }
        let barrier = barrier(request, waiter, queue);
        // The last first: where it stands behind the others elsewhere too, they are all reached from it.
        if barrier > seen.all_before {
            let between = queue.multi_edge_arrivals(seen.all_before, barrier);
            between.for_each(|(_, token)| self.reach(token, edge));
            seen.all_before = barrier;
        }
        let from = seen.all_before.max(seen.others_before);
        if request > from {
            let waitlist = self.waitlist;
            let others = queue
                .multi_edge_arrivals(from, request)
                .filter(|(other, _)| waitlist.get(*other).is_some_and(|other| !other.is_lone_reader()));
            others.for_each(|(_, token)| self.reach(token, edge));
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
    fn reach(&mut self, blocker: TokenId, edge: Edge) {
        if blocker != edge.token && blocker != self.start && !self.reached.contains_key(&blocker) {
            self.reached.insert(blocker, edge);
            self.frontier.push_back(blocker);
        }
    }

    fn way_back(&self, last: Edge) -> Vec<DeadlockStep> {
        let mut edges = vec![last];
        while let Some(edge) = edges.last()
            && edge.token != self.start
        {
            edges.push(self.reached[&edge.token]);
        }
        let step = |edge: &Edge| {
            let token = self.waitlist.token(edge.token)?.clone();
            Some(DeadlockStep { token, lock: self.waitlist.lock_of(edge.queue)?.clone() })
        };
        edges.iter().rev().filter_map(step).collect()
    }
}
