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
//! or a lock comes under another name. Then the cycle is looked for around that owner ([`Search::around`]).
//!
//! Nobody waits for an owner that holds nothing that is waited for and waits nowhere else: that is looked at first,
//! and mostly ends the matter (`queue/holders.rs`). Then only requests that lead out of a queue are looked at
//! ("spanning" ones). Each is reached once, and each queue gone through once, because whoever waits behind a request
//! waits behind all before it. Of a lock's readers those who wait themselves are looked for, by going through the
//! readers or through the tokens that wait, whichever are fewer.
//!
//! All the same the crowd that can be reached may be large, so a search goes on in slices ([`Search::run`]). The
//! request waits meanwhile, and a cycle in a crowd is found late. Between two slices others come and go. Who comes
//! is searched for by a search of his own. What has gone can only break a cycle: so of a cycle that was found each
//! step is looked at once more, from the last one back to the first; a short cycle at one moment, a long one in slices
//! too. What the search has noted is forgotten in slices ([`Search::forget_some`]).

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use crate::error::{DeadlockCycle, DeadlockStep, LockError};
use crate::ids::RequestId;
use crate::lock::{Admission, Holder, Lock};
use crate::mode::{Mode, Want};
use crate::queue::{HoldersSeen, Queue, QueueId, TokenId, Waiter, Waitlist};
use crate::store::LockStore;

/// What a search looks at.
pub(crate) struct View<'v> {
    pub(crate) waitlist: &'v Waitlist,
    pub(crate) now_unix_ms: u64,
    /// Whether something may have happened to any lock that was not looked at yet.
    pub(crate) is_unsure: bool,
}

/// Owners that wait for each other. There may be 100,000: they are given their words only where these are told.
#[derive(Debug)]
pub(crate) struct Cycle {
    /// Whose request waits where for that of the step before it. The last step is that of the owner the search began with.
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
        // Of a long cycle somebody may have gone since.
        let steps: Vec<DeadlockStep> = (0..len.min(Self::TOLD)).filter_map(step).collect();
        let told_to = waitlist.get(self.steps[first].0).and_then(|waiter| waiter.caller.user.clone());
        LockError::Deadlock(DeadlockCycle { more: len - steps.len(), steps, told_to })
    }
}

/// How far a search has come.
#[derive(Debug)]
pub(crate) enum Outcome {
    Cycle(Cycle),
    NoCycle,
    /// There is more to look at.
    NotYet,
    /// There was one while it was searched for, and somebody of it has gone.
    Broken,
}

/// A search so long ends for now.
pub(crate) const STEPS: usize = 2000;

/// Looks for a shortest cycle that this request closes. It must already stand in its queues, and be the last that
/// came.
pub(crate) fn closed_by(request: RequestId, view: &View<'_>, store: &mut impl LockStore) -> Outcome {
    let Some(waiter) = view.waitlist.get(request) else { return Outcome::NoCycle };
    if !is_waited_for(waiter, view, store) {
        return Outcome::NoCycle;
    }
    let mut search = Search::around(waiter);
    search.frontier.clear();
    search.work.push(Work::Request { request, at: 0 });
    if waiter.want != Want::Upgrade {
        return search.run(view, store, STEPS);
    }
    match search.run(view, store, STEPS / 2) {
        // An upgrade goes before those who are there: they come to wait for its owner, so all that the owner waits for
        // counts.
        Outcome::NoCycle => Search::around(waiter).run(view, store, STEPS / 2),
        outcome => outcome,
    }
}

/// Whether anybody can wait for the owner of this request: it has another request, or holds a lock that is waited for.
fn is_waited_for(waiter: &Waiter, view: &View<'_>, store: &mut impl LockStore) -> bool {
    view.is_unsure
        || view.waitlist.has_several(waiter.token_id())
        || view.waitlist.may_hold_what_is_waited_for(&waiter.token, |lock| {
            holds(&waiter.token, store.peek(lock.as_ref()), view)
        })
}

/// Who waits, and where.
#[derive(Clone, Debug)]
struct Edge {
    /// Kept, so that no other token comes to stand where its bytes are.
    token: Rc<[u8]>,
    request: RequestId,
    queue: QueueId,
}

/// A piece of a search that is under way.
#[derive(Debug)]
enum Work {
    /// An owner: its requests after that one.
    Owner { token: Rc<[u8]>, after: Option<RequestId> },
    /// A request: its queues from that one on.
    Request { request: RequestId, at: usize },
    /// Who holds the lock of the edge's queue.
    Holders { edge: Edge, seen: HoldersSeen },
    /// Who came to the edge's queue in this time, the last first; lone readers only if so.
    Arrivals { edge: Edge, from: RequestId, to: RequestId, with_lone_readers: bool },
}

