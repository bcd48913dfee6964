//! What is asked of locks that were closed.

use std::pin::pin;
use std::time::Duration;

use slock_client::{Error, Locks, LocksOf, Mode, Quorum, Site};
use tokio::runtime::Builder;

use crate::proxy::Proxy;
use crate::server::{Server, until};

#[tokio::test]
async fn nothing_is_adopted_extended_or_renewed() {
    let server = Server::start().await;
    let locks = server.locks();
    let hold = locks.write("k").acquire().await.unwrap();
    locks.close().await;
    let token = hold.token().to_owned();
    assert!(matches!(locks.adopt("k", &token, Mode::Write).await, Err(Error::Closed)));
    assert!(matches!(locks.release("k", &token).await, Err(Error::Closed)));
    assert!(matches!(hold.extend(Duration::from_secs(60)).await, Err(Error::Closed)));
    assert!(matches!(hold.downgrade().await, Err(Error::Closed)));
    assert!(matches!(hold.upgrade(None).await, Err(Error::Closed)));
    assert_eq!(server.calls("slock.extend").await, 0);
    until(async || server.clients().await == 0).await;
}

#[tokio::test]
async fn an_upgrade_that_nobody_polls_ends() {
    let server = Server::start().await;
    let locks = server.locks();
    let hold = locks.read("k").ttl(Duration::from_secs(3600)).acquire().await.unwrap();
    let () = server.ask("SLOCK.RLOCK k other 3600000").await;
    let mut upgrade = pin!(hold.upgrade(None));
    tokio::select! {
        _ = &mut upgrade => panic!("the other still reads"),
        () = until(async || server.info("k", "waiters").await == 1) => {}
    }
    tokio::time::timeout(Duration::from_secs(60), locks.close()).await.expect("close waits for the ttl");
    assert!(matches!(upgrade.await, Err(Error::Closed)));
}

async fn releases_when_closed<S: Site>(server: &Server, locks: LocksOf<S>) {
    let hold = locks.write("k").acquire().await.unwrap();
    locks.close().await;
    assert!(hold.release().await.unwrap());
    assert!(server.is_free("k").await);
    until(async || server.clients().await == 0).await;
}

#[tokio::test]
async fn a_release_leaves_no_connection() {
    let server = Server::start().await;
    releases_when_closed(&server, server.locks()).await;
    releases_when_closed(&server, Quorum::new([server.client()])).await;
}

/// A program closes its locks while another of its tasks asks, and ends.
fn ends_while_it_asks<S: Site>(server: &Server, proxy: &Proxy, locks: LocksOf<S>) {
    let program = Builder::new_current_thread().enable_all().build().unwrap();
    program.block_on(async {
        locks.write("warm").acquire().await.unwrap().release().await.unwrap();
        proxy.hold_replies();
        let request = locks.write("k").ttl(Duration::from_secs(3600));
        tokio::spawn(async move { request.acquire().await });
        until(async || !server.is_free("k").await).await;
        locks.close().await;
        proxy.pass_replies();
    });
}

#[test]
fn what_is_asked_for_meanwhile_is_given_up() {
    let outside = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (server, proxy) = outside.block_on(async {
        let server = Server::start().await;
        let proxy = Proxy::start(&server).await;
        (server, proxy)
    });
    ends_while_it_asks(&server, &proxy, Locks::new(proxy.client()));
    outside.block_on(until(async || server.is_free("k").await));
    ends_while_it_asks(&server, &proxy, Quorum::new([proxy.client()]));
    outside.block_on(until(async || server.is_free("k").await));
}

#[tokio::test]
async fn an_acquisition_that_nobody_polls_keeps_nobody_waiting() {
    let server = Server::start().await;
    let locks = Locks::builder(server.client()).retry_for(Duration::from_millis(100)).build();
    let () = server.ask("SLOCK.LOCK k other 3600000").await;
    let request = locks.write("k");
    let mut waits = pin!(request.acquire());
    tokio::select! {
        _ = &mut waits => panic!("the other still holds it"),
        () = until(async || server.info("k", "waiters").await == 1) => {}
    }
    tokio::time::timeout(Duration::from_secs(60), locks.close())
        .await
        .expect("close waits for who is not polled");
    assert!(matches!(waits.await, Err(Error::Closed)));
    until(async || server.info("k", "waiters").await == 0).await;
}
