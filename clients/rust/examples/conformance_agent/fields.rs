//! The fields of an operation.

use std::time::Duration;

use serde_json::Value;
use slock_client::{Locks, Mode, Poll, Request};

pub trait Fields {
    fn text(&self, name: &str) -> Option<String>;
    fn texts(&self, name: &str) -> Vec<String>;
    fn number(&self, name: &str) -> Option<u64>;
    fn duration(&self, name: &str) -> Option<Duration>;
    fn poll(&self) -> Option<Poll>;
    fn request(&self, locks: &Locks) -> Request;
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

    fn poll(&self) -> Option<Poll> {
        let poll = self.get("poll").filter(|poll| !poll.is_null())?;
        let pause = poll.duration("pause_ms").unwrap_or(Duration::from_millis(10));
        let most = poll.duration("most_ms").unwrap_or(Duration::from_millis(250));
        let strategy = match poll["kind"].as_str() {
            Some("none") => Poll::none(),
            Some("exponential") => Poll::exponential(pause, most),
            _ => Poll::constant(pause),
        };
        Some(match poll.number("limit") {
            Some(limit) => strategy.limit(limit.try_into().expect("a small number")),
            None => strategy,
        })
    }

    fn request(&self, locks: &Locks) -> Request {
        let keys = self.text("key").map_or_else(|| self.texts("keys"), |key| vec![key]);
        let small =
            |name: &str| self.number(name).map(|number| u32::try_from(number).expect("a small number"));
        let mut request = locks.request(keys, if self["mode"] == "read" { Mode::Read } else { Mode::Write });
        macro_rules! options {
            ($($option:ident: $given:expr;)*) => {
                $(if let Some(given) = $given {
                    request = request.$option(given);
                })*
            };
        }
        options! {
            ttl: self.duration("ttl_ms");
            wait: self.duration("wait_ms");
            limit: small("limit");
            metadata: self.text("metadata");
            renew: self["renew"].as_bool();
            max_hold: self.duration("max_hold_ms");
            at_least: self.duration("at_least_ms");
            token: self.text("token");
            label: self.text("label");
            min_replicas: small("min_replicas");
            replica_timeout: self.duration("replica_timeout_ms");
        }
        request
    }
}
