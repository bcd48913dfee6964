//! A dropped future leaves neither a hold nor a place in the queue, whatever it waited for.

use std::time::Duration;

use slock_client::{Error, Locks, Mode, Reason, Waiting};

use crate::proxy::Proxy;
use crate::server::{Server, until};

#[tokio::test]
async fn while_the_reply_to_the_request_is_on_its_way() {
    let server = Server::start().await;
    let proxy = Proxy::start(&server).await;
    let locks = Locks::new(proxy.client());
    locks.write("warm").acquire().await.unwrap().release().await.unwrap();
    proxy.hold_replies();
    for acquire in [true, false] {
        let request = locks.write("k");
        let task = tokio::spawn(async move {
            if acquire { request.acquire().await.map(Some) } else { request.try_acquire().await }
        });
        until(async || !server.is_free("k").await).await;
        task.abort();
        assert!(task.await.unwrap_err().is_cancelled());
        until(async || server.is_free("k").await).await;
    }
}

#[tokio::test]
async fn while_the_null_is_on_its_way() {
    let server = Server::start().await;
    let proxy = Proxy::start(&server).await;
    let locks = Locks::new(proxy.client());
    let hold = locks.write("k").acquire().await.unwrap();
    let waits_first = locks.write("k");
    let first = tokio::spawn(async move { waits_first.acquire().await });
    until(async || server.info("k", "waiters").await == 1).await;
    first.abort();
    until(async || server.info("k", "waiters").await == 0).await;
    // Now a channel is there, and the next request waits at once.
    proxy.hold_replies();
    let request = locks.write("k");
    let task = tokio::spawn(async move { request.acquire().await });
    until(async || server.info("k", "waiters").await == 1).await;
    task.abort();
    until(async || server.info("k", "waiters").await == 0).await;
    proxy.pass_replies();
    assert!(hold.release().await.unwrap());
    until(async || server.is_free("k").await).await;
}

#[tokio::test]
async fn while_it_waits() {
    for waiting in [Waiting::Notify, Waiting::Block] {
        let server = Server::start().await;
        let locks = Locks::builder(server.client()).waiting(waiting).build();
        let hold = locks.write("k").acquire().await.unwrap();
        for _ in 0..3 {
            let request = locks.write("k");
            let task = tokio::spawn(async move { request.acquire().await });
            until(async || server.info("k", "waiters").await == 1).await;
            task.abort();
            until(async || server.info("k", "waiters").await == 0).await;
        }
        assert!(hold.release().await.unwrap());
        assert!(server.is_free("k").await);
    }
}

#[tokio::test]
async fn while_the_message_of_the_grant_is_on_its_way() {
    for waiting in [Waiting::Notify, Waiting::Block] {
        let server = Server::start().await;
        let proxy = Proxy::start(&server).await;
        let locks = Locks::builder(proxy.client()).waiting(waiting).build();
        let () = server.ask("SLOCK.LOCK k other 60000").await;
        let request = locks.write("k");
        let task = tokio::spawn(async move { request.acquire().await });
        until(async || server.info("k", "waiters").await == 1).await;
        proxy.hold_replies();
        let () = server.ask("SLOCK.UNLOCK k other").await;
        until(async || server.info("k", "readers").await == 0 && !server.is_free("k").await).await;
        task.abort();
        until(async || server.is_free("k").await).await;
    }
}

#[tokio::test]
async fn while_the_server_does_not_answer() {
    let server = Server::start().await;
    let locks = server.locks();
    locks.write("warm").acquire().await.unwrap().release().await.unwrap();
    let paused = server.pause().await;
    let request = locks.write("k");
    let mut waits = Box::pin(request.acquire());
    // Long enough that a first attempt got no answer, and a second one was made on a new connection.
    tokio::time::timeout(Duration::from_millis(2500), &mut waits).await.unwrap_err();
    drop(waits);
    drop(paused);
    locks.close().await;
    assert!(server.is_free("k").await);
    assert_eq!(server.info("k", "waiters").await, 0);
}

