//! A command that got no answer, and is executed after commands that were sent later.

use std::time::{Duration, Instant};

use slock_client::{Error, Hold, Locks, Mode};

use crate::proxy::Proxy;
use crate::server::{Server, until};

const LONG: Duration = Duration::from_secs(3600);
const SHORT: Duration = Duration::from_secs(9);

/// The end of the hold on the server, not before which the hold may count as valid.
async fn end_on_the_server(server: &Server, hold: &Hold) -> Instant {
    let left: u64 = server.ask(&format!("SLOCK.PTTL k {}", hold.token())).await;
    Instant::now() + Duration::from_millis(left)
}

async fn deliver(proxy: &Proxy, server: &Server, command: &str) {
    let calls = server.calls(command).await;
    proxy.deliver();
    until(async || server.calls(command).await > calls).await;
}

#[tokio::test]
async fn a_late_request_that_was_given_up_is_refused() {
    let server = Server::start().await;
    let proxy = Proxy::start(&server).await;
    let locks = Locks::new(proxy.client());
    locks.write("warm").acquire().await.unwrap().release().await.unwrap();
    let before = server.calls("slock.munlock").await;
    proxy.keep_from("SLOCK.LOCK");
    let request = locks.write("k").ttl(LONG).wait(Duration::from_millis(50));
    assert!(matches!(request.acquire().await, Err(Error::TimedOut { source: Some(_), .. })));
    // The request is withdrawn over another connection.
    until(async || server.calls("slock.munlock").await > before).await;
    deliver(&proxy, &server, "slock.lock").await;
    assert!(server.is_free("k").await);
}

#[tokio::test]
async fn a_late_copy_of_a_granted_request_is_refused_after_the_release() {
    let server = Server::start().await;
    let proxy = Proxy::start(&server).await;
    let locks = Locks::new(proxy.client());
    locks.write("warm").acquire().await.unwrap().release().await.unwrap();
    proxy.keep_from("SLOCK.LOCK");
    let hold = locks.write("k").ttl(LONG).wait(LONG).acquire().await.unwrap();
    assert!(proxy.has_kept());
    assert!(hold.release().await.unwrap());
    deliver(&proxy, &server, "slock.lock").await;
    assert!(server.is_free("k").await);
}

#[tokio::test]
async fn a_late_copy_with_a_given_token_is_not_refused() {
    let server = Server::start().await;
    let request = server.locks().write("k").token("mine");
    let () = server.ask("SLOCK.LOCK k other 60000").await;
    let short = request.clone().wait(Duration::from_millis(20));
    assert!(matches!(short.acquire().await, Err(Error::TimedOut { .. })));
    let waits = request.clone();
    let waits = tokio::spawn(async move { waits.acquire().await });
    until(async || server.info("k", "waiters").await == 1).await;
    waits.abort();
    until(async || server.info("k", "waiters").await == 0).await;
    let () = server.ask("SLOCK.UNLOCK k other").await;
    assert!(request.acquire().await.unwrap().release().await.unwrap());
}

#[tokio::test]
async fn a_late_renewal_ends_no_hold_that_was_extended() {
    let server = Server::start().await;
    let proxy = Proxy::start(&server).await;
    let hold = Locks::new(proxy.client()).write("k").ttl(SHORT).acquire().await.unwrap();
    proxy.keep_from("SLOCK.EXTEND");
    until(async || proxy.has_kept()).await;
    // The watchdog gives the connection up, so that nothing else is kept.
    until(async || server.calls("slock.extend").await > 0).await;
    hold.extend(LONG).await.unwrap();
    let valid_until = hold.valid_until();
    deliver(&proxy, &server, "slock.extend").await;
    assert!(hold.valid_until() + Duration::from_millis(1) >= valid_until);
    assert!(hold.valid_until() <= end_on_the_server(&server, &hold).await);
    assert!(hold.release().await.unwrap());
}

#[tokio::test]
async fn a_late_downgrade_ends_no_later_upgrade() {
    let server = Server::start().await;
    let proxy = Proxy::start(&server).await;
    let hold = Locks::new(proxy.client()).write("k").ttl(LONG).renew(false).acquire().await.unwrap();
    proxy.keep_from("SLOCK.DOWNGRADE");
    hold.downgrade().await.unwrap();
    assert!(proxy.has_kept());
    let fence = hold.upgrade(None).await.unwrap();
    deliver(&proxy, &server, "slock.downgrade").await;
    assert_eq!((server.info("k", "readers").await, server.info("k", "fence").await), (0, fence));
    assert_eq!((hold.mode(), hold.fence()), (Mode::Write, fence));
    assert!(hold.release().await.unwrap());
    assert!(server.is_free("k").await);
}

/// The server refuses no downgrade: so one that was dropped is brought to its end, and a late copy does no harm.
#[tokio::test]
async fn a_late_downgrade_that_was_dropped_leaves_no_writer() {
    let server = Server::start().await;
    let proxy = Proxy::start(&server).await;
    let hold = Locks::new(proxy.client()).write("k").ttl(LONG).renew(false).acquire().await.unwrap();
    proxy.keep_from("SLOCK.DOWNGRADE");
    let view = hold.view();
    let downgrades = tokio::spawn(async move { view.downgrade().await });
    until(async || proxy.has_kept()).await;
    downgrades.abort();
    let _ = downgrades.await;
    assert_eq!(hold.mode(), Mode::Read);
    until(async || server.info("k", "readers").await == 1).await;
    until(async || server.info("k", "fence").await == hold.fence()).await;
    deliver(&proxy, &server, "slock.downgrade").await;
    assert_eq!((server.info("k", "fence").await, hold.mode()), (hold.fence(), Mode::Read));
    assert!(hold.release().await.unwrap());
    assert!(server.is_free("k").await);
}

#[tokio::test]
async fn a_late_release_ends_no_later_hold_of_a_given_token() {
    let server = Server::start().await;
    let proxy = Proxy::start(&server).await;
    let request = Locks::new(proxy.client()).write("k").token("mine").ttl(LONG);
    let hold = request.acquire().await.unwrap();
    proxy.keep_from("SLOCK.UNLOCK");
    assert!(hold.release().await.unwrap());
    assert!(proxy.has_kept());
    let hold = request.acquire().await.unwrap();
    deliver(&proxy, &server, "slock.unlock").await;
    assert_eq!(server.info("k", "fence").await, hold.fence());
    assert!(hold.release().await.unwrap());
}
