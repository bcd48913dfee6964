//! A command that got no answer, and is executed after commands that were sent later.

use std::time::{Duration, Instant};

use slock_client::{Error, Hold, Locks, Mode, Quorum};

use crate::proxy::Proxy;
use crate::server::{Server, until};

const LONG: Duration = Duration::from_secs(3600);
const SHORT: Duration = Duration::from_secs(9);

/// The end of the hold on the server, not before which the hold may count as valid.
async fn end_on_the_server(server: &Server, hold: &Hold) -> Instant {
    let left: u64 = server.ask(&format!("SLOCK.PTTL k {}", hold.token())).await;
    Instant::now() + Duration::from_millis(left)
}

async fn is_executed(server: &Server, command: &str, former: u64) {
    until(async || server.calls(command).await > former).await;
}

#[tokio::test]
async fn a_late_renewal_ends_no_hold_that_was_extended() {
    let server = Server::start().await;
    let proxy = Proxy::start(&server).await;
    let hold = Locks::new(proxy.client()).write("k").ttl(SHORT).acquire().await.unwrap();
    proxy.keep_from("SLOCK.EXTEND");
    until(async || proxy.has_kept()).await;
    hold.extend(LONG).await.unwrap();
    let calls = server.calls("slock.extend").await;
    proxy.deliver();
    is_executed(&server, "slock.extend", calls).await;
    assert!(hold.valid_until() <= end_on_the_server(&server, &hold).await);
    // The watchdog renews in time for the ttl of the late renewal.
    let calls = server.calls("slock.extend").await;
    is_executed(&server, "slock.extend", calls).await;
    hold.check().unwrap();
    assert!(hold.release().await.unwrap());
}

#[tokio::test]
async fn an_extension_whose_future_was_dropped_may_come_late() {
    let server = Server::start().await;
    let proxy = Proxy::start(&server).await;
    let hold = Locks::new(proxy.client()).write("k").ttl(LONG).renew(false).acquire().await.unwrap();
    proxy.keep_from("SLOCK.EXTEND");
    let view = hold.view();
    let extends = tokio::spawn(async move { view.extend(10 * SHORT).await });
    until(async || proxy.has_kept()).await;
    extends.abort();
    assert!(extends.await.unwrap_err().is_cancelled());
    // The first one gets no answer, since the connection delivers nothing. A new connection is taken.
    hold.extend(LONG).await.unwrap();
    let calls = server.calls("slock.extend").await;
    proxy.deliver();
    is_executed(&server, "slock.extend", calls).await;
    assert!(hold.valid_until() <= Instant::now() + 10 * SHORT);
}

#[tokio::test]
async fn a_late_acquisition_ends_no_hold_that_was_extended() {
    let server = Server::start().await;
    let proxy = Proxy::start(&server).await;
    let locks = Locks::new(proxy.client());
    proxy.keep_from("SLOCK.LOCK");
    let hold = locks.write("k").ttl(10 * SHORT).acquire().await.unwrap();
    assert!(proxy.has_kept());
    hold.extend(LONG).await.unwrap();
    let calls = server.calls("slock.lock").await;
    proxy.deliver();
    is_executed(&server, "slock.lock", calls).await;
    assert!(hold.valid_until() <= end_on_the_server(&server, &hold).await);
    assert!(hold.release().await.unwrap());
}

#[tokio::test]
async fn a_late_upgrade_ends_no_hold_that_was_extended() {
    let server = Server::start().await;
    let proxy = Proxy::start(&server).await;
    let hold = Locks::new(proxy.client()).read("k").ttl(10 * SHORT).acquire().await.unwrap();
    proxy.keep_from("SLOCK.UPGRADE");
    hold.upgrade(None).await.unwrap();
    assert!(proxy.has_kept());
    hold.extend(LONG).await.unwrap();
    let calls = server.calls("slock.upgrade").await;
    proxy.deliver();
    is_executed(&server, "slock.upgrade", calls).await;
    assert!(hold.valid_until() <= end_on_the_server(&server, &hold).await);
}

#[tokio::test]
async fn a_late_renewal_on_one_server_of_a_quorum_ends_no_hold_that_was_extended() {
    let (server, other) = (Server::start().await, Server::start().await);
    let proxy = Proxy::start(&server).await;
    let quorum = Quorum::new([proxy.client(), other.client()]);
    let hold = quorum.write("k").ttl(SHORT).acquire().await.unwrap();
    proxy.keep_from("SLOCK.EXTEND");
    until(async || proxy.has_kept()).await;
    until(async || hold.extend(LONG).await.is_ok()).await;
    let calls = server.calls("slock.extend").await;
    proxy.deliver();
    is_executed(&server, "slock.extend", calls).await;
    assert!(hold.valid_until() <= Instant::now() + SHORT);
    assert!(hold.release().await);
}

#[tokio::test]
async fn after_a_downgrade_without_an_answer_there_is_no_upgrade() {
    let server = Server::start().await;
    let proxy = Proxy::start(&server).await;
    let hold = Locks::new(proxy.client()).write("k").acquire().await.unwrap();
    proxy.keep_from("SLOCK.DOWNGRADE");
    hold.downgrade().await.unwrap();
    assert!(proxy.has_kept());
    match hold.upgrade(None).await {
        Err(Error::WrongMode(text)) => assert!(text.contains("may still be carried out"), "{text}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(server.calls("slock.upgrade").await, 0);
    let calls = server.calls("slock.downgrade").await;
    proxy.deliver();
    is_executed(&server, "slock.downgrade", calls).await;
    assert_eq!(hold.mode(), Mode::Read);
    hold.check().unwrap();
    assert!(hold.release().await.unwrap());
}

#[tokio::test]
async fn after_a_dropped_downgrade_there_is_no_upgrade() {
    let server = Server::start().await;
    let proxy = Proxy::start(&server).await;
    let hold = Locks::new(proxy.client()).write("k").acquire().await.unwrap();
    proxy.keep_from("SLOCK.DOWNGRADE");
    let view = hold.view();
    let downgrades = tokio::spawn(async move { view.downgrade().await });
    until(async || proxy.has_kept()).await;
    downgrades.abort();
    assert!(downgrades.await.unwrap_err().is_cancelled());
    assert!(matches!(hold.upgrade(None).await, Err(Error::WrongMode(_))));
}