/// So much of a crowd at one place is looked at in a step.
const AT_ONCE: usize = 32;

/// A search that may be under way.
#[derive(Debug)]
pub(crate) struct Search {
    /// The token that the search begins with.
    start: Rc<[u8]>,
    /// For each owner reached, who waits for it and where: the way back to the start; and its token, which is kept.
    reached: BTreeMap<TokenId, (Edge, Rc<[u8]>)>,
    /// Owners reached.
    frontier: VecDeque<Rc<[u8]>>,
    /// What is under way, the innermost last.
    work: Vec<Work>,
    seen: BTreeMap<QueueId, Seen>,
    /// The way back, once a cycle was found.
    way_back: Option<WayBack>,
    /// Whether the outcome is known.
    is_over: bool,
}

/// The way back along a cycle that was found, as far as it was looked at.
#[derive(Debug)]
struct WayBack {
    /// The edge to look at next.
    edge: Edge,
    /// For whom its owner waits.
    next: Rc<[u8]>,
    /// The steps behind it, the last first.
    steps: Vec<(RequestId, QueueId)>,
    /// The youngest of their requests, and which of the steps it is.
    youngest: (RequestId, usize),
}

/// What the search has done at one lock.
#[derive(Debug)]
struct Seen {
    /// Whether the lock is held for write.
    is_written: bool,
    /// Whether the start holds the lock or stands before others there.
    has_start: bool,
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
        !self.has_start
            && self.has_upgrades
            && (self.all_before >= request
                || (self.others_before >= request && self.all_before >= barrier(request, waiter, queue)))
            && (self.has_holders || !waits_for_holders(request, waiter, queue, self.is_written))
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

impl Search {
    /// A search for a shortest cycle through the owner of this request, by whichever of its requests.
    pub(crate) fn around(waiter: &Waiter) -> Self {
        Self {
            start: waiter.token.clone(),
            reached: BTreeMap::new(),
            frontier: VecDeque::from([waiter.token.clone()]),
            work: Vec::new(),
            seen: BTreeMap::new(),
            way_back: None,
            is_over: false,
        }
    }

    /// The owner that the search began with.
    pub(crate) fn start(&self) -> TokenId {
        TokenId::of(&self.start)
    }

    /// Whether the outcome is known.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over
    }

    /// Ends it without an outcome.
    pub(crate) fn give_up(&mut self) {
        self.is_over = true;
    }

    /// Forgets some of what a search has noted that is over. Whether there is more.
    pub(crate) fn forget_some(&mut self, most: usize) -> bool {
        (0..most).all(|_| {
            let (owner, token, queue) =
                (self.reached.pop_first(), self.frontier.pop_front(), self.seen.pop_first());
            owner.is_some() || token.is_some() || queue.is_some()
        })
    }

    /// Goes on with the search for so many steps at most, or a few more; and when it finds a cycle for as many again, so
    /// that a cycle of no more owners is looked at in one go.
    pub(crate) fn run(&mut self, view: &View<'_>, store: &mut impl LockStore, steps: usize) -> Outcome {
        let mut left = steps;
        let outcome = loop {
            if let Some(way_back) = self.way_back.take() {
                if let Some(outcome) = self.step_back(way_back, view, store, &mut left) {
                    break outcome;
                }
            } else {
                let owner = || self.frontier.pop_front().map(|token| Work::Owner { token, after: None });
                let Some(work) = self.work.pop().or_else(owner) else { break Outcome::NoCycle };
                if let Some(last) = self.step(work, view, store, &mut left) {
                    let next = self.start.clone();
                    let youngest = (RequestId::FIRST, 0);
                    self.way_back = Some(WayBack { edge: last, next, steps: Vec::new(), youngest });
                    left = steps;
                }
            }
            if left == 0 {
                return Outcome::NotYet;
            }
            left = left.saturating_sub(1);
        };
        self.is_over = true;
        outcome
    }

