//! The thin layer that speaks to the server, and the only place with `unsafe` code.
//!
//! It wraps the module API in types that cannot outlive what the server lends: a [`Ctx`] lives for a
//! callback, a [`LockKey`] for a look at the keyspace, a [`Text`] for a command. It makes no
//! decision about locks. Nothing below unwinds into the server: every callback that runs more than a
//! line goes through [`guard`].

mod abilities;
mod audience;
mod blocked;
mod clock;
mod config;
mod ctx;
mod datatype;
mod events;
mod key;
mod registry;
mod report;
mod text;
mod timer;

use std::panic::{AssertUnwindSafe, catch_unwind};

pub use abilities::{lacking, missing_required};
pub use blocked::{Callbacks as BlockedCallbacks, Handle, block};
pub use clock::now;
pub use config::{IntSetting, load_configs, register_int};
pub use ctx::{Ctx, Reply, log_warning, with_load_ctx};
pub use datatype::{
    Emit, Hooks as DatatypeHooks, count_freed, freed_ended_holders, register as register_datatype,
    stored_locks,
};
pub use events::{Hooks as EventHooks, subscribe, subscribe_to_keys, subscribe_to_sending};
pub use key::{LockKey, Opened};
pub use registry::{Arg, ArgKind, Command, Keys, Spec, register as register_command, register_acl_category};
pub use report::{Section, register_info};
pub use text::{OwnedText, Text};
pub use timer::{TimerId, start_timer, stop_timer, wake_event_loop};

/// Calls a function of the module API by its name. Whoever writes a call vouches for its pointers: they
/// are live objects of the server's, wrapped by the types of this layer, or buffers that outlast the call.
macro_rules! api {
    ($name:ident($($arg:expr),* $(,)?)) => {{
        // SAFETY: the server filled this entry at load (`missing_required` refuses to load otherwise).
        // For the arguments see above.
        unsafe { (redis_module::raw::$name.expect(stringify!($name)))($($arg),*) }
    }};
}
use api;

/// Prepares this layer: called once, at load, before anything else of it but `missing_required`.
pub fn start(ctx: Ctx<'_>) {
    timer::keep_module_ctx(ctx);
    api!(RedisModule_SetModuleOptions(ctx.pointer(), abilities::module_options()));
}

/// Runs a callback. A panic ends here, in the log, instead of taking the server down.
pub fn guard<R>(what: &str, callback: impl FnOnce() -> R) -> Option<R> {
    match catch_unwind(AssertUnwindSafe(callback)) {
        Ok(result) => Some(result),
        Err(panic) => {
            let reason = panic
                .downcast_ref::<&str>()
                .map(ToString::to_string)
                .or_else(|| panic.downcast_ref::<String>().cloned())
                .unwrap_or_default();
            log_warning(&format!("internal error in {what}, please report it: {reason}"));
            None
        }
    }
}
