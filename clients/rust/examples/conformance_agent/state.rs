//! What the driver has opened and acquired, by the names that it gave.

use std::collections::HashMap;
use std::error::Error as _;
use std::fmt::Display;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use slock_client::testing::MemoryServer;
use slock_client::{Error, Hold, Hooks, Locks, Reason};

use crate::place::Place;

#[derive(Default)]
pub struct State {
    opened: Mutex<HashMap<String, Opened>>,
    held: Mutex<HashMap<String, Arc<Hold>>>,
    memory: Mutex<HashMap<String, MemoryServer>>,
}

#[derive(Clone)]
pub struct Opened {
    pub locks: Locks,
    pub events: Events,
    pub place: Place,
}

impl State {
    pub fn open(&self, name: String, opened: Opened) {
        self.opened.lock().unwrap().insert(name, opened);
    }

    pub fn opened(&self, name: &str) -> Result<Opened, Failed> {
        let opened = self.opened.lock().unwrap().get(name).cloned();
        opened.ok_or_else(|| Failed::other(format!("nothing is open as {name}")))
    }

    pub fn memory(&self, name: &str) -> MemoryServer {
        self.memory.lock().unwrap().entry(name.to_owned()).or_default().clone()
    }

    pub fn keep(&self, name: String, hold: Hold) -> Value {
        let granted = granted(&hold);
        self.held.lock().unwrap().insert(name, Arc::new(hold));
        granted
    }

    pub fn hold(&self, name: &str) -> Result<Arc<Hold>, Failed> {
        let hold = self.held.lock().unwrap().get(name).cloned();
        hold.ok_or_else(|| Failed::other(format!("no hold is called {name}")))
    }
}

pub fn granted(hold: &Hold) -> Value {
    let remaining = u64::try_from(hold.remaining().as_millis()).unwrap_or(u64::MAX);
    let mut granted = json!({ "token": hold.token(), "remaining_ms": remaining, "fence": hold.fence() });
    if hold.fence() == 0 {
        granted["fences"] = json!(hold.fences());
    }
    granted
}

/// Hooks that note what they are told.
#[derive(Clone, Default)]
pub struct Events(Arc<Mutex<Vec<Value>>>);

impl Events {
    pub fn take(&self) -> Vec<Value> {
        std::mem::take(&mut self.0.lock().unwrap())
    }

    fn note(&self, event: Value) {
        self.0.lock().unwrap().push(event);
    }
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

impl Hooks for Events {
    fn waited(&self, label: &str, duration: Duration, outcome: &str) {
        let duration = milliseconds(duration);
        self.note(json!({ "event": "waited", "label": label, "duration_ms": duration, "outcome": outcome }));
    }

    fn held(&self, label: &str, duration: Duration) {
        self.note(json!({ "event": "held", "label": label, "duration_ms": milliseconds(duration) }));
    }

    fn lost(&self, label: &str, keys: &[String], reason: Reason) {
        self.note(json!({ "event": "lost", "label": label, "keys": keys, "reason": reason.to_string() }));
    }

    fn renewal_failed(&self, label: &str, error: &Error) {
        self.note(json!({ "event": "renewal failed", "label": label, "error": whole(error) }));
    }

    fn release_failed(&self, label: &str, error: &Error) {
        self.note(json!({ "event": "release failed", "label": label, "error": whole(error) }));
    }
}

/// The text of the error and of its source.
fn whole(error: &Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

pub struct Failed {
    pub name: String,
    pub text: String,
}

impl Failed {
    pub fn other(text: impl Display) -> Self {
        Self { name: "Other".into(), text: text.to_string() }
    }
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        let name = if let Error::Invalid(_) | Error::Redis(_) = error { "Other" } else { error.name() };
        Self { name: name.into(), text: whole(&error) }
    }
}

impl From<redis::RedisError> for Failed {
    fn from(error: redis::RedisError) -> Self {
        Self::other(error)
    }
}
