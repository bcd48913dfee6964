//! `APPLY`: what replicas and the log see. Not for applications. The form is described in `wire`.
//!
//! Nothing is decided here, no clock is read, nobody is blocked, and to apply a command twice is to
//! apply it once.

use slock_core::{Effect, PlaceRef, Refusal};

use super::{KEY, arg, refused, reply};
use crate::args::{Args, error};
use crate::keyspace;
use crate::office;
use crate::server::{Arg, ArgKind, Command, Ctx, Keys, LockKey, Opened, Reply, Spec, Text};
use crate::wire::{self, Message};

pub struct Apply;

impl Command for Apply {
    const SPEC: Spec = Spec {
        name: c"slock.apply",
        flags: c"write admin",
        arity: -3,
        summary: c"Internal: applies a change that the primary decided. Not for applications.",
        complexity: c"O(log(N)), N being the number of readers",
        keys: Keys::OneWritten,
        args: &[
            KEY,
            arg(c"change", ArgKind::String),
            Arg { name: c"meta", kind: ArgKind::String, word: None, optional: true },
        ],
    };

    fn run(ctx: Ctx<'_>, args: &[Text<'_>]) -> Reply {
        reply(|| {
            let mut args = Args::new(args, 2, 3)?;
            let key = args.key()?[0];
            let mut bytes = || args.next().map_or(&[][..], Text::bytes);
            match wire::read(bytes(), bytes()) {
                None => return error("ERR not a change that this version knows"),
                Some(message) if message.fence().is_some_and(|fence| !office::fence_is_plausible(fence)) => {
                    return error("ERR the fence lies years ahead");
                }
                Some(message)
                    if message.deadline_ms().is_some_and(|at_ms| !office::deadline_is_plausible(at_ms)) =>
                {
                    return error("ERR the deadline lies years ahead");
                }
                Some(Message::Fence(fence)) => office::see_fence(fence),
                Some(Message::Effect(effect)) => apply(ctx, key, &effect)?,
            }
            ctx.replicate_verbatim();
            Ok(Reply::Int(1))
        })
    }
}

fn apply(ctx: Ctx<'_>, key: Text<'_>, effect: &Effect<'_>) -> Result<(), Reply> {
    let place = PlaceRef { db: ctx.db(), name: key.bytes() };
    let mut open = LockKey::open(ctx, key);
    if let Opened::OtherType = open.get() {
        return Err(refused(Refusal::WrongType));
    }
    let changed = keyspace::change(&mut open, place, effect);
    drop(open);
    ctx.signal_modified(key);
    if changed.is_gone {
        ctx.announce_gone(key);
    }
    if let Some(fence) = effect.fence() {
        office::see_fence(fence);
    }
    // An operator who feeds a log to a primary changes locks under the eyes of those who wait.
    office::key_changed(place);
    Ok(())
}