    /// Does a piece of the work, and notes what is left of it. The last edge of the cycle, if it came to the start.
    fn step(
        &mut self,
        work: Work,
        view: &View<'_>,
        store: &mut impl LockStore,
        left: &mut usize,
    ) -> Option<Edge> {
        match work {
            Work::Owner { token, after } => {
                let own = view.waitlist.next_of_token(&token, after)?;
                self.work.push(Work::Owner { token, after: Some(own) });
                self.work.push(Work::Request { request: own, at: 0 });
                None
            }
            Work::Request { request, at } => {
                let waiter = view.waitlist.get(request)?;
                let queue = *waiter.queues.get(at)?;
                self.work.push(Work::Request { request, at: at + 1 });
                self.follow_at(request, waiter, queue, view, store, left)
            }
            Work::Holders { edge, mut seen } => {
                let queue = view.waitlist.queue(edge.queue)?;
                let lock = store.peek(queue.lock.as_ref())?;
                let mut found = Vec::new();
                let note = |request, _: &Holder| found.push(request);
                view.waitlist.tokens_holding(lock, view.now_unix_ms, &mut seen, AT_ONCE, note);
                *left = left.saturating_sub(AT_ONCE.min(lock.len()));
                found.into_iter().for_each(|request| self.reach(request, &edge, view));
                if !matches!(seen, HoldersSeen::All) {
                    self.work.push(Work::Holders { edge, seen });
                }
                None
            }
            Work::Arrivals { edge, from, to, with_lone_readers } => {
                let queue = view.waitlist.queue(edge.queue)?;
                let mut last = None;
                for request in queue.spanning_arrivals(from, to).take(AT_ONCE) {
                    last = Some(request);
                    *left = left.saturating_sub(1);
                    let waiter = view.waitlist.get(request);
                    if waiter.is_some_and(|waiter| with_lone_readers || !waiter.is_lone_reader()) {
                        self.reach(request, &edge, view);
                    }
                }
                if let Some(to) = last {
                    self.work.push(Work::Arrivals { edge, from, to, with_lone_readers });
                }
                None
            }
        }
    }

    /// Goes on to all whom this request waits for at this queue, as far as a cycle can lead through them: owners
    /// that wait themselves. The last edge of the cycle, if one of them is the start.
    fn follow_at(
        &mut self,
        request: RequestId,
        waiter: &Waiter,
        id: QueueId,
        view: &View<'_>,
        store: &mut impl LockStore,
        left: &mut usize,
    ) -> Option<Edge> {
        let queue = view.waitlist.queue(id)?;
        if self.seen.get(&id).is_some_and(|seen| seen.is_done(request, waiter, queue))
            || queue.has_own_ahead(waiter.token_id(), request)
        {
            return None;
        }
        let lock = store.peek(queue.lock.as_ref());
        if is_answered(waiter, lock, view) {
            return None;
        }
        let edge = Edge { token: waiter.token.clone(), request, queue: id };
        if edge.token != self.start && waits_for(&edge, waiter, queue, lock, &self.start, view, left) {
            return Some(edge);
        }
        let mut seen = self.seen.remove(&id).unwrap_or_else(|| self.look(queue, id, lock, view));
        self.go_on(request, waiter, edge, queue, &mut seen, view);
        self.seen.insert(id, seen);
        None
    }

    fn look(&self, queue: &Queue, id: QueueId, lock: Option<&Lock>, view: &View<'_>) -> Seen {
        let own = view.waitlist.of_token_at(id, &self.start).next();
        Seen {
            is_written: is_written(lock),
            has_start: own.is_some_and(|own| queue.last() != Some(own)) || holds(&self.start, lock, view),
            has_holders: false,
            has_upgrades: false,
            all_before: RequestId::FIRST,
            others_before: RequestId::FIRST,
        }
    }

    /// Notes whom else the request waits for here: those who hold the lock, and those ahead of it.
    fn go_on(
        &mut self,
        request: RequestId,
        waiter: &Waiter,
        edge: Edge,
        queue: &Queue,
        seen: &mut Seen,
        view: &View<'_>,
    ) {
        // What is noted last is done first.
        if waiter.want != Want::Upgrade {
            let barrier = barrier(request, waiter, queue);
            let from = seen.all_before.max(barrier).max(seen.others_before);
            if request > from {
                seen.others_before = request;
                self.work.push(Work::Arrivals {
                    edge: edge.clone(),
                    from,
                    to: request,
                    with_lone_readers: false,
                });
            }
            // The last first: where it stands behind the others elsewhere too, they are all reached from it.
            if barrier > seen.all_before {
                let from = std::mem::replace(&mut seen.all_before, barrier);
                let with_lone_readers = true;
                self.work.push(Work::Arrivals { edge: edge.clone(), from, to: barrier, with_lone_readers });
            }
            if !std::mem::replace(&mut seen.has_upgrades, true)
                && let Some(upgrade) = queue.spanning_upgrade()
            {
                self.reach(upgrade, &edge, view);
            }
        }
        if waits_for_holders(request, waiter, queue, seen.is_written)
            && !std::mem::replace(&mut seen.has_holders, true)
        {
            self.work.push(Work::Holders { edge, seen: HoldersSeen::None });
        }
    }

