//! What is left of acquisitions that are cancelled, of locks that are closed, and of runtimes that shut down: nothing.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use slock_client::{Error, Locks, Mode, Reason};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;

use crate::server::{Server, until};

const LONG: Duration = Duration::from_secs(3600);

/// A number below the limit, the same in each run.
fn random(state: &mut u64, limit: u64) -> u64 {
    *state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
    (*state >> 33) % limit
}

/// Acquisitions that are dropped at any moment leave nothing, neither on the server nor here.
#[tokio::test]
async fn cancelled_acquisitions() {
    let count = if std::env::var_os("SLOCK_THOROUGH").is_some() { 10_000 } else { 500 };
    let server = Server::start().await;
    let locks = server.locks();
    let held = locks.write("held").ttl(LONG).acquire().await.unwrap();
    let (mut all, mut state) = (JoinSet::new(), 1);
    for _ in 0..count {
        let key = ["held", "free"][random(&mut state, 2) as usize];
        // What is left does not end by itself.
        let request = locks.write(key).ttl(LONG);
        let limit = Duration::from_micros(random(&mut state, 50_000));
        all.spawn(async move { drop(tokio::time::timeout(limit, request.acquire()).await) });
    }
    all.join_all().await;
    held.release().await.unwrap();
    locks.close().await;
    server.is_empty().await;
}

/// From one poll to the next, so at each moment at which a future can be dropped.
#[tokio::test]
async fn an_acquisition_dropped_at_each_await() {
    let server = Server::start().await;
    let locks = server.locks();
    let _held = locks.write("held").acquire().await.unwrap();
    for keys in [&["free"][..], &["free", "held"]] {
        for polls in 1..40 {
            let request = locks.write(keys).ttl(LONG);
            let mut acquired = Box::pin(request.acquire());
            for _ in 0..polls {
                let once = std::future::poll_fn(|context| {
                    let is_done = acquired.as_mut().poll(context).is_ready();
                    std::task::Poll::Ready(is_done)
                });
                if once.await {
                    break;
                }
                tokio::time::sleep(Duration::from_micros(50)).await;
            }
            drop(acquired);
            until(async || server.is_free("free").await && server.info("held", "waiters").await == 0).await;
        }
    }
}

#[tokio::test]
async fn a_dropped_change_of_mode() {
    let server = Server::start().await;
    let locks = server.locks();
    let hold = Arc::new(locks.read("k").acquire().await.unwrap());
    let other = locks.read("k").acquire().await.unwrap();
    let upgraded = hold.clone();
    let upgrade = tokio::spawn(async move { upgraded.upgrade(None).await });
    until(async || server.info("k", "waiters").await == 1).await;
    upgrade.abort();
    until(async || server.info("k", "waiters").await == 0).await;
    other.release().await.unwrap();
    hold.check().unwrap();
    assert_eq!(hold.mode(), Mode::Read);
    hold.release().await.unwrap();
    server.is_empty().await;
}

#[tokio::test]
async fn closed_locks() {
    let server = Server::start().await;
    let locks = Locks::builder(server.client()).retry_for(Duration::from_millis(100)).build();
    let hold = locks.read("k").ttl(Duration::from_secs(2)).acquire().await.unwrap();
    let released = locks.write("released").ttl(LONG).acquire().await.unwrap();
    let () = server.ask("SLOCK.LOCK busy other 3600000").await;
    let request = locks.write("busy");
    let mut waits = pin!(request.acquire());
    tokio::select! {
        _ = &mut waits => panic!("another has the lock"),
        () = until(async || server.info("busy", "waiters").await == 1) => {}
    }
    // Nobody polls the acquisition meanwhile.
    tokio::time::timeout(Duration::from_secs(60), locks.close()).await.expect("close ends");
    assert!(matches!(waits.await, Err(Error::Closed)));
    let token = hold.token().to_owned();
    assert!(matches!(locks.write("new").acquire().await, Err(Error::Closed)));
    assert!(matches!(locks.adopt("k", &token, Mode::Read).await, Err(Error::Closed)));
    assert!(matches!(hold.extend(LONG).await, Err(Error::Closed)));
    assert!(matches!(hold.upgrade(None).await, Err(Error::Closed)));
    released.release().await.unwrap();
    assert!(matches!(hold.lost().await, Error::Lost { reason: Reason::Closed, .. }));
    let () = server.ask("SLOCK.UNLOCK busy other").await;
    server.is_empty().await;
    // Only the connection that asks is left.
    until(async || server.ask::<String>("CLIENT LIST").await.lines().count() == 1).await;
}

#[tokio::test]
async fn locks_that_are_closed_and_released() {
    let server = Server::start().await;
    let locks = server.locks();
    let holds = [locks.write("a").acquire().await.unwrap(), locks.read("b").acquire().await.unwrap()];
    locks.close_and_release().await.unwrap();
    assert!(server.is_free("a").await && server.is_free("b").await);
    holds.iter().for_each(|hold| assert!(matches!(hold.check(), Err(Error::NotHeld { .. }))));
}

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

#[test]
fn a_wait_goes_on_if_the_runtime_of_another_shuts_down() {
    let (first, second) = (runtime(), runtime());
    let server = second.block_on(Server::start());
    let locks = server.locks();
    let () = second.block_on(server.ask("SLOCK.LOCK k other 3600000"));
    for (runtime, waiters) in [(&first, 1), (&second, 2)] {
        let request = locks.write("k");
        runtime.spawn(async move { request.acquire().await?.release().await });
        second.block_on(until(async || server.info("k", "waiters").await == waiters));
    }
    first.shutdown_timeout(Duration::ZERO);
    let () = second.block_on(server.ask("SLOCK.UNLOCK k other"));
    second.block_on(server.is_empty());
}

#[test]
fn holds_of_a_runtime_that_has_shut_down() {
    let (first, second) = (runtime(), runtime());
    let server = second.block_on(Server::start());
    let locks = server.locks();
    let acquire = |key: &str| first.block_on(locks.write(key).ttl(LONG).acquire()).unwrap();
    let (dropped, released) = (acquire("dropped"), acquire("released"));
    first.shutdown_timeout(Duration::ZERO);
    second.block_on(async {
        released.extend(LONG).await.unwrap();
        released.release().await.unwrap();
        drop(dropped);
        server.is_empty().await;
    });
}
