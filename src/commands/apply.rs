//! `APPLY`: what replicas and the log see. Not for applications.
//!
//! ```text
//! SLOCK.APPLY key at-ms HOLD read|write token fence since-ms deadline-ms meta
//! SLOCK.APPLY key at-ms EXTEND token deadline-ms
//! SLOCK.APPLY key at-ms RELEASE token
//! SLOCK.APPLY key at-ms FENCE fence
//! ```
//!
//! First every holder with a deadline up to `at-ms` is dropped (none, if it is 0), then the change is
//! made; see [`Effect`]. `FENCE` only says which fence was given last. Nothing is decided, no clock is
//! read, nobody is blocked, and to apply a command twice is to apply it once.
//!
//! The form is written in logs and spoken between servers of different versions: new kinds of change
//! may be added, but these stay as they are.

use slock_core::{Change, Effect, PlaceRef, Refusal};

use super::{KEY, arg, refused, reply};
use crate::args::{Args, syntax_error};
use crate::keyspace;
use crate::office;
use crate::server::{ArgKind, Command, Ctx, Keys, LockKey, Opened, Reply, Spec, Text};

pub struct Apply;

impl Command for Apply {
    const SPEC: Spec = Spec {
        name: c"slock.apply",
        flags: c"write admin",
        arity: -5,
        summary: c"Internal: applies a change that the primary decided. Not for applications.",
        complexity: c"O(log(N)), N being the number of readers",
        keys: Keys::OneWritten,
        args: &[
            KEY,
            arg(c"at-ms", ArgKind::Integer),
            arg(c"change", ArgKind::String),
            arg(c"argument", ArgKind::String),
        ],
    };

    fn run(ctx: Ctx<'_>, args: &[Text<'_>]) -> Reply {
        reply(|| {
            let mut args = Args::new(args, 4, 9)?;
            let key = args.key()?[0];
            let at_ms = args.instant_ms()?;
            let (change, fence) = match args.word()? {
                b"HOLD" => {
                    let (mode, token, fence) = (args.mode()?, args.token()?, args.stored_fence()?);
                    let (since_ms, deadline_ms) = (args.instant_ms()?, args.instant_ms()?);
                    let meta = args.stored_meta()?;
                    (Some(Change::Hold { mode, token, fence, since_ms, deadline_ms, meta }), Some(fence))
                }
                b"EXTEND" => {
                    (Some(Change::Extend { token: args.token()?, deadline_ms: args.instant_ms()? }), None)
                }
                b"RELEASE" => (Some(Change::Release { token: args.token()? }), None),
                b"FENCE" => (None, Some(args.stored_fence()?)),
                _ => return syntax_error(),
            };
            args.end()?;
            apply(ctx, key, change.map(|change| Effect { at_ms, change }), fence)
        })
    }
}

fn apply(
    ctx: Ctx<'_>,
    key: Text<'_>,
    effect: Option<Effect<'_>>,
    fence: Option<u64>,
) -> Result<Reply, Reply> {
    if let Some(effect) = effect {
        let place = PlaceRef { db: ctx.db(), name: key.bytes() };
        let mut open = LockKey::open(ctx, key);
        if let Opened::OtherType = open.get() {
            return Err(refused(Refusal::WrongType));
        }
        keyspace::change(&mut open, place, &effect);
        drop(open);
        ctx.signal_modified(key);
        // An operator who feeds a log to a primary changes locks under the eyes of those who wait.
        office::serve(|desk| desk.mark(place));
    }
    if let Some(fence) = fence {
        office::serve(|desk| desk.fences.see(fence));
    }
    ctx.replicate_verbatim();
    Ok(Reply::Int(1))
}
