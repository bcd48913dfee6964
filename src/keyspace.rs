// SPDX-License-Identifier: MIT OR Apache-2.0

//! Where the core finds its locks: the server's keys.
//!
//! [`Keyspace::commit`] is the one way in which an operation changes a lock, always in this order: the
//! value, the key's expiry, the replication stream, `WATCH`. The announcement comes last, when the runtime
//! is free again: a subscriber may run commands, also ours.
//!
//! To open a key can expire it, and to store a lock makes a new key. Then a subscriber of another module may run
//! commands that remove locks which an operation has open. The type's callbacks report that: see [`note_change`].

use std::cell::RefCell;

use smallvec::SmallVec;

use slock_core::{Change, Effect, Event, Lock, LockId, LockIdRef, LockStore, Lookup, Operation};

use crate::replication::{has_listeners, send};
use crate::server::{
    Ctx, LockKey, Opened, OwnCtx, OwnedString, Str, Strings, boxed, drop_in_background, now, own_ctx,
};
use crate::shared::Flag;
use crate::state::STATE;

/// The keys that an operation works on.
pub struct Keyspace<'c> {
    access: Access<'c>,
    /// Whether changes have to be written out for others; see `replication`.
    has_listeners: bool,
    db: i32,
    open: SmallVec<[OpenKey<'c>; 1]>,
    /// The key that was looked at last beside those.
    peeked: Option<LockKey<'c>>,
    unannounced: SmallVec<[Announcement<'c>; 1]>,
}

/// Through which context keys are opened.
#[derive(Clone, Copy)]
enum Access<'c> {
    /// The keys that a command names. The server has let it through to this node for them, and no string
    /// has to be made.
    Command(Ctx<'c>, &'c [Str<'c>]),
    /// Any keys, from a timer, and their names.
    Timer(OwnCtx<'c>, &'c Strings),
}

impl<'c> Access<'c> {
    fn ctx(&self) -> Ctx<'c> {
        match self {
            Self::Command(ctx, _) => *ctx,
            Self::Timer(ctx, _) => ctx.as_ctx(),
        }
    }
}

/// A name that an operation is about.
struct OpenKey<'c> {
    name: Str<'c>,
    /// `None` if this node of a cluster does not serve it.
    key: Option<LockKey<'c>>,
}

/// An event that subscribers have not heard of yet.
struct Announcement<'c> {
    db: i32,
    name: Str<'c>,
    event: Event,
    changed: Changed,
}

impl Announcement<'_> {
    /// Tells subscribers.
    #[inline(always)]
    fn announce(&self, access: &Access<'_>) {
        let &Self { db, name, event, changed } = self;
        if let Access::Timer(own, _) = access {
            own.select_db(db);
        }
        let ctx = access.ctx();
        if changed.had_expired {
            ctx.announce_expired(name);
        } else {
            (0..changed.ended).for_each(|_| ctx.announce(c"slock.expire", name));
        }
        ctx.announce(event_name(event), name);
        if changed.is_gone {
            ctx.announce_gone(name);
        }
    }
}

/// What an effect did to a stored lock, besides what it says.
#[derive(Clone, Copy, Default)]
pub struct Changed {
    /// So many holders went because their time was up.
    ended: usize,
    /// All that there were: the key had expired, and the server had not collected it yet.
    had_expired: bool,
    /// The key is there now and was not before.
    is_new: bool,
    /// The key has gone.
    pub is_gone: bool,
}

impl<'c> Keyspace<'c> {
    /// Has `work` done on the keys of a command, which are named in their order, and tells subscribers of it. Not while
    /// the runtime is in use.
    #[inline(always)]
    pub fn with_keys<R>(ctx: Ctx<'c>, keys: &'c [Str<'c>], work: impl FnOnce(Operation<'_, Self>) -> R) -> R {
        let (one, many): ([&[u8]; 1], Vec<&[u8]>);
        let names = if let [key] = keys {
            one = [key.bytes()];
            &one[..]
        } else {
            many = keys.iter().map(|key| key.bytes()).collect();
            &many
        };
        let (access, db) = (Access::Command(ctx, keys), ctx.db());
        Self::with(access, db, has_listeners(ctx), |store| work(Operation::new(store, now(), db, names)))
    }

