//! Whatever may have to wait: `LOCK`, `RLOCK`, `UPGRADE`, `MLOCK`, `MRLOCK`.
//!
//! ```text
//! SLOCK.LOCK    key token ttl-ms [WAIT ms] [META data] [EPHEMERAL]
//! SLOCK.RLOCK   key token ttl-ms [WAIT ms] [META data] [EPHEMERAL]
//! SLOCK.UPGRADE key token ttl-ms [WAIT ms]
//! SLOCK.MLOCK   numkeys key [key ...] token ttl-ms [WAIT ms] [META data] [EPHEMERAL]
//! SLOCK.MRLOCK  numkeys key [key ...] token ttl-ms [WAIT ms] [META data] [EPHEMERAL]
//! ```
//!
//! The reply is the fence, or 0 when refused or when the wait ran out.

use slock_core::{Ask, Mode, Outcome, Patience, Want};

use super::{
    COMPLEXITY_MANY_WAIT, COMPLEXITY_WAIT, EPHEMERAL, KEY, KEYS, META, NUMKEYS, TOKEN, TTL_MS, WAIT, names,
    on_primary, refused, reply,
};
use crate::args::{Args, Options, error};
use crate::keyspace::Keyspace;
use crate::office;
use crate::server::{Command, Ctx, Keys, Reply, Spec, Text};

pub struct Lock;

impl Command for Lock {
    const SPEC: Spec = Spec {
        name: c"slock.lock",
        flags: c"write deny-oom blocking fast",
        arity: -4,
        summary: c"Takes a lock for write, or waits for it.",
        complexity: COMPLEXITY_WAIT,
        keys: Keys::OneWritten,
        args: &[KEY, TOKEN, TTL_MS, WAIT, META, EPHEMERAL],
    };

    fn run(ctx: Ctx<'_>, args: &[Text<'_>]) -> Reply {
        one(ctx, args, Want::Hold(Mode::Write))
    }
}

pub struct Rlock;

impl Command for Rlock {
    const SPEC: Spec = Spec {
        name: c"slock.rlock",
        flags: c"write deny-oom blocking fast",
        arity: -4,
        summary: c"Takes a lock for read, beside other readers, or waits for it.",
        complexity: COMPLEXITY_WAIT,
        keys: Keys::OneWritten,
        args: &[KEY, TOKEN, TTL_MS, WAIT, META, EPHEMERAL],
    };

    fn run(ctx: Ctx<'_>, args: &[Text<'_>]) -> Reply {
        one(ctx, args, Want::Hold(Mode::Read))
    }
}

pub struct Upgrade;

impl Command for Upgrade {
    const SPEC: Spec = Spec {
        name: c"slock.upgrade",
        flags: c"write deny-oom blocking fast",
        arity: -4,
        summary: c"Turns a reader into the writer in one step, or waits until the other readers have gone.",
        complexity: COMPLEXITY_WAIT,
        keys: Keys::OneWritten,
        args: &[KEY, TOKEN, TTL_MS, WAIT],
    };

    fn run(ctx: Ctx<'_>, args: &[Text<'_>]) -> Reply {
        one(ctx, args, Want::Upgrade)
    }
}

pub struct Mlock;

impl Command for Mlock {
    const SPEC: Spec = Spec {
        name: c"slock.mlock",
        flags: c"write deny-oom blocking",
        arity: -5,
        summary: c"Takes several locks for write, all or none, or waits for them.",
        complexity: COMPLEXITY_MANY_WAIT,
        keys: Keys::CountedWritten,
        args: &[NUMKEYS, KEYS, TOKEN, TTL_MS, WAIT, META, EPHEMERAL],
    };

    fn run(ctx: Ctx<'_>, args: &[Text<'_>]) -> Reply {
        many(ctx, args, Want::Hold(Mode::Write))
    }
}

pub struct Mrlock;

impl Command for Mrlock {
    const SPEC: Spec = Spec {
        name: c"slock.mrlock",
        flags: c"write deny-oom blocking",
        arity: -5,
        summary: c"Takes several locks for read, all or none, or waits for them.",
        complexity: COMPLEXITY_MANY_WAIT,
        keys: Keys::CountedWritten,
        args: &[NUMKEYS, KEYS, TOKEN, TTL_MS, WAIT, META, EPHEMERAL],
    };

    fn run(ctx: Ctx<'_>, args: &[Text<'_>]) -> Reply {
        many(ctx, args, Want::Hold(Mode::Read))
    }
}

fn one(ctx: Ctx<'_>, args: &[Text<'_>], want: Want) -> Reply {
    reply(|| {
        let mut args = Args::new(args, 3, usize::MAX)?;
        let key = args.key()?;
        let (token, ttl_ms) = (args.token()?, args.ttl_ms()?);
        let options = args.options(want != Want::Upgrade)?;
        acquire(ctx, key, &[key[0].bytes()], token, ttl_ms, want, options)
    })
}

fn many(ctx: Ctx<'_>, args: &[Text<'_>], want: Want) -> Reply {
    reply(|| {
        let mut args = Args::new(args, 4, usize::MAX)?;
        let keys = args.keys(2)?;
        let (token, ttl_ms) = (args.token()?, args.ttl_ms()?);
        let options = args.options(true)?;
        acquire(ctx, keys, &names(keys), token, ttl_ms, want, options)
    })
}

fn acquire(
    ctx: Ctx<'_>,
    keys: &[Text<'_>],
    names: &[&[u8]],
    token: &[u8],
    ttl_ms: u64,
    want: Want,
    options: Options<'_>,
) -> Result<Reply, Reply> {
    on_primary()?;
    if options.is_ephemeral && ctx.is_in_script() {
        return error("ERR EPHEMERAL is not possible in a script, which has no connection of its own");
    }
    let db = ctx.db();
    let connection = options.is_ephemeral.then(|| ctx.client_id()).filter(|id| *id != 0);
    // Where nothing may block, `WAIT` is as good as absent, as it is for `BLPOP`.
    let waits = options.patience != Patience::None && ctx.may_block();
    let patience = if waits { options.patience } else { Patience::None };
    let ask = Ask { db, names, token, want, ttl_ms, meta: options.meta, patience, connection };
    let space = Keyspace::of_command(ctx, keys, db);
    match office::acquire(ctx, space, &ask) {
        Ok(Outcome::Granted(fence)) => Ok(Reply::Int(fence.cast_signed())),
        Ok(Outcome::Refused) => Ok(Reply::Int(0)),
        Ok(Outcome::Parked(_)) => Ok(Reply::Sent),
        Err(refusal) => Err(refused(refusal)),
    }
}
