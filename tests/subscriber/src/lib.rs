//! A module for tests that subscribes to `expired` events. On each it runs the command line that the key
//! `order` holds, in which `_` is a space within a word, and adds what it was answered to the list `answers`. A key expires when somebody opens it, so
//! the command runs in the middle of whatever command that was. When the key `k` appears, it runs the command line that
//! the key `order:k` holds.
//!
//! It has a command that does nothing, too: what a module's command costs at least.

use redis_module::{Context, NotifyEvent, RedisResult, RedisString, RedisValue, redis_module};

fn on_expired(context: &Context, _: NotifyEvent, _: &str, _: &[u8]) {
    run(context, "order");
}

fn on_new(context: &Context, _: NotifyEvent, _: &str, key: &[u8]) {
    run(context, &format!("order:{}", String::from_utf8_lossy(key)));
}

fn run(context: &Context, order: &str) {
    let Ok(RedisValue::SimpleString(order)) = context.call("GET", &[order]) else { return };
    let words: Vec<String> = order.split(' ').map(|word| word.replace('_', " ")).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let answer = match context.call(words[0], &words[1..]) {
        Ok(_) => "done".into(),
        Err(error) => error.to_string(),
    };
    drop(context.call("RPUSH", &["answers", answer.as_str()]));
}

fn nothing(_: &Context, _: Vec<RedisString>) -> RedisResult {
    Ok(RedisValue::Integer(1))
}

redis_module! {
    name: "subscriber",
    version: 1,
    allocator: (redis_module::alloc::RedisAlloc, redis_module::alloc::RedisAlloc),
    data_types: [],
    commands: [["subscriber.nothing", nothing, "", 0, 0, 0, ""]],
    event_handlers: [[@EXPIRED: on_expired], [@NEW: on_new]],
}
