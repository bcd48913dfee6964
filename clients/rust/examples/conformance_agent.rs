//! The agent of the conformance tests: reads operations as lines of JSON, calls the library, and writes the
//! answers. It decides nothing. The protocol is on the page `clients/conformance/README.md`.

#[path = "conformance_agent/cost.rs"]
mod cost;
#[path = "conformance_agent/fields.rs"]
mod fields;
#[path = "conformance_agent/holds.rs"]
mod holds;
#[path = "conformance_agent/open.rs"]
mod open;
#[path = "conformance_agent/operations.rs"]
mod operations;
#[path = "conformance_agent/raw.rs"]
mod raw;
#[path = "conformance_agent/requests.rs"]
mod requests;
#[path = "conformance_agent/state.rs"]
mod state;
#[path = "conformance_agent/throughput.rs"]
mod throughput;
#[path = "conformance_agent/work.rs"]
mod work;

use std::collections::HashMap;
use std::io::Write;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::sync::oneshot;

use crate::state::State;

#[tokio::main]
async fn main() {
    let state = Arc::new(State::default());
    let running: Arc<Mutex<HashMap<u64, oneshot::Sender<()>>>> = Arc::default();
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = lines.next_line().await.expect("stdin can be read") {
        let operation: Value = serde_json::from_str(&line).expect("each line is an object");
        let id = operation["id"].as_u64().expect("each operation has an id");
        if operation["op"] == "cancel" {
            let target = operation["target"].as_u64().expect("the target is an id");
            if let Some(cancel) = running.lock().unwrap().remove(&target) {
                // It may have ended just now.
                let _ = cancel.send(());
            }
            answer(id, &json!({ "ok": {} }));
            continue;
        }
        let (cancel, cancelled) = oneshot::channel();
        running.lock().unwrap().insert(id, cancel);
        let (state, running) = (state.clone(), running.clone());
        tokio::spawn(async move {
            let result = tokio::select! {
                biased;
                _ = cancelled => None,
                result = operations::run(state, operation) => Some(result),
            };
            running.lock().unwrap().remove(&id);
            match result {
                Some(Ok(value)) => answer(id, &json!({ "ok": value })),
                Some(Err(failed)) => answer(id, &json!({ "error": failed.name, "text": failed.text })),
                None => answer(id, &json!({ "error": "Cancelled", "text": "the future was dropped" })),
            }
        });
    }
    std::process::exit(0);
}

fn answer(id: u64, answer: &Value) {
    let mut line = answer.clone();
    line["id"] = json!(id);
    let mut stdout = std::io::stdout().lock();
    // Who closed stdout does not want the answer.
    let _ = writeln!(stdout, "{line}").and_then(|()| stdout.flush());
}
