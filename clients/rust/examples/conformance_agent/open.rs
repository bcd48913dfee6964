//! `open` and `open_quorum`.

use std::time::Duration;

use serde_json::{Value, json};
use slock_client::{Locks, Poll, Quorum, Waiting};

use crate::fields::Fields;
use crate::raw::Place;
use crate::state::{Events, Failed, Maker, Opened, State};

fn place(operation: &Value) -> Place {
    Place {
        kind: operation.text("kind").unwrap_or_default(),
        nodes: operation.texts("nodes"),
        service: operation.text("service").unwrap_or_default(),
        user: operation.text("user"),
        password: operation.text("password"),
    }
}

fn keep(state: &State, operation: &Value, maker: Maker, events: Events, place: Place) -> Value {
    let name = operation.text("locks").unwrap_or_default();
    state.open(name, Opened { maker, events, place });
    json!({})
}

pub fn locks(state: &State, operation: &Value) -> Result<Value, Failed> {
    let place = place(operation);
    let events = Events::default();
    let mut builder = Locks::builder(place.server()?).hooks(events.clone());
    match operation["waiting"].as_str() {
        Some("notify") => builder = builder.waiting(Waiting::Notify),
        Some("block") => builder = builder.waiting(Waiting::Block),
        Some("poll") => {
            let poll = operation.poll().unwrap_or(Poll::constant(Duration::from_millis(10)));
            builder = builder.waiting(Waiting::Poll(poll));
        }
        _ => {}
    }
    if let Some(retry_for) = operation.duration("retry_for_ms") {
        builder = builder.retry_for(retry_for);
    }
    if let Some(retry_wait_for) = operation.duration("retry_wait_for_ms") {
        builder = builder.retry_wait_for(retry_wait_for);
    }
    Ok(keep(state, operation, Maker::Locks(builder.build()), events, place))
}

pub fn quorum(state: &State, operation: &Value) -> Result<Value, Failed> {
    let place = place(operation);
    let events = Events::default();
    let mut builder = Quorum::builder(place.clients()?).hooks(events.clone());
    if let Some(node_timeout) = operation.duration("node_timeout_ms") {
        builder = builder.node_timeout(node_timeout);
    }
    if let Some(drift_factor) = operation["drift_factor"].as_f64() {
        builder = builder.drift_factor(drift_factor);
    }
    if let Some(fail_fast) = operation["fail_fast"].as_bool() {
        builder = builder.fail_fast(fail_fast);
    }
    if let Some(poll) = operation.poll() {
        builder = builder.poll(poll);
    }
    Ok(keep(state, operation, Maker::Quorum(builder.build()), events, place))
}
