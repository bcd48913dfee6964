//! What only looks: `PTTL`, `MPTTL`, `CHECK`, `INFO`. They work on replicas too, and never show a
//! hold whose deadline has passed.
//!
//! ```text
//! SLOCK.PTTL  key token                    milliseconds left, -2 not a holder
//! SLOCK.MPTTL numkeys key [key ...] token  the least of them, -2 if any is not held
//! SLOCK.CHECK key fence                    1 a live holder has this fence, 0 otherwise
//! SLOCK.INFO  key [FULL [COUNT n]]         a map, null when nobody holds or waits
//! ```

use slock_core::{Holder, Lock, Mode, PlaceRef, Refusal, Waiter, Want};

use super::{KEY, KEYS, NUMKEYS, TOKEN, arg, refused, reply};
use crate::args::Args;
use crate::office;
use crate::server::{self, Arg, ArgKind, Command, Ctx, Keys, LockKey, Opened, Reply, Spec, Text};

const NOT_A_HOLDER: i64 = -2;

/// Looks at the lock of a key, if it has one.
fn look<R>(ctx: Ctx<'_>, key: Text<'_>, at: impl FnOnce(Option<&Lock>) -> R) -> Result<R, Reply> {
    match LockKey::open_to_read(ctx, key).get() {
        Opened::Empty => Ok(at(None)),
        Opened::Lock(lock) => Ok(at(Some(lock))),
        Opened::OtherType => Err(refused(Refusal::WrongType)),
    }
}

fn pttl_ms(ctx: Ctx<'_>, key: Text<'_>, token: &[u8], now_ms: u64) -> Result<i64, Reply> {
    look(ctx, key, |lock| {
        let own = lock.and_then(|lock| lock.holder(token, now_ms));
        own.map_or(NOT_A_HOLDER, |own| (own.deadline_ms - now_ms).cast_signed())
    })
}

pub struct Pttl;

impl Command for Pttl {
    const SPEC: Spec = Spec {
        name: c"slock.pttl",
        flags: c"readonly fast",
        arity: 3,
        summary: c"Returns how many milliseconds a holder has left.",
        complexity: c"O(1)",
        keys: Keys::OneRead,
        args: &[KEY, TOKEN],
    };

    fn run(ctx: Ctx<'_>, args: &[Text<'_>]) -> Reply {
        reply(|| {
            let mut args = Args::new(args, 2, 2)?;
            let (key, token) = (args.key()?, args.token()?);
            pttl_ms(ctx, key[0], token, server::now().ms()).map(Reply::Int)
        })
    }
}

pub struct Mpttl;

impl Command for Mpttl {
    const SPEC: Spec = Spec {
        name: c"slock.mpttl",
        flags: c"readonly",
        arity: -4,
        summary: c"Returns the least number of milliseconds that a holder of several locks has left.",
        complexity: c"O(K), K being the number of keys",
        keys: Keys::CountedRead,
        args: &[NUMKEYS, KEYS, TOKEN],
    };

    fn run(ctx: Ctx<'_>, args: &[Text<'_>]) -> Reply {
        reply(|| {
            let mut args = Args::new(args, 3, usize::MAX)?;
            let (keys, token) = (args.keys(1)?, args.token()?);
            args.end()?;
            let now_ms = server::now().ms();
            let mut least = i64::MAX;
            for key in keys {
                least = least.min(pttl_ms(ctx, *key, token, now_ms)?);
            }
            Ok(Reply::Int(least))
        })
    }
}

pub struct Check;

impl Command for Check {
    const SPEC: Spec = Spec {
        name: c"slock.check",
        flags: c"readonly fast",
        arity: 3,
        summary: c"Tells whether a live holder of the lock has this fence.",
        complexity: c"O(log(N)), N being the number of readers",
        keys: Keys::OneRead,
        args: &[KEY, arg(c"fence", ArgKind::Integer)],
    };

    fn run(ctx: Ctx<'_>, args: &[Text<'_>]) -> Reply {
        reply(|| {
            let mut args = Args::new(args, 2, 2)?;
            let (key, fence) = (args.key()?, args.fence()?);
            let now_ms = server::now().ms();
            let live = look(ctx, key[0], |lock| {
                lock.is_some_and(|lock| lock.holder_with_fence(fence, now_ms).is_some())
            })?;
            Ok(Reply::Int(live.into()))
        })
    }
}

pub struct Info;