    /// The start is not reached in this way: whether somebody waits for it is asked of each by itself.
    fn reach(&mut self, request: RequestId, edge: &Edge, view: &View<'_>) {
        let Some(waiter) = view.waitlist.get(request) else { return };
        let is_new = *waiter.token != *edge.token && *waiter.token != *self.start;
        if is_new && !self.reached.contains_key(&waiter.token_id()) {
            self.reached.insert(waiter.token_id(), (edge.clone(), waiter.token.clone()));
            self.frontier.push_back(waiter.token.clone());
        }
    }

    /// Looks whether the next owner on the way back still waits for the one behind it: time may have passed since that
    /// was found. The outcome, at the start or where somebody has gone.
    fn step_back(
        &mut self,
        way_back: WayBack,
        view: &View<'_>,
        store: &mut impl LockStore,
        left: &mut usize,
    ) -> Option<Outcome> {
        let WayBack { edge, next, mut steps, youngest } = way_back;
        if !still_waits_for(&edge, &next, view, store, left) {
            return Some(Outcome::Broken);
        }
        let youngest = youngest.max((edge.request, steps.len()));
        steps.push((edge.request, edge.queue));
        if edge.token == self.start {
            return Some(Outcome::Cycle(Cycle { steps, youngest }));
        }
        let Some((before, _)) = self.reached.get(&TokenId::of(&edge.token)) else {
            return Some(Outcome::Broken);
        };
        self.way_back = Some(WayBack { edge: before.clone(), next: edge.token, steps, youngest });
        None
    }
}

fn is_written(lock: Option<&Lock>) -> bool {
    lock.is_some_and(|lock| lock.mode() == Mode::Write)
}

/// Whether a request of this queue waits for those who hold the lock.
fn waits_for_holders(request: RequestId, waiter: &Waiter, queue: &Queue, is_written: bool) -> bool {
    waiter.wants_write() || is_written || queue.has_writer_ahead(request)
}

/// Whether this token has a hold on this lock.
fn holds(token: &[u8], lock: Option<&Lock>, view: &View<'_>) -> bool {
    lock.is_some_and(|lock| lock.holder(token, view.now_unix_ms).is_some())
}

/// Whether the request of this edge, which waits there, does so for this token: as a holder or as one who stands ahead.
fn waits_for(
    edge: &Edge,
    waiter: &Waiter,
    queue: &Queue,
    lock: Option<&Lock>,
    token: &[u8],
    view: &View<'_>,
    left: &mut usize,
) -> bool {
    let mut own = view.waitlist.of_token_at(edge.queue, token);
    (waits_for_holders(edge.request, waiter, queue, is_written(lock)) && holds(token, lock, view))
        || own.any(|own| {
            *left = left.saturating_sub(1);
            queue.is_ahead(own, edge.request) && !are_let_in_together(queue, own, edge.request, view.waitlist)
        })
}

/// The same when time has passed since the edge was found.
fn still_waits_for(
    edge: &Edge,
    token: &[u8],
    view: &View<'_>,
    store: &mut impl LockStore,
    left: &mut usize,
) -> bool {
    let (waiter, queue) = (view.waitlist.get(edge.request), view.waitlist.queue(edge.queue));
    let (Some(waiter), Some(queue)) = (waiter, queue) else { return false };
    let lock = store.peek(queue.lock.as_ref());
    !queue.has_own_ahead(waiter.token_id(), edge.request)
        && !is_answered(waiter, lock, view)
        && waits_for(edge, waiter, queue, lock, token, view, left)
}

/// Whether a request is answered before anybody acts, so that it waits for nobody at this queue: its token holds
/// already what it wants, or can never have it.
fn is_answered(waiter: &Waiter, lock: Option<&Lock>, view: &View<'_>) -> bool {
    let admission =
        lock.map(|lock| lock.admission(waiter.request().hold(), waiter.want, None, view.now_unix_ms));
    matches!(admission, Some(Admission::Held { .. } | Admission::WrongMode(_) | Admission::NotHeld))
}

fn are_let_in_together(queue: &Queue, ahead: RequestId, behind: RequestId, waitlist: &Waitlist) -> bool {
    let (Some(first), Some(second)) = (waitlist.get(ahead), waitlist.get(behind)) else {
        return false;
    };
    first.is_lone_reader() && second.want == first.want && !queue.has_writer_between(ahead, behind)
}
