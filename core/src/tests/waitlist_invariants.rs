//! Checks that the tables agree with each other; for tests.

use super::*;

impl Waitlist {
    /// Not under Miri, where it would take most of the time.
    pub(crate) fn check(&self) {
        if cfg!(miri) {
            return;
        }
        let mut waiting: BTreeMap<QueueId, BTreeSet<RequestId>> = BTreeMap::new();
        for (request, waiter) in &self.waiters {
            for queue in &waiter.queues {
                waiting.entry(*queue).or_default().insert(*request);
            }
            let token = self.token(&waiter.token).unwrap();
            assert!(self.by_token.contains(&(waiter.token_id(), *request)));
            assert!(Rc::ptr_eq(token, &waiter.token));
            if let Some(at_ms) = waiter.gives_up_ms {
                assert!(self.moments.give_ups.contains(&(at_ms, *request)));
            }
        }
        assert_eq!(waiting.len(), self.queues.len());
        assert_eq!(waiting.len(), self.queue_ids.values().map(BTreeMap::len).sum::<usize>());
        assert!(self.queue_ids.values().all(|of_db| !of_db.is_empty()));
        for (id, requests) in waiting {
            let queue = &self.queues[&id];
            assert_eq!(self.queue_ids[&queue.lock.db][&queue.lock.name], id);
            assert_eq!(queue.iter().collect::<BTreeSet<_>>(), requests);
            for request in &requests {
                let waiter = &self.waiters[request];
                let is_multi_queue = self.has_several(waiter.token_id()) || waiter.is_for_many();
                assert_eq!(
                    queue.multi_queue_of(waiter.token_id()).any(|own| own == *request),
                    is_multi_queue
                );
            }
        }
        let longest =
            self.longest.iter().flat_map(|(db, of_db)| of_db.iter().map(move |entry| (*db, *entry)));
        let longest: BTreeSet<_> = longest.collect();
        let oldest =
            self.queues.iter().map(|(id, queue)| (queue.lock.db, (queue.iter().min().unwrap(), *id)));
        assert_eq!(longest, oldest.collect());
        assert!(self.longest.values().all(|of_db| !of_db.is_empty()));
        let mut places_of = BTreeMap::new();
        for waiter in self.waiters.values() {
            *places_of.entry(waiter.user.clone()).or_insert(0) += waiter.queues.len();
        }
        assert_eq!((places_of.values().sum::<usize>(), &places_of), (self.places.all, &self.places.of_user));
        for (channel, requests) in &self.channels.requests {
            assert!(!requests.is_empty());
            assert!(requests.iter().all(|id| self.waiters[id].channel.as_ref() == Some(channel)));
        }
        for (connection, requests) in &self.channels.bound {
            assert!(!requests.is_empty());
            let terms = requests.iter().map(|id| self.waiters[id].terms);
            assert!(terms.into_iter().all(|terms| terms.is_ephemeral && terms.client == *connection));
        }
        assert!(self.channels.leaving.iter().all(|requests| !requests.is_empty()));
        let leaving: BTreeSet<_> = self.channels.leaving.iter().flatten().copied().collect();
        let mut leave = self.waiters.iter().filter(|(id, waiter)| self.leaves(**id, waiter).is_some());
        assert!(leave.all(|(id, _)| leaving.contains(id)));
        let wakes: BTreeSet<_> =
            self.queues.iter().filter_map(|(id, queue)| queue.wake_ms.map(|at_ms| (at_ms, *id))).collect();
        assert_eq!(wakes, self.moments.wakes);
        assert_eq!(self.by_token.len(), self.waiters.len());
        let tokens: BTreeSet<_> = self.by_token.iter().map(|(token, _)| *token).collect();
        assert_eq!(self.tokens.len(), tokens.len());
        assert_eq!(
            self.moments.give_ups.len(),
            self.waiters.values().filter(|w| w.gives_up_ms.is_some()).count()
        );
    }
}
