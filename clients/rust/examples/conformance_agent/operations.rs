//! What each operation calls.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use slock_client::Error;

use crate::fields::Fields;
use crate::holds::{AnyHold, AnyView};
use crate::requests::request;
use crate::state::{Failed, Maker, Opened, State};
use crate::{cost, open, throughput, work};

pub async fn run(state: Arc<State>, operation: Value) -> Result<Value, Failed> {
    let name = operation.text("op").unwrap_or_default();
    match name.as_str() {
        "open" => open::locks(&state, &operation),
        "open_quorum" => open::quorum(&state, &operation),
        "acquire" => {
            let hold: AnyHold = match opened(&state, &operation)?.maker {
                Maker::Locks(locks) => request(&locks, &operation).acquire().await?.into(),
                Maker::Quorum(quorum) => request(&quorum, &operation).acquire().await?.into(),
            };
            Ok(keep(&state, &operation, hold))
        }
        "try_acquire" => {
            let hold = match opened(&state, &operation)?.maker {
                Maker::Locks(locks) => request(&locks, &operation).try_acquire().await?.map(AnyHold::from),
                Maker::Quorum(quorum) => request(&quorum, &operation).try_acquire().await?.map(AnyHold::from),
            };
            Ok(match hold {
                Some(hold) => keep(&state, &operation, hold),
                None => json!({ "refused": true }),
            })
        }
        "adopt" => {
            let hold: AnyHold = match opened(&state, &operation)?.maker {
                Maker::Locks(locks) => request(&locks, &operation).adopt().await?.into(),
                Maker::Quorum(quorum) => request(&quorum, &operation).adopt().await?.into(),
            };
            Ok(keep(&state, &operation, hold))
        }
        "block" => {
            let sleep = tokio::time::sleep(operation.duration("work_ms").unwrap_or_default());
            match opened(&state, &operation)?.maker {
                Maker::Locks(locks) => request(&locks, &operation).run(|_| sleep).await?,
                Maker::Quorum(quorum) => request(&quorum, &operation).run(|_| sleep).await?,
            }
            Ok(json!({}))
        }
        "hand_over" => {
            let hold = state.take(&hold_name(&operation)).ok_or(Error::NotHeld)?;
            hold.hand_over()?;
            Ok(json!({}))
        }
        "info" => {
            let locks = opened(&state, &operation)?.locks()?;
            Ok(match locks.info(&operation.text("key").unwrap_or_default()).await? {
                Some(info) => json!({
                    "mode": info.mode.map_or("free".into(), |mode| mode.to_string()),
                    "readers": info.readers,
                    "waiters": info.waiters,
                    "holders": info.holders.len(),
                    "queue": info.queue.len(),
                }),
                None => json!({ "mode": "free", "readers": 0, "waiters": 0, "holders": 0, "queue": 0 }),
            })
        }
        "queues" => {
            let queues = opened(&state, &operation)?.locks()?.queues().await?;
            Ok(json!({ "names": queues.into_iter().map(|queue| queue.key).collect::<Vec<_>>() }))
        }
        "release" => {
            let released = match state.take(&hold_name(&operation)) {
                Some(hold) => hold.release().await?,
                None => false,
            };
            Ok(json!({ "released": released }))
        }
        "release_token" => {
            let keys = operation.texts("keys");
            let token = operation.text("token").unwrap_or_default();
            let released = match opened(&state, &operation)?.maker {
                Maker::Locks(locks) => locks.release(keys, token).await?,
                Maker::Quorum(quorum) => quorum.release(keys, token).await?,
            };
            Ok(json!({ "released": released }))
        }
        "extend" => {
            let hold = view(&state, &operation)?;
            hold.extend(operation.duration("ttl_ms").unwrap_or(Duration::from_secs(10))).await?;
            Ok(json!({ "valid_ms": hold.valid_ms() }))
        }
        "upgrade" => {
            let hold = view(&state, &operation)?.one()?;
            let fence = hold.upgrade(operation.duration("wait_ms")).await?;
            Ok(json!({ "fence": fence, "mode": hold.mode().to_string() }))
        }
        "downgrade" => {
            let hold = view(&state, &operation)?.one()?;
            let fence = hold.downgrade().await?;
            Ok(json!({ "fence": fence, "mode": hold.mode().to_string() }))
        }
        "check" => {
            view(&state, &operation)?.check()?;
            Ok(json!({}))
        }
        "state" => Ok(view(&state, &operation)?.state()),
        "await_lost" => {
            let reason = view(&state, &operation)?.lost().await;
            Ok(json!({ "reason": reason.to_string() }))
        }
        "work" => work::count(&state, &operation).await,
        "wait_many" => work::wait_many(&state, &operation).await,
        "cost" => cost::measure(&state, &operation).await,
        "pairs" => throughput::pairs(&state, &operation).await,
        "handoffs" => throughput::handoffs(&state, &operation).await,
        "tasks" => {
            // The task of an operation that was just answered needs a moment to end.
            tokio::time::sleep(Duration::from_millis(20)).await;
            let count = tokio::runtime::Handle::current().metrics().num_alive_tasks();
            Ok(json!({ "count": count }))
        }
        "events" => {
            let events = opened(&state, &operation)?.events.take();
            Ok(json!({ "events": events }))
        }
        "close" => {
            match opened(&state, &operation)?.maker {
                Maker::Locks(locks) => locks.close().await,
                Maker::Quorum(quorum) => quorum.close().await,
            }
            Ok(json!({}))
        }
        other => Err(Failed::other(format!("no operation is called {other}"))),
    }
}

pub fn opened(state: &State, operation: &Value) -> Result<Opened, Failed> {
    state.opened(&operation.text("locks").unwrap_or_default())
}

fn hold_name(operation: &Value) -> String {
    operation.text("hold").unwrap_or_default()
}

fn view(state: &State, operation: &Value) -> Result<AnyView, Failed> {
    state.view(&hold_name(operation))
}

fn keep(state: &State, operation: &Value, hold: AnyHold) -> Value {
    let answer = hold.view().granted();
    state.keep(hold_name(operation), hold);
    answer
}
