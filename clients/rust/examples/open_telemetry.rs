//! Spans and metrics of locks, by the hooks.
//!
//! ```text
//! cargo run --example open_telemetry
//! ```
//!
//! The API of OpenTelemetry does nothing until the program has set a tracer provider and a meter provider. This
//! one sets none: it shows what the hooks have to do.

use std::time::{Duration, SystemTime};

use opentelemetry::metrics::{Counter, Histogram};
use opentelemetry::trace::{Span, Status, Tracer};
use opentelemetry::{KeyValue, global};
use slock_client::{Error, Hooks, Locks, Reason, redis};

struct Telemetry {
    waits: Histogram<f64>,
    holds: Histogram<f64>,
    failures: Counter<u64>,
}

impl Telemetry {
    fn new() -> Self {
        let meter = global::meter("slock");
        Self {
            waits: meter.f64_histogram("lock.wait.duration").with_unit("s").build(),
            holds: meter.f64_histogram("lock.hold.duration").with_unit("s").build(),
            failures: meter.u64_counter("lock.failures").build(),
        }
    }

    /// A hook is called at the end, so the span is given its start.
    fn span(name: &'static str, label: &str, duration: Duration, status: Status) {
        let tracer = global::tracer("slock");
        let start = SystemTime::now() - duration;
        let mut span = tracer.span_builder(name).with_start_time(start).start(&tracer);
        span.set_attribute(KeyValue::new("lock", label.to_owned()));
        span.set_status(status);
        span.end();
    }

    fn count(&self, label: &str, what: &'static str) {
        self.failures.add(1, &[KeyValue::new("lock", label.to_owned()), KeyValue::new("failure", what)]);
    }
}

impl Hooks for Telemetry {
    fn waited(&self, label: &str, duration: Duration, outcome: &str) {
        let outcome = outcome.to_owned();
        let attributes = [KeyValue::new("lock", label.to_owned()), KeyValue::new("outcome", outcome.clone())];
        self.waits.record(duration.as_secs_f64(), &attributes);
        let status = if outcome == "granted" { Status::Ok } else { Status::error(outcome) };
        Self::span("lock wait", label, duration, status);
    }

    fn held(&self, label: &str, duration: Duration) {
        self.holds.record(duration.as_secs_f64(), &[KeyValue::new("lock", label.to_owned())]);
        Self::span("lock hold", label, duration, Status::Ok);
    }

    fn lost(&self, label: &str, _keys: &[String], _reason: Reason) {
        self.count(label, "lost");
    }

    fn renewal_failed(&self, label: &str, _error: &Error) {
        self.count(label, "renewal");
    }

    fn release_failed(&self, label: &str, _error: &Error) {
        self.count(label, "release");
    }
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let address = std::env::var("REDIS_URL").unwrap_or("redis://127.0.0.1/".into());
    let locks = Locks::builder(redis::Client::open(address)?).hooks(Telemetry::new()).build();
    let request = locks.write("job:42").wait(Duration::from_secs(5));
    request.run(|hold| async move { println!("working under fencing token {}", hold.fence()) }).await?;
    locks.close().await;
    Ok(())
}