    /// Has `work` done on any keys, seen from a timer, and tells subscribers of it.
    pub fn with_all<R>(ctx: OwnCtx<'_>, work: impl FnOnce(&mut Keyspace<'_>) -> R) -> R {
        let names = Strings::default();
        Keyspace::with(Access::Timer(ctx, &names), ctx.as_ctx().db(), true, work)
    }

    /// Has `work` done, closes the keys, and tells subscribers what has changed.
    #[inline(always)]
    fn with<R>(
        access: Access<'c>,
        db: i32,
        has_listeners: bool,
        work: impl FnOnce(&mut Keyspace<'c>) -> R,
    ) -> R {
        let (result, changes);
        {
            let mut keyspace = Self {
                access,
                has_listeners,
                db,
                open: SmallVec::new(),
                peeked: None,
                unannounced: SmallVec::new(),
            };
            result = work(&mut keyspace);
            changes = keyspace.unannounced;
        }
        for change in &changes {
            change.announce(&access);
        }
        result
    }

    /// Gives a lock that came without an expiry of its key the one that it should have. The lock stays as it is.
    pub fn give_expiry(&mut self, lock: LockIdRef<'_>) {
        self.open(lock.db, &[lock.name]);
        let ctx = self.access.ctx();
        let [OpenKey { name, key: Some(key) }] = self.open.as_mut_slice() else { return };
        let Opened::Lock(stored) = key.get() else { return };
        if key.expires_ms().is_some() {
            return;
        }
        let last = stored.holders().max_by_key(|holder| holder.deadline_ms);
        if let Some((token, deadline_ms)) = last.map(|last| (last.token().to_vec(), last.deadline_ms)) {
            // That its last holder stays until then changes nothing else, here or at a replica.
            let effect = Effect { at_ms: 0, change: Change::Extend { token: &token, deadline_ms } };
            key.expire_at_ms(deadline_ms);
            send(ctx, *name, &effect);
            ctx.signal_modified(*name);
        }
    }

    #[inline(always)]
    fn open_key(&self, at: usize, name: &[u8]) -> OpenKey<'c> {
        let ctx = self.access.ctx();
        match &self.access {
            Access::Command(_, named) => {
                debug_assert!(named[at].bytes() == name, "an operation of a command is on its keys");
                OpenKey { name: named[at], key: Some(LockKey::open(ctx, named[at])) }
            }
            Access::Timer(ctx, names) => Self::open_any(ctx.as_ctx(), names.add(name)),
        }
    }

    #[inline(never)]
    fn open_any(ctx: Ctx<'c>, name: Str<'c>) -> OpenKey<'c> {
        let is_served = !ctx.is_cluster() || ctx.owns_key(name);
        OpenKey { name, key: is_served.then(|| LockKey::open(ctx, name)) }
    }

    /// Opens those keys again whose locks others have changed since they were opened. The operation goes on with what
    /// is there now.
    #[cold]
    fn reopen_changed(&mut self) {
        let (db, ctx) = (self.db, self.access.ctx());
        // To open a key can expire it, and so on.
        while HAS_CHANGES.get() {
            HAS_CHANGES.set(false);
            let changes = CHANGES.take();
            for OpenKey { name, key } in &mut self.open {
                let lock = LockIdRef { db, name: name.bytes() };
                let has_changed =
                    |change: &Option<LockId>| change.as_ref().is_none_or(|id| id.as_ref() == lock);
                if let Some(stale) = key.take_if(|_| changes.iter().any(has_changed)) {
                    stale.let_go();
                    *key = Some(LockKey::open(ctx, *name));
                }
            }
        }
    }
}

