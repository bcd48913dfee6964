use std::time::{Duration, Instant};

use slock_client::{Error, Mode};

use crate::server::{Server, until};

#[tokio::test]
async fn a_writer_excludes_everybody_until_it_releases() {
    let server = Server::start().await;
    let locks = server.locks();
    let hold = locks.write("k").metadata("host=a").acquire().await.unwrap();
    assert!(locks.write("k").try_acquire().await.unwrap().is_none());
    assert!(locks.read("k").try_acquire().await.unwrap().is_none());
    assert_eq!(
        (hold.keys(), hold.mode(), hold.metadata()),
        (&["k".to_owned()][..], Mode::Write, Some("host=a"))
    );
    assert_eq!(server.info("k", "fence").await, hold.fence());
    let first = hold.fence();
    assert!(hold.release().await.unwrap());
    let next = locks.write("k").try_acquire().await.unwrap().unwrap();
    assert!(next.fence() > first);
}

#[tokio::test]
async fn a_limit_makes_readers_a_semaphore() {
    let server = Server::start().await;
    let request = server.locks().read("k").limit(2);
    let first = request.acquire().await.unwrap();
    let _second = request.acquire().await.unwrap();
    assert!(request.try_acquire().await.unwrap().is_none());
    first.release().await.unwrap();
    assert!(request.try_acquire().await.unwrap().is_some());
}

#[tokio::test]
async fn several_keys_are_held_together() {
    let server = Server::start().await;
    let locks = server.locks();
    let hold = locks.write(&["a", "b"]).acquire().await.unwrap();
    assert!(locks.read("b").try_acquire().await.unwrap().is_none());
    assert!(matches!(hold.upgrade(None).await, Err(Error::SeveralKeys)));
    hold.extend(Duration::from_secs(60)).await.unwrap();
    assert!(server.info("b", "pttl").await > 50_000);
    assert!(hold.release().await.unwrap());
    assert!(server.is_free("a").await && server.is_free("b").await);
}

#[tokio::test]
async fn a_dropped_hold_is_released_in_the_background() {
    let server = Server::start().await;
    let locks = server.locks();
    drop(locks.write("k").acquire().await.unwrap());
    locks.close().await;
    assert!(server.is_free("k").await);
}

#[tokio::test]
async fn a_dropped_release_goes_on() {
    let server = Server::start().await;
    let locks = server.locks();
    let hold = locks.write("k").acquire().await.unwrap();
    drop(hold.release());
    until(async || server.is_free("k").await).await;
}

#[tokio::test]
async fn a_release_does_not_touch_the_next_owner() {
    let server = Server::start().await;
    let locks = server.locks();
    let hold = locks.write("k").renew(false).ttl(Duration::from_millis(30)).acquire().await.unwrap();
    hold.lost().await;
    let next = locks.write("k").acquire().await.unwrap();
    assert!(!hold.release().await.unwrap());
    assert_eq!(server.info("k", "fence").await, next.fence());
}

#[tokio::test]
async fn the_validity_counts_from_before_the_request() {
    let server = Server::start().await;
    let locks = server.locks();
    let ttl = Duration::from_secs(5);
    let before = Instant::now();
    let hold = locks.write("k").ttl(ttl).acquire().await.unwrap();
    assert!(hold.valid_until() <= Instant::now() + ttl);
    assert!(hold.valid_until() >= before + ttl - ttl / 1000 - Duration::from_millis(2));
    let pttl = Duration::from_millis(u64::try_from(server.info("k", "pttl").await).unwrap());
    assert!(hold.valid_until() <= Instant::now() + pttl + Duration::from_millis(1));
    // An extension never shortens.
    let valid_until = hold.valid_until();
    hold.extend(Duration::from_secs(1)).await.unwrap();
    assert!(hold.valid_until() + Duration::from_millis(1) >= valid_until);
    hold.extend(Duration::from_secs(3600)).await.unwrap();
    assert!(hold.valid_until() > Instant::now() + Duration::from_secs(3500));
    assert!(server.info("k", "pttl").await > 3_500_000);
}

#[tokio::test]
async fn a_reader_becomes_the_writer_and_a_reader_again() {
    let server = Server::start().await;
    let locks = server.locks();
    let hold = locks.read("k").wait(Duration::from_secs(600)).acquire().await.unwrap();
    let other = locks.read("k").acquire().await.unwrap();
    assert!(matches!(hold.upgrade(Duration::from_millis(20)).await, Err(Error::TimedOut { .. })));
    assert_eq!(hold.mode(), Mode::Read);
    let view = hold.view();
    let upgrade = tokio::spawn(async move { view.upgrade(None).await });
    until(async || server.info("k", "waiters").await == 1).await;
    let info = server.locks().info("k").await.unwrap().unwrap();
    assert_eq!(info.queue[0].wait, None, "the wait of the request is not that of the upgrade");
    other.release().await.unwrap();
    let fence = upgrade.await.unwrap().unwrap();
    assert_eq!((hold.mode(), hold.fence()), (Mode::Write, fence));
    assert!(hold.downgrade().await.unwrap() > fence);
    assert!(locks.read("k").try_acquire().await.unwrap().is_some());
    assert!(hold.release().await.unwrap());
}

#[tokio::test]
async fn a_hold_counts_only_when_replicas_have_it() {
    let server = Server::start().await;
    let request = server.locks().write("k").min_replicas(1).replica_timeout(Duration::from_millis(50));
    match request.acquire().await {
        Err(Error::TooFewReplicas { wanted: 1, reached: 0 }) => {}
        other => panic!("{other:?}"),
    }
    until(async || server.is_free("k").await).await;
    let module = crate::server::module();
    let port = server.port.to_string();
    let _replica = Server::with(&["--loadmodule", &module, "--replicaof", "127.0.0.1", &port]).await;
    until(async || {
        let info: String = server.ask("INFO replication").await;
        info.contains("state=online")
    })
    .await;
    let hold = request.replica_timeout(Duration::from_secs(60)).acquire().await.unwrap();
    assert!(hold.release().await.unwrap());
}
