//! The fields of an operation.

use std::time::Duration;

use serde_json::Value;
use slock_client::{Mode, Poll};

pub trait Fields {
    fn text(&self, name: &str) -> Option<String>;
    fn texts(&self, name: &str) -> Vec<String>;
    fn number(&self, name: &str) -> Option<u64>;
    fn duration(&self, name: &str) -> Option<Duration>;
    fn mode(&self) -> Mode;
    fn poll(&self) -> Option<Poll>;
}

impl Fields for Value {
    fn text(&self, name: &str) -> Option<String> {
        self[name].as_str().map(str::to_owned)
    }

    fn texts(&self, name: &str) -> Vec<String> {
        let items = self[name].as_array().map(Vec::as_slice).unwrap_or_default();
        items.iter().map(|item| item.as_str().expect("a list of texts").to_owned()).collect()
    }

    fn number(&self, name: &str) -> Option<u64> {
        self[name].as_u64()
    }

    fn duration(&self, name: &str) -> Option<Duration> {
        self[name].as_f64().map(|milliseconds| Duration::from_secs_f64(milliseconds / 1000.0))
    }

    fn mode(&self) -> Mode {
        if self["mode"] == "read" { Mode::Read } else { Mode::Write }
    }

    fn poll(&self) -> Option<Poll> {
        let poll = self.get("poll").filter(|poll| !poll.is_null())?;
        let pause = poll.duration("pause_ms").unwrap_or(Duration::from_millis(10));
        let strategy = match poll["kind"].as_str() {
            Some("none") => Poll::none(),
            Some("exponential") => {
                Poll::exponential(pause, poll.duration("most_ms").unwrap_or(Duration::from_millis(250)))
            }
            _ => Poll::constant(pause),
        };
        Some(match poll.number("limit") {
            Some(limit) => strategy.limit(limit.try_into().expect("a small number")),
            None => strategy,
        })
    }
}
