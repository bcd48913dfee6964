//! SLOCK: a read-write lock as a native data type for Redis and Valkey.
//!
//! The rules of the lock live in the crate `slock-core`, which knows no server. This crate is the
//! rim around it:
//!
//! | module | owns |
//! |---|---|
//! | `commands` | one file a family of commands: parse, ask the core, answer |
//! | `args` | reading arguments, and the errors that name them |
//! | `keyspace` | where the core finds its locks: open, change, replicate, announce |
//! | `wire` | `SLOCK.APPLY`: how a change is written in the log and spoken to replicas |
//! | `office` | the desk, the clients that wait, and the timer that serves them |
//! | `alarm` | when that timer is to run |
//! | `permission` | whether that timer may write now |
//! | `marks` | notes of what happened outside of our commands |
//! | `ephemerals` | which hold ends with which connection |
//! | `settings`, `metrics` | `CONFIG` and `INFO` |
//! | `server` | the module API, and all `unsafe` code |
//!
//! A request travels one way: `commands` parses it, the core's desk decides, `keyspace` applies the
//! effect to the stored lock, replicates and announces it, the desk serves whoever waited for that,
//! and the command answers.

mod alarm;
mod args;
mod commands;
mod ephemerals;
mod keyspace;
mod marks;
mod metrics;
mod office;
mod permission;
mod server;
mod settings;
mod wire;

use redis_module::{Context, RedisString, Status};

/// Under test there is no server, and so no server's allocator.
#[cfg(not(test))]
use redis_module::alloc::RedisAlloc as Allocator;
#[cfg(test)]
use std::alloc::System as Allocator;

fn init(context: &Context, args: &[RedisString]) -> Status {
    let arguments: Vec<&[u8]> = args.iter().map(RedisString::as_slice).collect();
    match server::with_load_ctx(context, |ctx| load(ctx, &arguments)) {
        Ok(()) => Status::Ok,
        Err(reason) => {
            server::log_warning(&format!("not loaded: {reason}"));
            Status::Err
        }
    }
}

fn load(ctx: server::Ctx<'_>, arguments: &[&[u8]]) -> Result<(), String> {
    let missing = server::missing_required();
    if !missing.is_empty() {
        return Err(format!("this server lacks {}; SLOCK needs Redis 7.0 or Valkey 7.2", missing.join(", ")));
    }
    server::start(ctx);
    let accepted =
        |done: bool, what: &str| if done { Ok(()) } else { Err(format!("the server refused {what}")) };
    accepted(server::register_datatype(ctx, &office::DATATYPE_HOOKS), "the data type")?;
    commands::register(ctx).map_err(|name| format!("the server refused the command {name}"))?;
    settings::register(ctx, arguments)?;
    accepted(server::register_info(ctx, metrics::write), "the INFO section")?;
    accepted(server::subscribe(ctx, &office::EVENT_HOOKS), "the event subscriptions")?;
    announce(ctx);
    office::open(ctx);
    Ok(())
}

/// One line for every start.
fn announce(ctx: server::Ctx<'_>) {
    let lacking = server::lacking();
    let without = if lacking.is_empty() {
        String::new()
    } else {
        format!("; this server lacks {}", lacking.join(", "))
    };
    ctx.log_notice(&format!("SLOCK {} is ready{without}", env!("CARGO_PKG_VERSION")));
}

/// What the server calls: the crate's macro, in a module of its own because it documents nothing.
#[allow(missing_docs)]
mod entry {
    use super::{Allocator, init};
    use redis_module::redis_module;

    redis_module! {
        name: "slock",
        version: 1,
        allocator: (Allocator, Allocator),
        data_types: [],
        init: init,
        commands: [],
    }
}
