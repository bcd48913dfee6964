//! What is asked of locks that were closed.

use std::pin::pin;
use std::time::Duration;

use slock_client::{Error, Mode};

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

#[tokio::test]
async fn a_release_leaves_no_connection() {
    let server = Server::start().await;
    let locks = server.locks();
    let hold = locks.write("k").acquire().await.unwrap();
    locks.close().await;
    assert!(hold.release().await.unwrap());
    assert!(server.is_free("k").await);
    until(async || server.clients().await == 0).await;
}
