//! A module that subscribes to `expired` events and runs `SLOCK.LOCK` in the middle of each, which is
//! whatever made the key expire: a command of a user's, or one of SLOCK's own that has opened it. What it was
//! answered is in the list `answers`.

use redis_module::{Context, NotifyEvent, redis_module};

fn on_expired(context: &Context, _: NotifyEvent, _: &str, _: &[u8]) {
    let answer = match context.call("SLOCK.LOCK", &["taken-by-subscriber", "subscriber", "60000"]) {
        Ok(_) => "granted".into(),
        Err(error) => error.to_string(),
    };
    drop(context.call("RPUSH", &["answers", answer.as_str()]));
}

redis_module! {
    name: "subscriber",
    version: 1,
    allocator: (redis_module::alloc::RedisAlloc, redis_module::alloc::RedisAlloc),
    data_types: [],
    commands: [],
    event_handlers: [[@EXPIRED: on_expired]],
}
