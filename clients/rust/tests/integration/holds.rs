//! What becomes of holds.

use std::sync::Arc;
use std::time::{Duration, Instant};

use slock_client::{Error, Locks, Reason};

use crate::server::Server;

const TTL: Duration = Duration::from_millis(1000);

#[tokio::test]
async fn work_is_dropped_if_the_lock_is_lost() {
    let server = Server::start().await;
    let alive = Arc::new(());
    let of_work = alive.clone();
    let request = server.locks().write("k").ttl(TTL);
    let result = request.run(async |_| {
        let _of_work = of_work;
        let () = server.ask("DEL k").await;
        std::future::pending::<()>().await;
    });
    assert!(matches!(result.await, Err(Error::Lost { reason: Reason::Gone, .. })));
    assert_eq!(Arc::strong_count(&alive), 1);
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
    let never = locks.write("k").max_hold(Duration::ZERO);
    assert!(matches!(never.acquire().await, Err(Error::Invalid(_))));
    assert!(matches!(locks.write("k").limit(2).acquire().await, Err(Error::Invalid(_))));
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

/// The server says so before the lock is asked for, not at the release.
#[tokio::test]
async fn at_least_is_no_longer_than_the_longest_ttl() {
    let server = Server::start().await;
    let () = server.ask("CONFIG SET slock.max-ttl-ms 20000").await;
    let (locks, longest) = (server.locks(), Duration::from_secs(20));
    let says = "at_least: ttl must be an integer from 1 to 20000 milliseconds (slock.max-ttl-ms)";
    let held = locks.write("k").token("mine").acquire().await.unwrap();
    for request in [locks.write("k").token("mine"), locks.read(&["a", "b"]), locks.write("a").wait(TTL)] {
        let error = request.at_least(longest + Duration::from_millis(1)).try_acquire().await.unwrap_err();
        assert!(error.to_string().ends_with(says), "{error:?}");
    }
    // Neither was anything asked for, nor was the hold of the same token changed.
    assert_eq!((server.calls("slock.lock").await, server.calls("slock.mrlock").await), (1, 0));
    assert!(held.remaining() > TTL && server.ask::<i64>("SLOCK.PTTL k mine").await <= 10_000);
}
