//! A desk, its locks and a clock, for scenarios that read like a story.
//!
//! Names and tokens are words. A request for several names has them in one string, `"a b"`. Holds
//! last for [`TTL_MS`] unless the story says otherwise; the clock starts at [`START_MS`].

use std::collections::BTreeMap;

use super::space::{Primary, ms, place};
use crate::desk::{Answer, Ask, Desk, Outcome, Parting, Patience, Refusal};
use crate::lock::{Holder, Mode, Want};
use crate::queue::{Place, Ticket};

pub(super) const START_MS: u64 = 1_000;
pub(super) const TTL_MS: u64 = 500;

pub(super) const WRITE: Want = Want::Hold(Mode::Write);
pub(super) const READ: Want = Want::Hold(Mode::Read);
pub(super) const UPGRADE: Want = Want::Upgrade;

pub(super) struct Scene {
    pub(super) desk: Desk,
    pub(super) space: Primary,
    pub(super) now_ms: u64,
    /// The connection that everybody's holds end with from here on, if any.
    pub(super) connection: Option<u64>,
    /// The metadata that everybody brings from here on, if any.
    pub(super) meta: Option<&'static str>,
    who: BTreeMap<Ticket, String>,
}

impl Scene {
    pub(super) fn new() -> Self {
        Self {
            desk: Desk::default(),
            space: Primary::default(),
            now_ms: START_MS,
            connection: None,
            meta: None,
            who: BTreeMap::new(),
        }
    }

    pub(super) fn ask(
        &mut self,
        names: &str,
        token: &str,
        want: Want,
        ttl_ms: u64,
        patience: Patience,
    ) -> Result<Outcome, Refusal> {
        let names: Vec<&[u8]> = names.split(' ').map(str::as_bytes).collect();
        let ask = Ask {
            db: 0,
            names: &names,
            token: token.as_bytes(),
            want,
            ttl_ms,
            meta: self.meta.map(str::as_bytes),
            patience,
            connection: self.connection,
        };
        let outcome = self.desk.acquire(&mut self.space, ms(self.now_ms), &ask);
        if let Ok(Outcome::Parked(ticket)) = outcome {
            self.who.insert(ticket, token.to_owned());
        }
        self.desk.waitlist().check();
        outcome
    }

    /// Asks without waiting: the fence, or `None`.
    pub(super) fn tries(&mut self, names: &str, token: &str, want: Want) -> Option<u64> {
        match self.ask(names, token, want, TTL_MS, Patience::None) {
            Ok(Outcome::Granted(fence)) => Some(fence),
            Ok(Outcome::Refused) => None,
            other => panic!("{token} asked for {names} and got {other:?}"),
        }
    }

    /// Asks without waiting, and gets it.
    pub(super) fn takes(&mut self, names: &str, token: &str, want: Want) -> u64 {
        self.tries(names, token, want).unwrap_or_else(|| panic!("{token} was refused {names}"))
    }

    /// Like [`Scene::takes`], for so many milliseconds.
    pub(super) fn takes_for(&mut self, names: &str, token: &str, want: Want, ttl_ms: u64) -> u64 {
        match self.ask(names, token, want, ttl_ms, Patience::None) {
            Ok(Outcome::Granted(fence)) => fence,
            other => panic!("{token} asked for {names} and got {other:?}"),
        }
    }

    /// Asks to wait without limit, and has to.
    pub(super) fn waits(&mut self, names: &str, token: &str, want: Want) -> Ticket {
        self.waits_with(names, token, want, TTL_MS, Patience::Endless)
    }

    pub(super) fn waits_with(
        &mut self,
        names: &str,
        token: &str,
        want: Want,
        ttl_ms: u64,
        patience: Patience,
    ) -> Ticket {
        match self.ask(names, token, want, ttl_ms, patience) {
            Ok(Outcome::Parked(ticket)) => ticket,
            other => panic!("{token} asked to wait for {names} and got {other:?}"),
        }
    }

    /// Asks to wait, and gets this error.
    pub(super) fn is_refused(&mut self, names: &str, token: &str, want: Want) -> Refusal {
        match self.ask(names, token, want, TTL_MS, Patience::Endless) {
            Err(refusal) => refusal,
            other => panic!("{token} asked to wait for {names} and got {other:?}"),
        }
    }

