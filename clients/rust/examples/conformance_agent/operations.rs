//! What each operation calls.

use std::time::Duration;

use redis::aio::ConnectionLike;
use serde_json::{Value, json};
use slock_client::{Error, Locks, Quorum};

use crate::fields::Fields;
use crate::place::{Kind, Place};
use crate::state::{Events, Failed, Opened, State, granted};
use crate::{speed, work};

pub async fn run(state: &State, operation: &Value) -> Result<Value, Failed> {
    let opened = || state.opened(&operation.text("locks").unwrap_or_default());
    let request = || opened().map(|opened| operation.request(&opened.locks));
    let hold = operation.text("hold").unwrap_or_default();
    Ok(match operation["op"].as_str().unwrap_or_default() {
        "open" => open(state, operation, false).await?,
        "open_quorum" => open(state, operation, true).await?,
        "acquire" => state.keep(hold, request()?.acquire().await?),
        "try_acquire" => match request()?.try_acquire().await? {
            Some(granted) => state.keep(hold, granted),
            None => json!({ "refused": true }),
        },
        "adopt" => state.keep(hold, request()?.adopt().await?),
        "block" => {
            let work = operation.duration("work_ms").unwrap_or_default();
            request()?.run(|_| tokio::time::sleep(work)).await?;
            json!({})
        }
        "detach" => {
            state.hold(&hold)?.detach()?;
            json!({})
        }
        "release" => {
            state.hold(&hold)?.release().await?;
            json!({})
        }
        "extend" => {
            let view = state.hold(&hold)?;
            view.extend(operation.duration("ttl_ms").unwrap_or(Duration::from_secs(10))).await?;
            granted(&view)
        }
        "upgrade" => {
            let view = state.hold(&hold)?;
            let fence = view.upgrade(operation.duration("wait_ms")).await?;
            json!({ "fence": fence, "mode": view.mode().to_string() })
        }
        "downgrade" => {
            let view = state.hold(&hold)?;
            json!({ "fence": view.downgrade().await?, "mode": view.mode().to_string() })
        }
        "check" => {
            state.hold(&hold)?.check()?;
            json!({})
        }
        "state" => {
            let view = state.hold(&hold)?;
            let mut known = granted(&view);
            known["mode"] = json!(view.mode().to_string());
            known["keys"] = json!(view.keys());
            known["metadata"] = json!(view.metadata());
            known["lost"] = json!(view.is_lost());
            known["reason"] = view.check().err().map_or(Value::Null, |error| reason(&error));
            known
        }
        "await_lost" => json!({ "reason": reason(&state.hold(&hold)?.lost().await) }),
        "info" => info(&opened()?.locks, &operation.text("key").unwrap_or_default()).await?,
        "queues" => {
            let queues = opened()?.locks.queues().await?;
            json!({ "names": queues.into_iter().map(|queue| queue.key).collect::<Vec<_>>() })
        }
        "release_token" => {
            let token = operation.text("token").unwrap_or_default();
            json!({ "released": opened()?.locks.release(operation.texts("keys"), token).await? })
        }
        "events" => json!({ "events": opened()?.events.take() }),
        "close" if operation["release"] == true => {
            opened()?.locks.close_and_release().await?;
            json!({})
        }
        "close" => {
            opened()?.locks.close().await;
            json!({})
        }
        "fill_pool" => work::fill_pool(&opened()?, operation).await?,
        "raw" => json!({ "reply": raw(&opened()?.place, &operation.texts("command")).await }),
        "work" => work::count(&opened()?, operation).await?,
        "wait_many" => work::wait_many(&opened()?, operation).await?,
        "cost" => speed::cost(&opened()?, operation).await?,
        "pairs" => speed::pairs(&opened()?, operation).await?,
        "handoffs" => speed::handoffs(&opened()?, operation).await?,
        other => return Err(Failed::other(format!("unknown operation {other}"))),
    })
}

fn reason(error: &Error) -> Value {
    if let Error::Lost { reason, .. } = error { json!(reason.to_string()) } else { Value::Null }
}

async fn open(state: &State, operation: &Value, is_quorum: bool) -> Result<Value, Failed> {
    let (mut place, events) = (Place::of(operation, |name| state.memory(name)), Events::default());
    let mut builder = if is_quorum {
        let mut quorum = Quorum::new(place.servers()?);
        if let Some(timeout) = operation.duration("node_timeout_ms") {
            quorum = quorum.node_timeout(timeout);
        }
        if let Some(factor) = operation["drift_factor"].as_f64() {
            quorum = quorum.drift_factor(factor);
        }
        if let Some(poll) = operation.poll() {
            quorum = quorum.poll(poll);
        }
        Locks::builder(quorum.fail_fast(operation["fail_fast"] == true))
    } else {
        Locks::builder(place.server().await?)
    };
    if let Some(prefix) = operation.text("prefix") {
        builder = builder.prefix(prefix);
    }
    if let Some(retry_for) = operation.duration("retry_for_ms") {
        builder = builder.retry_for(retry_for);
    }
    if let Some(retry_wait_for) = operation.duration("retry_wait_for_ms") {
        builder = builder.retry_wait_for(retry_wait_for);
    }
    let locks = builder.hooks(events.clone()).build();
    state.open(operation.text("locks").unwrap_or_default(), Opened { locks, events, place });
    Ok(json!({}))
}

async fn info(locks: &Locks, key: &str) -> Result<Value, Failed> {
    let Some(info) = locks.info(key).await? else {
        let nobody: [String; 0] = [];
        return Ok(json!({
            "key": key, "mode": "free", "readers": 0, "waiters": 0, "holders": 0, "queue": 0, "tokens": nobody,
        }));
    };
    Ok(json!({
        "key": key,
        "mode": info.mode.map_or("free".into(), |mode| mode.to_string()),
        "readers": info.readers,
        "waiters": info.waiters,
        "holders": info.holders.len(),
        "queue": info.queue.len(),
        "tokens": info.holders.into_iter().map(|holder| holder.token).collect::<Vec<_>>(),
    }))
}

/// Sends a command, and gives what the server did; an error is its text.
async fn raw(place: &Place, words: &[String]) -> Value {
    let mut command = redis::Cmd::new();
    command.arg(words);
    let reply = if let Kind::Memory(server) = &place.kind {
        server.command(&words.iter().map(String::as_str).collect::<Vec<_>>())
    } else {
        match place.connect().await {
            Ok(mut connection) => connection.req_packed_command(&command).await,
            Err(error) => Err(error),
        }
    };
    reply.and_then(redis::Value::extract_error).map_or_else(
        |error| {
            let code = error.code().unwrap_or_default();
            json!(format!("{code} {}", error.detail().unwrap_or_default()))
        },
        json_of,
    )
}

fn json_of(value: redis::Value) -> Value {
    match value {
        redis::Value::Nil => Value::Null,
        redis::Value::Int(number) => json!(number),
        redis::Value::Okay => json!("OK"),
        redis::Value::BulkString(bytes) => json!(String::from_utf8_lossy(&bytes)),
        redis::Value::SimpleString(text) => json!(text),
        redis::Value::Array(values) => values.into_iter().map(json_of).collect(),
        redis::Value::Map(pairs) => {
            let name = |name| json_of(name).as_str().unwrap_or_default().to_owned();
            Value::Object(pairs.into_iter().map(|(key, value)| (name(key), json_of(value))).collect())
        }
        other => json!(format!("{other:?}")),
    }
}
