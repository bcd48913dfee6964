//! What the driver has opened and acquired, by the names it gave.

use std::collections::HashMap;
use std::fmt::Display;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use slock_client::{Error, Hooks, Locks, Outcome, Quorum, Reason};

use crate::holds::{AnyHold, AnyView};

use crate::raw::Place;

#[derive(Default)]
pub struct State {
    opened: Mutex<HashMap<String, Opened>>,
    held: Mutex<HashMap<String, Held>>,
}

#[derive(Clone)]
pub enum Maker {
    Locks(Locks),
    Quorum(Quorum),
}

#[derive(Clone)]
pub struct Opened {
    pub maker: Maker,
    pub events: Events,
    pub place: Place,
}

/// What is left of a hold when it was released is its view.
struct Held {
    view: AnyView,
    hold: Option<AnyHold>,
}

/// Hooks that note what they hear.
#[derive(Clone, Default)]
pub struct Events(Arc<Mutex<Vec<Event>>>);

struct Event {
    name: &'static str,
    label: String,
    duration: Option<Duration>,
    outcome: Option<String>,
    reason: Option<Reason>,
    error: Option<String>,
}

impl Events {
    pub fn take(&self) -> Vec<Value> {
        let events = std::mem::take(&mut *self.0.lock().unwrap());
        events.into_iter().map(Event::into_value).collect()
    }

    fn note(&self, event: Event) {
        self.0.lock().unwrap().push(event);
    }
}

impl Event {
    fn new(name: &'static str, label: &str) -> Self {
        Self { name, label: label.to_owned(), duration: None, outcome: None, reason: None, error: None }
    }

    fn into_value(self) -> Value {
        let mut value = json!({ "event": self.name, "label": self.label });
        if let Some(duration) = self.duration {
            value["duration_ms"] = json!(duration.as_secs_f64() * 1000.0);
        }
        if let Some(outcome) = self.outcome {
            value["outcome"] = json!(outcome);
        }
        if let Some(reason) = self.reason {
            value["reason"] = json!(reason.to_string());
        }
        if let Some(error) = self.error {
            value["error"] = json!(error);
        }
        value
    }
}

impl Hooks for Events {
    fn waited(&self, label: &str, duration: Duration, outcome: Outcome<'_>) {
        let outcome = Some(outcome.to_string());
        self.note(Event { duration: Some(duration), outcome, ..Event::new("waited", label) });
    }

    fn held(&self, label: &str, duration: Duration) {
        self.note(Event { duration: Some(duration), ..Event::new("held", label) });
    }

    fn lost(&self, label: &str, reason: Reason) {
        self.note(Event { reason: Some(reason), ..Event::new("lost", label) });
    }

    fn renewal_failed(&self, label: &str, error: &Error) {
        self.note(Event { error: Some(with_cause(error)), ..Event::new("renewal failed", label) });
    }

    fn release_failed(&self, label: &str, error: &Error) {
        self.note(Event { error: Some(with_cause(error)), ..Event::new("release failed", label) });
    }
}

/// The text of the error and of its cause.
fn with_cause(error: &Error) -> String {
    match std::error::Error::source(error) {
        Some(cause) => format!("{error}: {cause}"),
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
        let name = match &error {
            Error::SeveralKeys | Error::InvalidArgument(_) | Error::Redis(_) => "Other",
            error => error.name(),
        };
        Self { name: name.into(), text: with_cause(&error) }
    }
}

impl From<redis::RedisError> for Failed {
    fn from(error: redis::RedisError) -> Self {
        Self::other(error)
    }
}

impl Opened {
    pub fn locks(self) -> Result<Locks, Failed> {
        match self.maker {
            Maker::Locks(locks) => Ok(locks),
            Maker::Quorum(_) => Err(Failed::other("not for a quorum")),
        }
    }
}

impl State {
    pub fn open(&self, name: String, opened: Opened) {
        self.opened.lock().unwrap().insert(name, opened);
    }

    pub fn opened(&self, name: &str) -> Result<Opened, Failed> {
        let opened = self.opened.lock().unwrap().get(name).cloned();
        opened.ok_or_else(|| Failed::other(format!("nothing is open as {name}")))
    }

    pub fn keep(&self, name: String, hold: AnyHold) {
        let held = Held { view: hold.view(), hold: Some(hold) };
        self.held.lock().unwrap().insert(name, held);
    }

    pub fn view(&self, name: &str) -> Result<AnyView, Failed> {
        let view = self.held.lock().unwrap().get(name).map(|held| held.view.clone());
        view.ok_or_else(|| Failed::other(format!("no hold is called {name}")))
    }

    /// The hold itself, to be released; nothing when it was taken before.
    pub fn take(&self, name: &str) -> Option<AnyHold> {
        self.held.lock().unwrap().get_mut(name)?.hold.take()
    }
}
