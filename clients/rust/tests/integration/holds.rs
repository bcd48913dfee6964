//! What becomes of holds.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use slock_client::{Error, Locks, Mode, Reason};
use tokio::runtime::Handle;

use crate::server::{Server, until};

const TTL: Duration = Duration::from_millis(1000);

/// Sets a flag when it is dropped.
struct Dropped(Arc<AtomicBool>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[tokio::test]
async fn work_is_dropped_if_the_lock_is_lost() {
    let server = Server::start().await;
    let dropped = Arc::new(AtomicBool::new(false));
    let flag = Dropped(dropped.clone());
    let request = server.locks().write("k").ttl(TTL);
    let result = request.run(async |_| {
        let _flag = flag;
        let () = server.ask("DEL k").await;
        std::future::pending::<()>().await;
    });
    assert!(matches!(result.await, Err(Error::Lost { reason: Reason::Gone, .. })));
    assert!(dropped.load(Ordering::SeqCst));
}

/// The only thread is blocked, so nothing can be renewed.
#[tokio::test]
async fn work_that_blocks_past_the_validity_ends_with_lost() {
    let server = Server::start().await;
    let request = server.locks().write("k").ttl(TTL);
    let result = request.run(|_| async { std::thread::sleep(2 * TTL) }).await;
    assert!(matches!(result, Err(Error::Lost { reason: Reason::Expired, .. })));
}

/// It is the clock that tells, and no reply is waited for.
#[tokio::test]
async fn run_ends_at_once_if_the_server_is_away() {
    let server = Server::start().await;
    let request = server.locks().write("k").ttl(TTL);
    let mut paused = None;
    let began = Instant::now();
    let result = request.run(async |_| {
        paused = Some(server.pause().await);
        std::future::pending::<()>().await;
    });
    let error = result.await.unwrap_err();
    assert!(matches!(error, Error::Lost { reason: Reason::Expired, .. }), "{error:?}");
    // Less than the time of a reply, or of the release, later than the ttl.
    assert!(began.elapsed() < TTL + Duration::from_millis(700), "{:?}", began.elapsed());
    drop(paused);
    server.is_empty().await;
}

/// A token of the program's may be in use for the next hold.
#[tokio::test]
async fn a_lost_hold_leaves_the_next_hold_of_its_token() {
    let server = Server::start().await;
    let request = server.locks().write("k").token("mine").ttl(TTL);
    for is_dropped in [true, false] {
        let first = request.acquire().await.unwrap();
        let () = server.ask("DEL k").await;
        let next = request.acquire().await.unwrap();
        let error = first.lost().await;
        assert!(matches!(error, Error::Lost { reason: Reason::Gone, .. }), "{error:?}");
        if is_dropped {
            drop(first);
        } else {
            assert!(matches!(first.release().await, Err(Error::Lost { .. })));
        }
        let ended = server.calls("slock.munlock").await;
        assert!(ended > 0, "the loss sends an end");
        next.extend(TTL).await.unwrap();
        assert_eq!(server.info("k", "fence").await, next.fence());
        next.release().await.unwrap();
    }
}

#[tokio::test]
async fn one_change_of_mode_at_a_time() {
    let server = Server::start().await;
    let locks = server.locks();
    let hold = Arc::new(locks.read("k").acquire().await.unwrap());
    let other = locks.read("k").acquire().await.unwrap();
    let upgraded = hold.clone();
    let first = tokio::spawn(async move { upgraded.upgrade(None).await });
    until(async || server.info("k", "waiters").await == 1).await;
    assert!(matches!(hold.upgrade(None).await, Err(Error::Invalid(_))));
    assert!(matches!(hold.downgrade().await, Err(Error::Invalid(_))));
    other.release().await.unwrap();
    assert_eq!(first.await.unwrap().unwrap(), hold.fence());
    assert_eq!(hold.mode(), Mode::Write);
    hold.release().await.unwrap();
    server.is_empty().await;
}

#[tokio::test]
async fn names_and_metadata() {
    let server = Server::start().await;
    let locks = Locks::builder(server.client()).prefix("app:").build();
    let hold = locks.write("k").acquire().await.unwrap();
    assert_eq!(hold.keys(), ["k"]);
    let info = server.locks().info("app:k").await.unwrap().unwrap();
    let metadata = info.holders[0].metadata.as_deref().unwrap();
    assert!(metadata.starts_with("host=") && metadata.contains(&format!("pid={}", std::process::id())));
    assert!(metadata.contains("task=holds::names_and_metadata"), "{metadata}");
    for keys in [&[][..], &[""], &["k", ""]] {
        assert!(matches!(locks.write(keys).acquire().await, Err(Error::Invalid(_))));
    }
    assert!(matches!(locks.info("").await, Err(Error::Invalid(_))));
    assert!(matches!(locks.write("k").limit(2).acquire().await, Err(Error::Invalid(_))));
}

#[tokio::test]
async fn holds_cost_no_task_and_all_are_renewed() {
    let server = Server::start().await;
    let locks = server.locks();
    let tasks = || Handle::current().metrics().num_alive_tasks();
    let mut holds = vec![locks.write("first").acquire().await.unwrap()];
    let before = tasks();
    for number in 0..1000 {
        holds.push(locks.write(format!("{number}")).ttl(10 * TTL).acquire().await.unwrap());
    }
    assert_eq!(tasks(), before);
    until(async || server.calls("slock.extend").await >= 1000).await;
    holds.iter().for_each(|hold| hold.check().unwrap());
}

#[tokio::test]
async fn a_server_without_the_module_is_an_error() {
    let server = Server::with(&[]).await;
    let error = server.locks().write("k").acquire().await.unwrap_err();
    assert!(
        matches!(error, Error::ModuleNotLoaded) && error.to_string().contains("--loadmodule"),
        "{error:?}"
    );
}
