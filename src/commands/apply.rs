// SPDX-License-Identifier: MIT OR Apache-2.0

//! `APPLY`: what replicas and the log run. Not for applications. The form is described in
//! `slock_core::wire`.
//!
//! Nothing is decided here, no clock is read to change a lock, nobody is blocked, and to apply a command twice is to
//! apply it once.

use slock_core::wire::{self, Message};
use slock_core::{Effect, LockError, LockIdRef};

use super::args::Args;
use crate::errors::error_reply;
use crate::keyspace;
use crate::replication::{deadline_is_plausible, fence_is_plausible};
use crate::runtime::{self, notice};
use crate::server::{Ctx, LockKey, Reply, Str};
use crate::state::STATE;

pub fn apply(ctx: Ctx<'_>, args: &[Str<'_>]) -> Result<Reply, Reply> {
    let mut args = Args::new(args);
    let key = args.key()?[0];
    let mut bytes = || args.next().map_or(&[][..], Str::bytes);
    let (change, meta) = (bytes(), bytes());
    if args.next().is_some() {
        return Err(Reply::WrongArity);
    }
    run(ctx, key, change, meta)?;
    Ok(Reply::Int(1))
}

/// Applies `change [meta]` to a key.
///
/// # Errors
/// An error reply: not from here, not understood, not plausible, or a key of another type.
fn run(ctx: Ctx<'_>, key: Str<'_>, change: &[u8], meta: &[u8]) -> Result<(), Reply> {
    let error = |text: &str| Err(Reply::Error(text.into()));
    // What this server's log or its primary says is not doubted.
    let is_trusted = ctx.is_replicated() || ctx.is_loading();
    if !is_trusted && STATE.settings.allow_apply.get() == 0 {
        return error("ERR SLOCK.APPLY is for replicas and the log; see slock.allow-apply");
    }
    let Some(message) = wire::read(change, meta) else {
        return error("ERR not a change that this version knows");
    };
    if !is_trusted && !message.fence().is_none_or(fence_is_plausible) {
        return error("ERR the fence lies more than an hour beyond what this server could give");
    }
    if !is_trusted && !message.deadline_ms().is_none_or(deadline_is_plausible) {
        return error("ERR the deadline lies more than an hour beyond what this server could give");
    }
    if let Message::Effect(effect) = &message {
        change_lock(ctx, key, effect)?;
    }
    if let Some(fence) = message.fence() {
        notice(move |runtime| runtime.manager.fences.see(fence));
    }
    ctx.replicate_verbatim();
    Ok(())
}

fn change_lock(ctx: Ctx<'_>, key: Str<'_>, effect: &Effect<'_>) -> Result<(), Reply> {
    let mut open = LockKey::open(ctx, key);
    let changed = keyspace::change(&mut open, effect).ok_or_else(|| error_reply(&LockError::WrongType))?;
    drop(open);
    ctx.signal_modified(key);
    if changed.is_gone {
        ctx.announce_gone(key);
    }
    // An operator who feeds a log to a primary changes locks that clients wait for. And if a module runs this in a
    // notification, an operation of ours may have the lock open.
    runtime::key_changed(LockIdRef { db: ctx.db(), name: key.bytes() });
    Ok(())
}
