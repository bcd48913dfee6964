//! What becomes of holds.

use std::sync::Arc;
use std::time::{Duration, Instant};

use slock_client::{Error, Reason};

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
    let locks = server.locks();
    let _hold = locks.write("k").acquire().await.unwrap();
    let info = locks.info("k").await.unwrap().unwrap();
    let metadata = info.holders[0].metadata.as_deref().unwrap();
    assert!(metadata.contains("task=holds::names_and_metadata"), "{metadata}");
    assert!(matches!(locks.info("").await, Err(Error::Invalid(_))));
    let never = locks.write("k").max_hold(Duration::ZERO);
    assert!(matches!(never.acquire().await, Err(Error::Invalid(_))));
    assert!(matches!(locks.write("k").limit(2).acquire().await, Err(Error::Invalid(_))));
}