    pub(super) fn releases(&mut self, name: &str, token: &str) {
        let place = place(name);
        let released =
            self.desk.release(&mut self.space, ms(self.now_ms), place.as_ref(), token.as_bytes(), None);
        assert_eq!(released, Ok(true), "{token} releases {name}");
        self.desk.waitlist().check();
    }

    pub(super) fn extends(&mut self, name: &str, token: &str, ttl_ms: u64) {
        let (now, names) = (ms(self.now_ms), [name.as_bytes()]);
        let extended = self.desk.extend(&mut self.space, now, 0, &names, token.as_bytes(), ttl_ms);
        assert_eq!(extended, Ok(true), "{token} extends {name}");
    }

    pub(super) fn downgrades(&mut self, name: &str, token: &str) -> u64 {
        let place = place(name);
        let now = ms(self.now_ms);
        self.desk.downgrade(&mut self.space, now, place.as_ref(), token.as_bytes(), TTL_MS).unwrap()
    }

    /// The client of this request goes; what follows from it is left to [`Scene::drives`].
    pub(super) fn leaves(&mut self, ticket: Ticket) -> Parting {
        let parting = self.desk.leave(ticket);
        self.desk.waitlist().check();
        parting
    }

    pub(super) fn drives(&mut self) {
        self.desk.drive(&mut self.space, ms(self.now_ms));
        self.desk.waitlist().check();
        assert!(!self.desk.has_work());
    }

    /// Sets the clock and drives.
    pub(super) fn drives_at(&mut self, now_ms: u64) {
        self.now_ms = now_ms;
        self.drives();
    }

    /// Something out of our hands happens to the key, and the desk is told of it.
    pub(super) fn happens(&mut self, name: &str, what: impl FnOnce(&mut Primary, &Place)) {
        let place = place(name);
        what(&mut self.space, &place);
        self.desk.mark(place.as_ref());
        self.drives();
    }

    /// Every answer since the last call, in order, as "token granted", "token timed out" or "token"
    /// and the first word of the error.
    pub(super) fn news(&mut self) -> Vec<String> {
        self.answers().into_iter().map(|(news, _)| news).collect()
    }

    /// The fences of the grants since the last call, in order.
    pub(super) fn fences(&mut self) -> Vec<u64> {
        self.answers().into_iter().filter_map(|(_, fence)| fence).collect()
    }

    fn answers(&mut self) -> Vec<(String, Option<u64>)> {
        let answers = self.desk.take_answers().into_iter();
        let named = answers.map(|(ticket, answer)| {
            let who = self.who.remove(&ticket).expect("one answer each");
            match answer {
                Answer::Granted(fence) => (format!("{who} granted"), Some(fence)),
                Answer::TimedOut => (format!("{who} timed out"), None),
                Answer::Refused(refusal) => {
                    let text = refusal.to_string();
                    (format!("{who} {}", text.split(' ').next().unwrap_or_default()), None)
                }
            }
        });
        named.collect()
    }

    /// The hold that the token has now, if any.
    pub(super) fn hold(&self, name: &str, token: &str) -> Option<&Holder> {
        self.space.lock(&place(name))?.holder(token.as_bytes(), self.now_ms)
    }

    /// Who holds the lock now and how, oldest first: "A reads", "A writes".
    pub(super) fn held(&self, name: &str) -> Vec<String> {
        let Some(lock) = self.space.lock(&place(name)) else { return Vec::new() };
        let how = if lock.mode() == Mode::Write { "writes" } else { "reads" };
        let live = lock.holders().filter(|holder| holder.is_live(self.now_ms));
        live.map(|holder| format!("{} {how}", String::from_utf8_lossy(&holder.token))).collect()
    }

    /// Who waits for this name, the next one first.
    pub(super) fn queue(&self, name: &str) -> Vec<String> {
        let waiters = self.desk.waitlist().at(place(name).as_ref());
        waiters.map(|waiter| String::from_utf8_lossy(&waiter.token).into_owned()).collect()
    }

    /// When the desk has to be driven next, after the start.
    pub(super) fn due_in(&self) -> Option<u64> {
        self.desk.next_due_ms().map(|due_ms| due_ms - self.now_ms)
    }
}
