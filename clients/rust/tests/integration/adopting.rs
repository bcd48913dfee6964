//! A hold that is handed over by its token.

use std::time::Duration;

use slock_client::{Error, Locks, LocksOf, Mode, Quorum, Site};

use crate::server::{Server, until};

#[tokio::test]
async fn a_hold_is_handed_over_by_its_token() {
    let server = Server::start().await;
    let locks = server.locks();
    let hold = locks.write("k").token("theirs").acquire().await.unwrap();
    let fence = hold.fence();
    hold.hand_over().unwrap();
    let hold = locks.adopt("k", "theirs", Mode::Write).await.unwrap();
    assert_eq!(hold.fence(), fence);
    assert!(matches!(locks.adopt("k", "theirs", Mode::Read).await, Err(Error::NotHeld)));
    assert!(matches!(locks.adopt("k", "nobody", Mode::Write).await, Err(Error::NotHeld)));
    assert_eq!(server.info("k", "fence").await, fence);
    assert_eq!(locks.release("k", "theirs").await.unwrap(), 1);
    assert_eq!(locks.release("k", "theirs").await.unwrap(), 0);
    assert!(!hold.release().await.unwrap());
}

/// One command that takes nothing, where an extension and a new request could meet a release in between.
#[tokio::test]
async fn an_adoption_never_takes_a_free_lock() {
    let server = Server::start().await;
    let locks = server.locks();
    let () = server.ask("SLOCK.MLOCK 2 a b theirs 60000").await;
    drop(locks.adopt(&["a", "b"], "theirs", Mode::Write).await.unwrap());
    until(async || server.is_free("a").await).await;
    assert_eq!((server.calls("slock.mextend").await, server.calls("slock.mlock").await), (0, 2));
    for mode in [Mode::Write, Mode::Read] {
        assert!(matches!(locks.adopt("a", "theirs", mode).await, Err(Error::NotHeld)));
    }
    assert!(server.is_free("a").await && server.is_free("b").await);
}

#[tokio::test]
async fn what_was_handed_over_is_neither_renewed_nor_released() {
    let server = Server::start().await;
    let locks = server.locks();
    let hold = locks.write("k").ttl(Duration::from_millis(600)).acquire().await.unwrap();
    let view = hold.view();
    hold.hand_over().unwrap();
    assert!(matches!(view.check(), Err(Error::NotHeld)));
    locks.close().await;
    assert!(!server.is_free("k").await);
    assert_eq!(server.calls("slock.unlock").await, 1, "only to ask whether it may");
    until(async || server.is_free("k").await).await;
    assert_eq!(server.calls("slock.extend").await, 0);
}

#[tokio::test]
async fn nothing_of_an_adoption_without_a_majority_is_released() {
    let servers = [Server::start().await, Server::start().await, Server::start().await];
    let quorum = Quorum::new(servers.each_ref().map(Server::client));
    let () = servers[0].ask("SLOCK.LOCK k theirs 60000").await;
    assert!(matches!(quorum.adopt("k", "theirs", Mode::Write).await, Err(Error::NotHeld)));
    quorum.close().await;
    assert!(!servers[0].is_free("k").await);
}

async fn with_either<S: Site>(locks: &LocksOf<S>) {
    let hold = locks.write("k").ttl(Duration::from_secs(5)).acquire().await.unwrap();
    assert!(locks.read("k").try_acquire().await.unwrap().is_none());
    hold.extend(Duration::from_secs(20)).await.unwrap();
    let token = hold.token().to_owned();
    hold.hand_over().unwrap();
    let hold = locks.request("k", Mode::Write).token(token).adopt().await.unwrap();
    assert!(hold.release().await.unwrap());
    assert_eq!(locks.write("k").run(|view| async move { view.mode() }).await.unwrap(), Mode::Write);
    assert_eq!(locks.release("k", "nobody").await.unwrap(), 0);
    locks.close().await;
}

#[tokio::test]
async fn a_program_takes_a_server_or_a_quorum() {
    let server = Server::start().await;
    with_either(&Locks::new(server.client())).await;
    with_either(&Quorum::new([server.client()])).await;
    until(async || server.is_free("k").await).await;
}