impl LockStore for Keyspace<'_> {
    fn open(&mut self, db: i32, names: &[&[u8]]) {
        self.close();
        if let Access::Timer(ctx, _) = &self.access {
            ctx.select_db(db);
        }
        self.db = db;
        for (at, name) in names.iter().enumerate() {
            let key = self.open_key(at, name);
            self.open.push(key);
        }
        if HAS_CHANGES.get() {
            self.reopen_changed();
        }
    }

    fn get(&self, at: usize) -> Lookup<'_> {
        match self.open[at].key.as_ref().map(LockKey::get) {
            None => Lookup::NotServed,
            Some(Opened::Empty) => Lookup::Lock(None),
            Some(Opened::Lock(lock)) => Lookup::Lock(Some(lock)),
            Some(Opened::OtherType) => Lookup::OtherType,
        }
    }

    fn commit(&mut self, at: usize, effect: &Effect<'_>, event: Event) {
        let ctx = self.access.ctx();
        let &mut OpenKey { name, key: Some(ref mut key) } = &mut self.open[at] else { return };
        // Another module may have put something else there since it was opened.
        let Some(changed) = change(key, effect) else { return };
        if !self.has_listeners {
            ctx.count_change();
        } else if !(changed.is_gone && ctx.replicate_removal(name)) {
            send(ctx, name, effect);
        }
        ctx.signal_modified(name);
        self.unannounced.push(Announcement { db: self.db, name, event, changed });
        if changed.is_new && HAS_CHANGES.get() {
            self.reopen_changed();
        }
    }

    fn expires_ms(&self, at: usize) -> Option<u64> {
        self.open[at].key.as_ref().and_then(LockKey::expires_ms)
    }

    #[inline(always)]
    fn close(&mut self) {
        if self.peeked.is_some() || !self.open.is_empty() {
            self.peeked = None;
            self.open.clear();
        }
    }

    fn peek(&mut self, lock: LockIdRef<'_>) -> Option<&Lock> {
        // A second look at an open key could collect it, if its time has come meanwhile.
        let is_open = |open: &OpenKey<'_>| self.db == lock.db && open.name.bytes() == lock.name;
        if let Some(at) = self.open.iter().position(is_open) {
            return match self.get(at) {
                Lookup::Lock(lock) => lock,
                Lookup::OtherType | Lookup::NotServed => None,
            };
        }
        self.peeked = None;
        let name = OwnedString::new(lock.name);
        let ctx = own_ctx();
        ctx.select_db(lock.db);
        // Not to read: that would count as a hit or a miss of the keyspace.
        let mut peeked = LockKey::open(ctx.as_ctx(), name.as_str());
        while HAS_CHANGES.get() {
            peeked.let_go();
            self.reopen_changed();
            peeked = LockKey::open(ctx.as_ctx(), name.as_str());
        }
        self.peeked = Some(peeked);
        match self.peeked.as_ref()?.get() {
            Opened::Lock(lock) => Some(lock),
            Opened::Empty | Opened::OtherType => None,
        }
    }
}

/// Makes an effect on a stored lock, and nothing else: this is all that a replica does. `None` if the key has another
/// type.
#[inline(always)]
pub fn change(key: &mut LockKey<'_>, effect: &Effect<'_>) -> Option<Changed> {
    match key.get_mut() {
        Opened::Lock(lock) => {
            let applied = lock.apply(effect);
            let mut ended = applied.ended;
            if let Some(replaced) = applied.replaced {
                let others = replaced.count_ended(now().unix_ms());
                if replaced.is_large() {
                    // So many are counted, but not announced one by one.
                    STATE.count_expirations(others);
                    drop_in_background(replaced);
                } else {
                    ended += others;
                }
            }
            if ended > 0 {
                STATE.count_expirations(ended);
            }
            if applied.is_empty {
                key.delete();
            } else {
                let last_ms = lock.last_deadline_ms();
                if !effect.is_rewritten() || key.expires_ms().is_some() {
                    key.expire_at_ms(last_ms);
                }
            }
            Some(Changed {
                ended,
                had_expired: applied.had_expired,
                is_new: false,
                is_gone: applied.is_empty,
            })
        }
        Opened::Empty => {
            let Some(lock) = Lock::born_of(effect).map(boxed) else { return Some(Changed::default()) };
            let last_ms = lock.last_deadline_ms();
            key.set(lock);
            if !effect.is_rewritten() {
                key.expire_at_ms(last_ms);
            }
            Some(Changed { is_new: true, ..Changed::default() })
        }
        Opened::OtherType => None,
    }
}

fn event_name(event: Event) -> &'static std::ffi::CStr {
    match event {
        Event::Lock => c"slock.lock",
        Event::Rlock => c"slock.rlock",
        Event::Unlock => c"slock.unlock",
        Event::Runlock => c"slock.runlock",
        Event::Extend => c"slock.extend",
        Event::Upgrade => c"slock.upgrade",
        Event::Downgrade => c"slock.downgrade",
    }
}

thread_local! {
    /// The locks of [`note_change`].
    static CHANGES: RefCell<Vec<Option<LockId>>> = const { RefCell::new(Vec::new()) };
}

static HAS_CHANGES: Flag = Flag::new(false);

/// Somebody has removed or replaced this lock, or perhaps any lock if none is named, while an operation was under way.
pub fn note_change(lock: Option<LockIdRef<'_>>) {
    CHANGES.with_borrow_mut(|changes| changes.push(lock.map(LockId::from)));
    HAS_CHANGES.set(true);
}
