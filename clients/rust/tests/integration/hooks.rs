use std::sync::{Arc, Mutex};
use std::time::Duration;

use slock_client::{Error, Hooks, Locks, Outcome, Reason};

use crate::server::{Server, until};

#[derive(Clone, Default)]
struct Heard(Arc<Mutex<Vec<String>>>);

impl Heard {
    fn note(&self, text: String) {
        self.0.lock().unwrap().push(text);
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

impl Hooks for Heard {
    fn waited(&self, label: &str, _duration: Duration, outcome: Outcome<'_>) {
        self.note(format!("{label} waited: {outcome}"));
    }

    fn held(&self, label: &str, _duration: Duration) {
        self.note(format!("{label} held"));
    }

    fn lost(&self, label: &str, reason: Reason) {
        self.note(format!("{label} lost: {reason}"));
    }

    fn renewal_failed(&self, label: &str, _error: &Error) {
        self.note(format!("{label}: renewal failed"));
    }

    fn release_failed(&self, label: &str, error: &Error) {
        self.note(format!("{label}: release failed: {}", error.name()));
    }
}

#[tokio::test]
async fn they_hear_of_waits_holds_and_losses() {
    let server = Server::start().await;
    let heard = Heard::default();
    let locks = Locks::builder(server.client()).hooks(heard.clone()).build();

    let hold = locks.write("k").label("import").acquire().await.unwrap();
    assert!(locks.write("k").wait(Duration::from_millis(1)).acquire().await.is_err());
    assert!(locks.write("k").try_acquire().await.unwrap().is_none());
    let request = locks.write("k");
    let task = tokio::spawn(async move { request.acquire().await.map(drop) });
    until(async || server.info("k", "waiters").await == 1).await;
    task.abort();
    let _ = task.await;
    hold.release().await.unwrap();
    let wanted = [
        "import waited: granted",
        "k waited: timed out",
        "k waited: refused",
        "k waited: cancelled",
        "import held",
    ];
    assert_eq!(heard.take(), wanted);

    let hold = locks.write("k").ttl(Duration::from_millis(300)).acquire().await.unwrap();
    let () = server.ask("DEL k").await;
    hold.lost().await;
    drop(hold);
    locks.close().await;
    assert_eq!(heard.take(), ["k waited: granted", "k lost: gone", "k held"]);
}

/// Finished work is a success: the lock ends by its ttl.
#[tokio::test]
async fn they_hear_of_a_release_that_failed_and_the_work_is_a_success() {
    let mut server = Server::start().await;
    let heard = Heard::default();
    let retry_for = Duration::from_millis(100);
    let locks = Locks::builder(server.client()).hooks(heard.clone()).retry_for(retry_for).build();
    let request = locks.write("k").renew(false);
    let done = request.run(async |_| server.kill()).await;
    assert!(done.is_ok(), "{done:?}");
    assert_eq!(heard.take(), ["k waited: granted", "k held", "k: release failed: TimedOut"]);
}

#[tokio::test]
async fn they_hear_of_renewals_that_failed() {
    let mut server = Server::start().await;
    let heard = Heard::default();
    let locks = Locks::builder(server.client()).hooks(heard.clone()).build();
    let hold = locks.write("k").ttl(Duration::from_millis(600)).acquire().await.unwrap();
    server.kill();
    hold.lost().await;
    let heard = heard.take();
    assert_eq!(heard[..2], ["k waited: granted", "k: renewal failed"]);
    assert_eq!(heard[heard.len() - 2..], ["k lost: expired", "k held"]);
}

/// A hook that looks at the hold must not stop everything.
#[tokio::test]
async fn they_may_look_at_the_hold() {
    struct Looks(Arc<Mutex<Option<Arc<slock_client::HoldView>>>>);

    impl Hooks for Looks {
        fn lost(&self, _label: &str, _reason: Reason) {
            let hold = self.0.lock().unwrap();
            assert!(hold.as_ref().is_some_and(|hold| hold.check().is_err()));
        }
    }

    let server = Server::start().await;
    let view = Arc::new(Mutex::new(None));
    let locks = Locks::builder(server.client()).hooks(Looks(view.clone())).build();
    let hold = locks.write("k").renew(false).ttl(Duration::from_millis(30)).acquire().await.unwrap();
    *view.lock().unwrap() = Some(hold.view());
    assert_eq!(hold.lost().await, Reason::Expired);
}
