//! A connection that is cut after the server executed a command, and before its reply.

use std::time::Duration;

use slock_client::{Error, Locks, Mode};

use crate::proxy::Proxy;
use crate::server::{Server, until};

#[tokio::test]
async fn an_acquisition_ends_with_the_hold_and_its_fence() {
    let server = Server::start().await;
    let proxy = Proxy::start(&server).await;
    let locks = Locks::new(proxy.client());
    locks.write("warm").acquire().await.unwrap().release().await.unwrap();
    for acquire in [true, false] {
        proxy.hold_replies();
        let request = locks.write("k");
        let task = tokio::spawn(async move {
            if acquire { request.acquire().await } else { request.try_acquire().await.map(Option::unwrap) }
        });
        until(async || !server.is_free("k").await).await;
        let fence = server.info("k", "fence").await;
        proxy.cut();
        let hold = task.await.unwrap().unwrap();
        assert_eq!(hold.fence(), fence);
        assert!(hold.release().await.unwrap());
        assert!(server.is_free("k").await);
    }
}

#[tokio::test]
async fn a_wait_keeps_its_place() {
    let server = Server::start().await;
    let proxy = Proxy::start(&server).await;
    let locks = Locks::new(proxy.client());
    let () = server.ask("SLOCK.LOCK k other 60000").await;
    let request = locks.write("k");
    let task = tokio::spawn(async move { request.acquire().await });
    until(async || server.info("k", "waiters").await == 1).await;
    let asked = server.calls("slock.lock").await;
    proxy.cut();
    until(async || server.calls("slock.lock").await > asked).await;
    until(async || server.info("k", "waiters").await == 1).await;
    let () = server.ask("SLOCK.UNLOCK k other").await;
    assert!(task.await.unwrap().unwrap().release().await.unwrap());
    assert!(server.is_free("k").await);
}

#[tokio::test]
async fn a_release_tells_that_the_first_attempt_did_it() {
    let server = Server::start().await;
    let proxy = Proxy::start(&server).await;
    let locks = Locks::new(proxy.client());
    let hold = locks.write("k").acquire().await.unwrap();
    proxy.hold_replies();
    let task = tokio::spawn(hold.release());
    until(async || server.is_free("k").await).await;
    proxy.cut();
    assert!(task.await.unwrap().unwrap());
}

#[tokio::test]
async fn a_release_is_not_believed_when_the_hold_was_gone_before() {
    let server = Server::start().await;
    let proxy = Proxy::start(&server).await;
    let locks = Locks::new(proxy.client());
    let hold = locks.write("k").renew(false).ttl(Duration::from_millis(50)).acquire().await.unwrap();
    hold.lost().await;
    proxy.hold_replies();
    let calls = server.calls("slock.unlock").await;
    let task = tokio::spawn(hold.release());
    until(async || server.calls("slock.unlock").await > calls).await;
    proxy.cut();
    assert!(!task.await.unwrap().unwrap());
}

#[tokio::test]
async fn an_upgrade_gives_the_fence_of_the_server() {
    let server = Server::start().await;
    let proxy = Proxy::start(&server).await;
    let locks = Locks::new(proxy.client());
    let hold = locks.read("k").acquire().await.unwrap();
    proxy.hold_replies();
    let view = hold.view();
    let task = tokio::spawn(async move { view.upgrade(None).await });
    until(async || server.info("k", "fence").await > hold.fence()).await;
    proxy.cut();
    let fence = task.await.unwrap().unwrap();
    assert_eq!(server.info("k", "fence").await, fence);
    assert_eq!(hold.mode(), Mode::Write);
}

#[tokio::test]
async fn a_server_that_is_away_is_an_error_after_a_while() {
    let mut server = Server::start().await;
    let locks = Locks::builder(server.client()).retry_for(Duration::from_millis(100)).build();
    let hold = locks.write("k").acquire().await.unwrap();
    server.kill();
    assert!(matches!(locks.write("k").try_acquire().await, Err(Error::TimedOut { source: Some(_), .. })));
    let short = locks.write("k").wait(Duration::from_millis(100));
    assert!(matches!(short.acquire().await, Err(Error::TimedOut { .. })));
    assert!(matches!(hold.release().await, Err(Error::TimedOut { source: Some(_), .. })));
}

/// The base library takes the message for a reply, and gives each later reply to the wrong command.
#[tokio::test]
async fn no_reply_counts_after_the_end_of_a_subscription() {
    let server = Server::start().await;
    let proxy = Proxy::start(&server).await;
    let locks = Locks::new(proxy.client());
    locks.write("warm").acquire().await.unwrap().release().await.unwrap();
    proxy.hold_replies();
    let requests = (locks.write("one"), locks.write("other"));
    let task = tokio::spawn(async move { tokio::join!(requests.0.try_acquire(), requests.1.try_acquire()) });
    until(async || !server.is_free("one").await && !server.is_free("other").await).await;
    proxy.insert_before_a_reply(b">3\r\n$12\r\nsunsubscribe\r\n$7\r\nchannel\r\n:0\r\n");
    proxy.pass_replies();
    let (one, other) = task.await.unwrap();
    for (key, hold) in [("one", one), ("other", other)] {
        let hold = hold.unwrap().expect("nobody else has the lock");
        assert_eq!(hold.fence(), server.info(key, "fence").await);
        assert!(hold.release().await.unwrap());
    }
}

/// Callers who have less time than it takes to connect do not keep each other from a connection.
#[tokio::test]
async fn an_attempt_to_connect_goes_on_when_its_caller_has_gone() {
    let server = Server::start().await;
    let proxy = Proxy::start(&server).await;
    let locks = Locks::new(proxy.client());
    // Those of the library come first, and the one that asks last.
    let first_connection =
        async || server.ask::<String>("CLIENT LIST").await.split(' ').next().unwrap().to_owned();
    proxy.hold_replies();
    let request = locks.write("k");
    let caller = tokio::spawn(async move { request.acquire().await });
    until(async || server.clients().await == 1).await;
    let begun = first_connection().await;
    caller.abort();
    assert!(caller.await.unwrap_err().is_cancelled());
    let request = locks.write("k");
    let next_caller = tokio::spawn(async move { request.acquire().await });
    proxy.pass_replies();
    let hold = next_caller.await.unwrap().unwrap();
    assert_eq!(first_connection().await, begun);
    hold.release().await.unwrap();
}
