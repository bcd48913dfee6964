//! What is asked of locks that were closed.

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
    assert!(matches!(hold.extend(std::time::Duration::from_secs(60)).await, Err(Error::Closed)));
    assert!(matches!(hold.downgrade().await, Err(Error::Closed)));
    assert!(matches!(hold.upgrade(None).await, Err(Error::Closed)));
    assert_eq!(server.calls("slock.extend").await, 0);
    until(async || server.clients().await == 0).await;
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
