// SPDX-License-Identifier: MIT OR Apache-2.0

//! The thin layer that speaks to the server, and the only place with `unsafe` code beside the entry point in `lib.rs`.
//!
//! It wraps the module API in types that cannot outlive what the server lends: a [`Ctx`] lives for a
//! callback, a [`LockKey`] for a look at the keyspace, a [`Str`] for a command. It makes no
//! decision about locks. Nothing below unwinds into the server: every callback that runs more than a
//! line goes through `guard`.

#![allow(unsafe_code)]

mod acl;
mod announce;
mod api;
mod background_drop;
mod blocked;
mod call_reply;
mod cluster;
mod command;
mod compat;
mod config;
mod ctx;
mod datatype;
mod events;
mod guard;
mod info;
mod key;
mod load;
mod log;
mod module_ctx;
mod publish;
mod reply;
mod status;
mod string;
mod time;
mod told;

pub use acl::{User, Viewer};
use api::api;
pub use background_drop::drop_in_background;
pub use blocked::{Handle, block};
pub use cluster::same_slot;
pub use command::{Arg, ArgKind, COMMANDS_MAX, Command, register as register_commands};
pub use compat::{lacking, missing_required};
pub use config::{Setting, SettingKind, load_configs, register_setting};
pub use ctx::{Ctx, OwnCtx};
pub use datatype::{boxed, register as register_datatype, stored_locks};
pub use events::{subscribe, subscribe_to_evictions};
pub use info::register_info;
pub use key::{LockKey, Opened};
pub use load::on_load;
pub use log::{log_notice, log_warning, loggable};
pub use module_ctx::own_ctx;
pub use reply::{Reply, Section};
pub use string::{LastString, OwnedString, Str, Strings};
pub use time::{TimerId, monotonic_ms, now, start_timer, stop_timer, wake_event_loop};
pub use told::{HandleKey, Told};

/// Prepares this layer: called once, at load, before anything else of it but `missing_required`.
pub fn start(ctx: Ctx<'_>, told: &'static dyn Told) {
    told::set_told(told);
    module_ctx::keep_module_ctx(ctx);
    api!(RedisModule_SetModuleOptions(ctx.pointer(), compat::module_options()));
}
