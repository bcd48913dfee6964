// SPDX-License-Identifier: MIT OR Apache-2.0

//! SLOCK: a read-write lock as a native data type for Redis and Valkey.
//!
//! The rules of the lock live in the crate `slock-core`, which knows no server. This crate is the
//! module around it:
//!
//! | module | owns |
//! |---|---|
//! | `commands` | one file a family of commands: parse, ask the core, answer |
//! | `runtime` | operations for commands, the timer that grants, what the server tells us; and what they work with |
//! | `state` | what a callback may read at any time: settings, what is counted, the server's role |
//! | `keyspace` | where the core finds its locks: open, change, replicate, announce |
//! | `replication` | what replicas and the log see |
//! | `errors` | how a refusal is worded |
//! | `settings`, `report` | `CONFIG` and `INFO` |
//! | `shared` | numbers and flags for any callback |
//! | `server` | the module API, and all `unsafe` code but the entry point, which is here |
//!
//! A request travels one way: `commands` parses it, the core's manager decides, `keyspace` applies the
//! effect to the stored lock, replicates and announces it, and the command answers. Those who waited for that are
//! served by `runtime::end_of_turn` at the end of the turn.

#![deny(unsafe_code)]

mod commands;
mod errors;
mod keyspace;
mod replication;
mod report;
mod runtime;
mod server;
mod settings;
mod shared;
mod state;

#[global_allocator]
static ALLOCATOR: redis_module::alloc::RedisAlloc = redis_module::alloc::RedisAlloc;

fn load(ctx: server::Ctx<'_>, arguments: &[&[u8]]) -> Result<(), String> {
    let missing: Vec<&str> = server::missing_required().collect();
    if !missing.is_empty() {
        return Err(format!("this server lacks {}; SLOCK needs Redis 7.0 or Valkey 7.2", missing.join(", ")));
    }
    server::start(ctx, &runtime::ServerEvents);
    let accepted =
        |done: bool, what: &str| if done { Ok(()) } else { Err(format!("the server refused {what}")) };
    accepted(server::register_datatype(ctx), "the data type")?;
    server::register_commands(ctx, commands::COMMANDS, c"slock")
        .map_err(|name| format!("the server refused the command {name}"))?;
    settings::register(ctx, arguments)?;
    accepted(server::register_info(ctx), "the INFO section")?;
    accepted(server::subscribe(ctx), "the event subscriptions")?;
    let without: String = server::lacking().map(|what| format!("; this server lacks {what}")).collect();
    server::log_notice(&format!("SLOCK {} is ready{without}", env!("CARGO_PKG_VERSION")));
    runtime::start(ctx);
    Ok(())
}

/// What the server calls first. (The crate's macro would run a command of the server's that operators see.)
#[allow(unsafe_code)]
mod entry {
    use redis_module::raw::{RedisModuleCtx, RedisModuleString};

    /// Loads the module.
    ///
    /// # Safety
    /// Called by the server, with a live context and `argc` live strings.
    #[allow(non_snake_case)]
    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn RedisModule_OnLoad(
        ctx: *mut RedisModuleCtx,
        argv: *mut *mut RedisModuleString,
        argc: i32,
    ) -> i32 {
        // SAFETY: the server's promise.
        unsafe { super::server::on_load(ctx, argv, argc, super::load) }
    }
}
