//! What is left of locks that are closed, and of runtimes that shut down: nothing.

use std::pin::pin;
use std::time::Duration;

use futures_util::FutureExt;
use slock_client::{Error, Locks, Mode, Quorum, Reason};
use tokio::runtime::{Builder, Runtime};

use crate::server::{Server, until};

const LONG: Duration = Duration::from_secs(3600);

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
async fn close_waits_for_a_release_that_is_under_way() {
    let server = Server::start().await;
    let locks = server.locks();
    let hold = locks.write("k").ttl(LONG).acquire().await.unwrap();
    let () = server.ask("CLIENT PAUSE 500 WRITE").await;
    let release = tokio::spawn(async move { hold.release().await });
    tokio::task::yield_now().await; // until it has sent the release
    locks.close().await;
    assert!(release.is_finished(), "close does not wait");
    release.await.unwrap().unwrap();
}

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

#[test]
fn waits_go_on_if_the_runtime_of_another_shuts_down() {
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
    second.block_on(async {
        let () = server.ask("SLOCK.UNLOCK k other").await;
        server.is_empty().await;
        let hold = locks.write("k").wait(LONG / 360).acquire().await.unwrap();
        let request = locks.write("k");
        let waits = tokio::spawn(async move { request.acquire().await });
        until(async || server.info("k", "waiters").await == 1).await; // by a message, so it does not poll
        hold.release().await.unwrap();
        waits.await.unwrap().unwrap().release().await.unwrap();
    });
}

#[test]
fn holds_of_a_runtime_that_has_shut_down() {
    let (first, second) = (runtime(), runtime());
    let server = second.block_on(Server::start());
    let locks = server.locks();
    let quorum = Locks::new(Quorum::new([server.client()]));
    let acquire = |locks: &Locks, key| first.block_on(locks.write(key).ttl(LONG).acquire()).unwrap();
    let (dropped, released) = (acquire(&locks, "dropped"), acquire(&locks, "released"));
    let (of_quorum, opening) = (acquire(&quorum, "quorum"), server.locks());
    let _ = first.block_on(async { opening.write("k").acquire().now_or_never() });
    first.shutdown_timeout(Duration::ZERO);
    second.block_on(async {
        released.extend(LONG).await.unwrap();
        released.release().await.unwrap();
        of_quorum.release().await.unwrap();
        drop(dropped);
        opening.write("k").acquire().await.unwrap().release().await.unwrap();
        server.is_empty().await;
    });
}