#[tokio::test]
async fn at_any_moment() {
    let server = Server::start().await;
    for waiting in [Waiting::Notify, Waiting::Block] {
        let locks = Locks::builder(server.client()).waiting(waiting).build();
        let hold = locks.write("k").acquire().await.unwrap();
        let after = |microseconds| tokio::time::sleep(Duration::from_micros(microseconds));
        for microseconds in (0..2000).step_by(50) {
            let request = locks.read(&["k", "other"]);
            tokio::select! {
                _ = request.acquire() => panic!("another has the lock"),
                () = after(microseconds) => {}
            }
            let request = locks.write("free");
            tokio::select! {
                hold = request.acquire() => drop(hold),
                () = after(microseconds / 4) => {}
            }
        }
        hold.release().await.unwrap();
        locks.close().await;
        assert!(server.is_free("k").await && server.is_free("other").await && server.is_free("free").await);
    }
}

#[tokio::test]
async fn an_upgrade_that_is_dropped_reads_on() {
    let server = Server::start().await;
    let locks = server.locks();
    let hold = locks.read("k").acquire().await.unwrap();
    let other = locks.read("k").acquire().await.unwrap();
    let view = hold.view();
    let task = tokio::spawn(async move { view.upgrade(None).await });
    until(async || server.info("k", "waiters").await == 1).await;
    task.abort();
    until(async || server.info("k", "waiters").await == 0).await;
    assert!(other.release().await.unwrap());
    hold.check().unwrap();
    assert_eq!(hold.mode(), Mode::Read);
    assert_eq!(server.info("k", "readers").await, 1);
    assert!(hold.release().await.unwrap());
    assert!(server.is_free("k").await);
}

#[tokio::test]
async fn after_a_dropped_upgrade_the_server_tells_the_mode_and_refuses_another() {
    let server = Server::start().await;
    let proxy = Proxy::start(&server).await;
    let hold = Locks::new(proxy.client()).read("k").acquire().await.unwrap();
    proxy.hold_replies();
    let view = hold.view();
    let task = tokio::spawn(async move { view.upgrade(None).await });
    until(async || server.info("k", "fence").await > hold.fence()).await;
    task.abort();
    let _ = task.await;
    proxy.pass_replies();
    until(async || hold.mode() == Mode::Write).await;
    assert_eq!(hold.fence(), server.info("k", "fence").await);
    hold.downgrade().await.unwrap();
    match hold.upgrade(None).await {
        Err(Error::Refused(text)) => assert!(text.contains("REFUSED"), "{text}"),
        other => panic!("{other:?}"),
    }
    hold.check().unwrap();
    assert!(hold.release().await.unwrap());
    assert!(server.is_free("k").await);
}

/// Then the mode stays unknown: the hold is lost as soon as the server says that it does not have this fence.
#[tokio::test]
async fn a_dropped_upgrade_that_cannot_be_withdrawn() {
    let server = Server::start().await;
    let hold = server.locks().read("k").ttl(Duration::from_secs(600)).acquire().await.unwrap();
    let () = server.ask("SLOCK.RLOCK k other 3600000").await;
    let view = hold.view();
    let task = tokio::spawn(async move { view.upgrade(None).await });
    until(async || server.info("k", "waiters").await == 1).await;
    let () = server.ask("ACL SETUSER default -slock.cancel").await;
    task.abort();
    until(async || server.ask::<String>("INFO errorstats").await.contains("NOPERM:count=1")).await;
    let () = server.ask("SLOCK.RUNLOCK k other").await;
    until(async || server.info("k", "fence").await > hold.fence()).await;
    let () = server.ask("ACL SETUSER default +slock.cancel").await;
    let extends = hold.extend(Duration::from_secs(600));
    let extended = tokio::time::timeout(Duration::from_secs(60), extends).await.expect("it asks for ever");
    assert!(matches!(extended, Err(Error::Lost { reason: Reason::Gone, .. })));
    assert!(!hold.release().await.unwrap());
    assert!(server.is_free("k").await);
}

#[tokio::test]
async fn a_dropped_downgrade_leaves_no_writer() {
    let server = Server::start().await;
    let proxy = Proxy::start(&server).await;
    let hold = Locks::new(proxy.client()).write("k").acquire().await.unwrap();
    proxy.hold_replies();
    let view = hold.view();
    let downgrades = tokio::spawn(async move { view.downgrade().await });
    until(async || server.info("k", "readers").await == 1).await;
    downgrades.abort();
    assert!(downgrades.await.unwrap_err().is_cancelled());
    proxy.pass_replies();
    assert_eq!(hold.mode(), Mode::Read);
    assert_eq!(hold.downgrade().await.unwrap(), server.info("k", "fence").await);
    assert!(hold.release().await.unwrap());
    assert!(server.is_free("k").await);
}
