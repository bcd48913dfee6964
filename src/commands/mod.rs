//! The commands, one file a family.
//!
//! | file | commands |
//! |---|---|
//! | `acquire` | `LOCK`, `RLOCK`, `UPGRADE`, `MLOCK`, `MRLOCK`: whatever may have to wait |
//! | `hold` | `UNLOCK`, `RUNLOCK`, `EXTEND`, `DOWNGRADE`, `MUNLOCK`, `MEXTEND`: what a holder does |
//! | `inspect` | `PTTL`, `MPTTL`, `CHECK`, `INFO`: what only looks |
//! | `apply` | `APPLY`: what replicas and the log see |

mod acquire;
mod apply;
mod hold;
mod inspect;

use slock_core::Refusal;

use crate::office;
use crate::server::{self, Arg, ArgKind, Command, Ctx, Reply, Text};

/// The ACL category of all commands, on servers that have such a thing.
const CATEGORY: &std::ffi::CStr = c"slock";

/// Registers every command, or says which one the server refused.
pub fn register(ctx: Ctx<'_>) -> Result<(), String> {
    fn one<C: Command>(ctx: Ctx<'_>) -> Result<(), String> {
        let registered = server::register_command::<C>(ctx, CATEGORY);
        if registered { Ok(()) } else { Err(C::SPEC.name.to_string_lossy().into_owned()) }
    }
    server::register_acl_category(ctx, CATEGORY);
    one::<acquire::Lock>(ctx)?;
    one::<acquire::Rlock>(ctx)?;
    one::<acquire::Upgrade>(ctx)?;
    one::<acquire::Mlock>(ctx)?;
    one::<acquire::Mrlock>(ctx)?;
    one::<hold::Unlock>(ctx)?;
    one::<hold::Runlock>(ctx)?;
    one::<hold::Extend>(ctx)?;
    one::<hold::Downgrade>(ctx)?;
    one::<hold::Munlock>(ctx)?;
    one::<hold::Mextend>(ctx)?;
    one::<inspect::Pttl>(ctx)?;
    one::<inspect::Mpttl>(ctx)?;
    one::<inspect::Check>(ctx)?;
    one::<inspect::Info>(ctx)?;
    one::<apply::Apply>(ctx)
}

/// Runs the body of a command in which an early error is the reply.
fn reply(body: impl FnOnce() -> Result<Reply, Reply>) -> Reply {
    body().unwrap_or_else(|early| early)
}

fn refused(refusal: Refusal) -> Reply {
    Reply::Error(refusal.to_string())
}

/// Decisions are the primary's, also where a replica takes writes from its own clients. And no log
/// decides: what it holds are effects.
fn on_primary() -> Result<(), Reply> {
    if office::only_follows() {
        return Err(Reply::Error("READONLY You can't write against a read only replica.".into()));
    }
    Ok(())
}

const COMPLEXITY: &std::ffi::CStr = c"O(log(N)), N being the number of readers and of waiting requests";
const COMPLEXITY_MANY: &std::ffi::CStr =
    c"O(K*log(N)), K being the number of keys, N that of readers and of waiting requests";
const COMPLEXITY_WAIT: &std::ffi::CStr =
    c"O(log(N)), N being the number of readers and of waiting requests; to wait O(M) more, \
      M being the keys of waiting requests that ask for several or share a token";
const COMPLEXITY_MANY_WAIT: &std::ffi::CStr =
    c"O(K*log(N)), K being the number of keys, N that of readers and of waiting requests; to wait O(M) more, \
      M being the keys of waiting requests that ask for several or share a token";

fn names<'a>(keys: &[Text<'a>]) -> Vec<&'a [u8]> {
    keys.iter().map(|key| key.bytes()).collect()
}

const fn arg(name: &'static std::ffi::CStr, kind: ArgKind) -> Arg {
    Arg { name, kind, word: None, optional: false }
}

const fn option(word: &'static std::ffi::CStr, name: &'static std::ffi::CStr, kind: ArgKind) -> Arg {
    Arg { name, kind, word: Some(word), optional: true }
}

const KEY: Arg = arg(c"key", ArgKind::Key);
const NUMKEYS: Arg = arg(c"numkeys", ArgKind::Integer);
const KEYS: Arg = arg(c"key", ArgKind::Keys);
const TOKEN: Arg = arg(c"token", ArgKind::String);
const TTL_MS: Arg = arg(c"ttl-ms", ArgKind::Integer);
const WAIT: Arg = option(c"WAIT", c"wait-ms", ArgKind::Integer);
const META: Arg = option(c"META", c"data", ArgKind::String);
const EPHEMERAL: Arg = option(c"EPHEMERAL", c"ephemeral", ArgKind::Word);
