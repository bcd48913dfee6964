//! A new ttl counts from the moment it is sent, whatever becomes of the answer.

use std::time::{Duration, Instant};

use slock_client::{Error, Locks, Reason};

use crate::proxy::Proxy;
use crate::server::{Server, until};

const LONG: Duration = Duration::from_secs(3600);
const SHORT: Duration = Duration::from_millis(200);

#[tokio::test]
async fn work_ends_with_a_ttl_that_was_made_shorter() {
    let server = Server::start().await;
    let hold = server.locks().write("k").ttl(LONG).renew(false).acquire().await.unwrap();
    let view = hold.view();
    let work = tokio::spawn(async move { view.run(std::future::pending::<()>()).await });
    tokio::task::yield_now().await;
    hold.extend(SHORT).await.unwrap();
    assert!(matches!(work.await.unwrap(), Err(Error::Lost { reason: Reason::Expired, .. })));
}

#[tokio::test]
async fn a_shorter_ttl_counts_before_its_answer() {
    let server = Server::start().await;
    let proxy = Proxy::start(&server).await;
    let hold = Locks::new(proxy.client()).write("k").ttl(LONG).renew(false).acquire().await.unwrap();
    proxy.hold_replies();
    let view = hold.view();
    let extends = tokio::spawn(async move { view.extend(SHORT).await });
    until(async || server.is_free("k").await).await;
    assert!(matches!(hold.check(), Err(Error::Lost { reason: Reason::Expired, .. })));
    proxy.pass_replies();
    assert!(matches!(extends.await.unwrap(), Err(Error::Lost { reason: Reason::Expired, .. })));
}

#[tokio::test]
async fn the_watchdog_renews_after_a_dropped_extension() {
    let server = Server::start().await;
    let proxy = Proxy::start(&server).await;
    let hold = Locks::new(proxy.client()).write("k").ttl(LONG).acquire().await.unwrap();
    let ttl = Duration::from_secs(1);
    proxy.hold_replies();
    let view = hold.view();
    let extends = tokio::spawn(async move { view.extend(ttl).await });
    until(async || server.calls("slock.extend").await == 1).await;
    extends.abort();
    proxy.pass_replies();
    assert!(extends.await.unwrap_err().is_cancelled());
    // In time for the ttl of the extension: it may be carried out late.
    until(async || server.calls("slock.extend").await > 4).await;
    assert!(hold.valid_until() <= Instant::now() + ttl);
    hold.check().unwrap();
    assert!(hold.release().await.unwrap());
}

#[tokio::test]
async fn a_late_answer_leaves_time_for_a_renewal() {
    let server = Server::start().await;
    let proxy = Proxy::start(&server).await;
    let hold = Locks::new(proxy.client()).write("k").ttl(LONG).acquire().await.unwrap();
    let ttl = Duration::from_millis(1500);
    proxy.hold_replies();
    let view = hold.view();
    let extends = tokio::spawn(async move { view.extend(ttl).await });
    tokio::time::sleep(ttl * 3 / 4).await;
    proxy.pass_replies();
    extends.await.unwrap().unwrap();
    until(async || server.calls("slock.extend").await > 3).await;
    hold.check().unwrap();
    assert!(hold.release().await.unwrap());
}
