//! What a holder does with what it holds: `UNLOCK`, `RUNLOCK`, `EXTEND`, `DOWNGRADE`, `MUNLOCK`,
//! `MEXTEND`.
//!
//! ```text
//! SLOCK.UNLOCK    key token                              1 released, 0 does not hold it for write
//! SLOCK.RUNLOCK   key token                              1 released, 0 does not hold it for read
//! SLOCK.EXTEND    key token ttl-ms                       1 the deadline is now + ttl, 0 not a holder
//! SLOCK.DOWNGRADE key token ttl-ms                       the new fence
//! SLOCK.MUNLOCK   numkeys key [key ...] token            how many were released
//! SLOCK.MEXTEND   numkeys key [key ...] token ttl-ms     1 all extended, 0 one or more lost, none changed
//! ```

use slock_core::{Mode, PlaceRef};

use super::{
    COMPLEXITY, COMPLEXITY_MANY, KEY, KEYS, NUMKEYS, TOKEN, TTL_MS, names, on_primary, refused, reply,
};
use crate::args::Args;
use crate::keyspace::Keyspace;
use crate::office;
use crate::server::{Command, Ctx, Keys, Reply, Spec, Text};

pub struct Unlock;

impl Command for Unlock {
    const SPEC: Spec = Spec {
        name: c"slock.unlock",
        flags: c"write fast",
        arity: 3,
        summary: c"Releases a lock held for write.",
        complexity: COMPLEXITY,
        keys: Keys::OneWritten,
        args: &[KEY, TOKEN],
    };

    fn run(ctx: Ctx<'_>, args: &[Text<'_>]) -> Reply {
        release(ctx, args, Mode::Write)
    }
}

pub struct Runlock;

impl Command for Runlock {
    const SPEC: Spec = Spec {
        name: c"slock.runlock",
        flags: c"write fast",
        arity: 3,
        summary: c"Releases a lock held for read.",
        complexity: COMPLEXITY,
        keys: Keys::OneWritten,
        args: &[KEY, TOKEN],
    };

    fn run(ctx: Ctx<'_>, args: &[Text<'_>]) -> Reply {
        release(ctx, args, Mode::Read)
    }
}

fn release(ctx: Ctx<'_>, args: &[Text<'_>], mode: Mode) -> Reply {
    reply(|| {
        let mut args = Args::new(args, 2, 2)?;
        let (key, token) = (args.key()?, args.token()?);
        on_primary()?;
        let place = PlaceRef { db: ctx.db(), name: key[0].bytes() };
        let space = Keyspace::of_command(ctx, key, place.db);
        office::serve(space, |desk, space, now| desk.release(space, now, place, token, Some(mode)))
            .map(|released| Reply::Int(released.into()))
            .map_err(refused)
    })
}

pub struct Extend;

impl Command for Extend {
    const SPEC: Spec = Spec {
        name: c"slock.extend",
        flags: c"write fast",
        arity: 4,
        summary: c"Sets the deadline of a hold to now + ttl.",
        complexity: COMPLEXITY,
        keys: Keys::OneWritten,
        args: &[KEY, TOKEN, TTL_MS],
    };

    fn run(ctx: Ctx<'_>, args: &[Text<'_>]) -> Reply {
        reply(|| {
            let mut args = Args::new(args, 3, 3)?;
            let key = args.key()?;
            extend(ctx, key, &[key[0].bytes()], args.token()?, args.ttl_ms()?)
        })
    }
}

pub struct Mextend;

impl Command for Mextend {
    const SPEC: Spec = Spec {
        name: c"slock.mextend",
        flags: c"write",
        arity: -5,
        summary: c"Sets the deadlines of several holds to now + ttl, of all or of none.",
        complexity: COMPLEXITY_MANY,
        keys: Keys::CountedWritten,
        args: &[NUMKEYS, KEYS, TOKEN, TTL_MS],
    };

    fn run(ctx: Ctx<'_>, args: &[Text<'_>]) -> Reply {
        reply(|| {
            let mut args = Args::new(args, 4, usize::MAX)?;
            let keys = args.keys(2)?;
            let (token, ttl_ms) = (args.token()?, args.ttl_ms()?);
            args.end()?;
            extend(ctx, keys, &names(keys), token, ttl_ms)
        })
    }
}

fn extend(
    ctx: Ctx<'_>,
    keys: &[Text<'_>],
    names: &[&[u8]],
    token: &[u8],
    ttl_ms: u64,
) -> Result<Reply, Reply> {
    on_primary()?;
    let db = ctx.db();
    let space = Keyspace::of_command(ctx, keys, db);
    office::serve(space, |desk, space, now| desk.extend(space, now, db, names, token, ttl_ms))
        .map(|extended| Reply::Int(extended.into()))
        .map_err(refused)
}

pub struct Downgrade;

impl Command for Downgrade {
    const SPEC: Spec = Spec {
        name: c"slock.downgrade",
        flags: c"write fast",
        arity: 4,
        summary: c"Turns the writer into a reader in one step, with no writer in between.",
        complexity: COMPLEXITY,
        keys: Keys::OneWritten,
        args: &[KEY, TOKEN, TTL_MS],
    };

    fn run(ctx: Ctx<'_>, args: &[Text<'_>]) -> Reply {
        reply(|| {
            let mut args = Args::new(args, 3, 3)?;
            let (key, token, ttl_ms) = (args.key()?, args.token()?, args.ttl_ms()?);
            on_primary()?;
            let place = PlaceRef { db: ctx.db(), name: key[0].bytes() };
            let space = Keyspace::of_command(ctx, key, place.db);
            office::serve(space, |desk, space, now| desk.downgrade(space, now, place, token, ttl_ms))
                .map(|fence| Reply::Int(fence.cast_signed()))
                .map_err(refused)
        })
    }
}

pub struct Munlock;

impl Command for Munlock {
    const SPEC: Spec = Spec {
        name: c"slock.munlock",
        flags: c"write",
        arity: -4,
        summary: c"Releases several locks, in whichever mode the token holds them.",
        complexity: COMPLEXITY_MANY,
        keys: Keys::CountedWritten,
        args: &[NUMKEYS, KEYS, TOKEN],
    };

    fn run(ctx: Ctx<'_>, args: &[Text<'_>]) -> Reply {
        reply(|| {
            let mut args = Args::new(args, 3, usize::MAX)?;
            let (keys, token) = (args.keys(1)?, args.token()?);
            args.end()?;
            on_primary()?;
            let (db, names) = (ctx.db(), names(keys));
            let space = Keyspace::of_command(ctx, keys, db);
            office::serve(space, |desk, space, now| desk.release_all(space, now, db, &names, token))
                .map(|released| Reply::Int(i64::try_from(released).unwrap_or(i64::MAX)))
                .map_err(refused)
        })
    }
}
