//! What hooks, log and spans tell.

use std::sync::{Arc, LazyLock, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use slock_client::{Error, Hooks, Locks, Reason};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::{DefaultGuard, Interest};
use tracing::{Dispatch, Event, Metadata, Subscriber};
use tracing_core::span::Current;

use crate::server::{Server, until};

/// Notes what hooks, log and spans tell, line by line. It is for tests of one thread.
#[derive(Clone, Default)]
pub struct Recorder(Arc<Mutex<Recorded>>);

#[derive(Default)]
struct Recorded {
    lines: Vec<String>,
    spans: Vec<(&'static Metadata<'static>, Option<u64>)>,
    entered: Vec<u64>,
}

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        let text = format!("{value:?}");
        self.0 += &if field.name() == "message" { format!(" {text}") } else { format!(" {field}={text}") };
    }
}

impl Recorder {
    fn recorded(&self) -> MutexGuard<'_, Recorded> {
        self.0.lock().unwrap()
    }

    fn note(&self, text: String) {
        self.recorded().lines.push(text);
    }

    /// The lines that contain the text.
    fn lines(&self, text: &str) -> Vec<String> {
        self.recorded().lines.iter().filter(|line| line.contains(text)).cloned().collect()
    }

    /// Until the guard is dropped, log and spans of this thread come here.
    fn listen(&self) -> DefaultGuard {
        // Of one subscriber alone tracing does not know it where another thread comes to a message first, and then
        // nobody is told of that any more. With two it asks both.
        static SECOND: LazyLock<Dispatch> = LazyLock::new(|| Dispatch::new(Recorder::default()));
        LazyLock::force(&SECOND);
        tracing::subscriber::set_default(self.clone())
    }
}

impl Subscriber for Recorder {
    fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
        Interest::sometimes()
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        ["slock_client", "integration"].iter().any(|target| metadata.target().starts_with(target))
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut recorded = self.recorded();
        let parent = span.parent().map(Id::into_u64).or(recorded.entered.last().copied());
        recorded.spans.push((span.metadata(), parent));
        let (mut text, mut at, mut fields) =
            (String::new(), Some(recorded.spans.len() as u64), Text(String::new()));
        span.record(&mut fields);
        while let Some((metadata, parent)) = at.map(|at| recorded.spans[at as usize - 1]) {
            (text, at) = (format!("{} {text}", metadata.name()), parent);
        }
        recorded.lines.push(format!("span {text}{}", fields.0));
        Id::from_u64(recorded.spans.len() as u64)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = Text(event.metadata().level().to_string());
        event.record(&mut text);
        self.note(text.0);
    }

    fn enter(&self, span: &Id) {
        self.recorded().entered.push(span.into_u64());
    }

    fn exit(&self, span: &Id) {
        let mut recorded = self.recorded();
        let at = recorded.entered.iter().rposition(|entered| *entered == span.into_u64());
        at.map(|at| recorded.entered.remove(at));
    }

    fn current_span(&self) -> Current {
        let recorded = self.recorded();
        let Some(id) = recorded.entered.last() else { return Current::none() };
        Current::new(Id::from_u64(*id), recorded.spans[*id as usize - 1].0)
    }
}

/// Each panics, which changes nothing: no lock is left, and no call ends with it.
impl Hooks for Recorder {
    fn waited(&self, label: &str, _: Duration, outcome: &str) {
        panic!("{label} {outcome}");
    }

    fn held(&self, label: &str, duration: Duration) {
        self.note(format!("{label} held {}", duration.as_millis()));
        panic!("{label} held");
    }

    fn lost(&self, label: &str, keys: &[String], reason: Reason) {
        self.note(format!("{label} lost {keys:?}: {reason}"));
        panic!("{label} lost");
    }
}

/// The time of a hold counts from its grant, and not from the request.
#[tokio::test]
async fn held_is_without_the_wait() {
    const WAIT: Duration = Duration::from_millis(700);
    let server = Server::start().await;
    let recorder = Recorder::default();
    let locks = Locks::builder(server.client()).hooks(recorder.clone()).build();
    let () = server.ask("SLOCK.LOCK k other 3600000").await;
    let (request, began) = (locks.write("k"), Instant::now());
    let waits = tokio::spawn(async move { request.acquire().await });
    until(async || server.info("k", "waiters").await == 1).await;
    tokio::time::sleep(WAIT.saturating_sub(began.elapsed())).await;
    let () = server.ask("SLOCK.UNLOCK k other").await;
    let hold = waits.await.unwrap().unwrap();
    hold.release().await.unwrap();
    let held: u128 = recorder.lines("k held")[0].strip_prefix("k held ").unwrap().parse().unwrap();
    assert!(held + WAIT.as_millis() / 2 < began.elapsed().as_millis(), "{held} ms");
}

/// Hook, log and error tell of a hold that is gone when it is released.
#[tokio::test]
async fn a_loss_at_the_release_is_told() {
    let server = Server::start().await;
    let recorder = Recorder::default();
    let _guard = recorder.listen();
    let locks = Locks::builder(server.client()).hooks(recorder.clone()).build();
    let request = locks.write(&["a", "b"]).label("import");
    let hold = request.acquire().await.unwrap();
    let () = server.ask("DEL b").await;
    let error = hold.release().await.unwrap_err();
    assert_eq!(error.to_string(), "the lock was lost, gone (lock a, b)");
    assert!(hold.is_lost());
    let by_run = request.run(async |_| server.ask::<()>("DEL a").await).await;
    assert!(matches!(by_run, Err(Error::Lost { reason: Reason::Gone, .. })), "{by_run:?}");
    assert_eq!(recorder.lines("import lost"), [r#"import lost ["a", "b"]: gone"#; 2]);
    assert_eq!(
        recorder.lines("WARN a lock"),
        [r#"WARN a lock was lost keys=["a", "b"] label="import" reason=gone"#; 2],
    );
    server.is_empty().await;
}

#[tokio::test]
async fn commands_are_spans_of_the_call_and_renewals_of_the_hold() {
    let server = Server::start().await;
    let recorder = Recorder::default();
    let _guard = recorder.listen();
    let locks = Locks::builder(server.client()).ttl(Duration::from_secs(3)).build();
    let hold = {
        let request = locks.write("k");
        let acquired = request.acquire();
        tracing::Instrument::instrument(acquired, tracing::info_span!("taken")).await.unwrap()
    };
    until(async || server.calls("slock.extend").await > 0).await;
    tracing::Instrument::instrument(hold.release(), tracing::info_span!("given")).await.unwrap();
    let has = |start: &str, end: &str| {
        let lines = recorder.lines("span");
        assert!(lines.iter().any(|line| line.starts_with(start) && line.contains(end)), "{lines:?}");
    };
    has("span taken slock.acquire slock.command ", "otel.name=\"SLOCK.LOCK\"");
    has("span taken slock.command ", "otel.name=\"SLOCK.EXTEND\"");
    has("span given slock.command ", "otel.name=\"SLOCK.MUNLOCK\"");
}