impl Command for Info {
    const SPEC: Spec = Spec {
        name: c"slock.info",
        flags: c"readonly",
        arity: -2,
        summary: c"Shows who holds a lock and who waits for it.",
        complexity: c"O(log(N)), N being the number of holders and of waiting requests; with FULL O(N)",
        keys: Keys::OneRead,
        args: &[KEY, FULL],
    };

    fn run(ctx: Ctx<'_>, args: &[Text<'_>]) -> Reply {
        reply(|| {
            let mut args = Args::new(args, 1, usize::MAX)?;
            let key = args.key()?;
            let listed = args.full_count()?;
            let place = PlaceRef { db: ctx.db(), name: key[0].bytes() };
            let now_ms = server::now().ms();
            look(ctx, key[0], |lock| {
                show(ctx, lock.filter(|lock| lock.is_live(now_ms)), place, now_ms, listed)
            })?;
            Ok(Reply::Sent)
        })
    }
}

const FULL: Arg = Arg {
    name: c"full",
    kind: ArgKind::Block(&[
        Arg { name: c"full", kind: ArgKind::Word, word: Some(c"FULL"), optional: false },
        Arg { name: c"count", kind: ArgKind::Integer, word: Some(c"COUNT"), optional: true },
    ]),
    word: None,
    optional: true,
};

fn show(ctx: Ctx<'_>, lock: Option<&Lock>, place: PlaceRef<'_>, now_ms: u64, listed: Option<usize>) {
    let waiters = office::consult(|desk| desk.waitlist().len_at(place));
    if lock.is_none() && waiters == 0 {
        return ctx.reply_null();
    }
    let live = || lock.into_iter().flat_map(Lock::holders).filter(|holder| holder.is_live(now_ms));
    let (mode, readers) = match lock.map(|lock| (lock.mode(), lock.live_len(now_ms))) {
        None => ("free", 0),
        Some((Mode::Write, _)) => ("write", 0),
        Some((Mode::Read, readers)) => ("read", readers),
    };
    let fence = lock.and_then(|lock| lock.highest_live_fence(now_ms)).unwrap_or(0);
    let pttl_ms = lock.map_or(0, |lock| lock.last_deadline_ms() - now_ms);
    ctx.reply_map(if listed.is_some() { 7 } else { 5 });
    text_field(ctx, "mode", mode.as_bytes());
    int_field(ctx, "readers", readers as u64);
    int_field(ctx, "waiters", waiters as u64);
    int_field(ctx, "fence", fence);
    int_field(ctx, "pttl", pttl_ms);
    let Some(listed) = listed else { return };
    ctx.reply_bytes(b"holders");
    let holders: Vec<&Holder> = live().take(listed).collect();
    ctx.reply_array(holders.len());
    holders.into_iter().for_each(|holder| show_holder(ctx, holder, now_ms));
    ctx.reply_bytes(b"queue");
    ctx.reply_array(waiters.min(listed));
    office::consult(|desk| {
        desk.waitlist().at(place).take(listed).for_each(|waiter| show_waiter(ctx, waiter, now_ms));
    });
}

fn show_holder(ctx: Ctx<'_>, holder: &Holder, now_ms: u64) {
    ctx.reply_map(5);
    text_field(ctx, "token", &holder.token);
    int_field(ctx, "fence", holder.fence);
    int_field(ctx, "pttl", holder.deadline_ms - now_ms);
    int_field(ctx, "held-ms", now_ms.saturating_sub(holder.since_ms));
    text_field(ctx, "meta", &holder.meta);
}

fn show_waiter(ctx: Ctx<'_>, waiter: &Waiter, now_ms: u64) {
    let mode = match waiter.want {
        Want::Hold(Mode::Write) => "write",
        Want::Hold(Mode::Read) => "read",
        Want::Upgrade => "upgrade",
    };
    // As `WAIT` said it: 0 is without limit.
    let timeout_ms = waiter.gives_up_ms.map_or(0, |at_ms| at_ms - waiter.arrived_ms);
    ctx.reply_map(4);
    text_field(ctx, "token", &waiter.token);
    text_field(ctx, "mode", mode.as_bytes());
    int_field(ctx, "waiting-ms", now_ms.saturating_sub(waiter.arrived_ms));
    int_field(ctx, "timeout-ms", timeout_ms);
}

fn text_field(ctx: Ctx<'_>, name: &str, value: &[u8]) {
    ctx.reply_bytes(name.as_bytes());
    ctx.reply_bytes(value);
}

fn int_field(ctx: Ctx<'_>, name: &str, value: u64) {
    ctx.reply_bytes(name.as_bytes());
    ctx.reply_int(value.cast_signed());
}
