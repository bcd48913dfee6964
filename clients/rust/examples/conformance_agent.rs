//! The agent of the conformance tests: it reads operations as lines of JSON, calls the library, and writes the replies. The
//! protocol is on the page `clients/conformance/README.md`.

#[path = "conformance_agent/fields.rs"]
mod fields;
#[path = "conformance_agent/operations.rs"]
mod operations;
#[path = "conformance_agent/place.rs"]
mod place;
#[path = "conformance_agent/speed.rs"]
mod speed;
#[path = "conformance_agent/state.rs"]
mod state;
#[path = "conformance_agent/work.rs"]
mod work;

use std::collections::HashMap;
use std::io::Write;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::sync::oneshot;

use crate::state::State;

type Running = Arc<Mutex<HashMap<u64, oneshot::Sender<()>>>>;

#[tokio::main]
async fn main() {
    let (state, running) = (Arc::new(State::default()), Running::default());
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = lines.next_line().await.expect("stdin can be read") {
        let operation: Value = serde_json::from_str(&line).expect("each line is an object");
        let id = operation["id"].as_u64().expect("each operation has an id");
        if operation["op"] == "cancel" {
            let target = operation["target"].as_u64().expect("the target is an id");
            // It may have ended just now.
            running.lock().unwrap().remove(&target).map(|cancel| cancel.send(()));
            reply(id, json!({ "ok": {} }));
            continue;
        }
        let (cancel, cancelled) = oneshot::channel();
        running.lock().unwrap().insert(id, cancel);
        tokio::spawn(run(id, operation, cancelled, state.clone(), running.clone()));
    }
    std::process::exit(0);
}

async fn run(
    id: u64,
    operation: Value,
    cancelled: oneshot::Receiver<()>,
    state: Arc<State>,
    running: Running,
) {
    let result = if operation["op"] == "tasks" {
        let alive = tokio::runtime::Handle::current().metrics().num_alive_tasks();
        Some(Ok(json!({ "count": alive.saturating_sub(running.lock().unwrap().len()) })))
    } else {
        tokio::select! {
            biased;
            _ = cancelled => None,
            result = operations::run(&state, &operation) => Some(result),
        }
    };
    running.lock().unwrap().remove(&id);
    reply(
        id,
        match result {
            Some(Ok(value)) => json!({ "ok": value }),
            Some(Err(failed)) => json!({ "error": failed.name, "text": failed.text }),
            None => json!({ "error": "Cancelled", "text": "the future was dropped" }),
        },
    );
}

fn reply(id: u64, mut line: Value) {
    line["id"] = json!(id);
    let mut stdout = std::io::stdout().lock();
    // If stdout is closed, nobody wants the reply.
    let _ = writeln!(stdout, "{line}").and_then(|()| stdout.flush());
}
