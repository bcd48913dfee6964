//! A token that the caller gave: no release ends a later hold of the same token.

use std::time::Duration;

use slock_client::{Locks, Mode, Quorum};

use crate::server::{Server, until};

const TIMES: usize = 30;
const SHORT: Duration = Duration::from_millis(30);

async fn released(server: &Server, former: u64) {
    until(async || server.calls("slock.unlock").await > former).await;
}

#[tokio::test]
async fn an_acquisition_waits_for_the_release_of_a_dropped_hold() {
    let server = Server::start().await;
    let locks = server.locks();
    let request = locks.write("k").token("t");
    for number in 0..TIMES {
        let releases = server.calls("slock.unlock").await;
        drop(request.acquire().await.unwrap());
        let hold = match number % 4 {
            0 => request.acquire().await.unwrap(),
            1 => request.clone().wait(Duration::ZERO).acquire().await.unwrap(),
            2 => request.try_acquire().await.unwrap().unwrap(),
            _ => locks.write(["other", "k"]).token("t").acquire().await.unwrap(),
        };
        released(&server, releases).await;
        assert!(!server.is_free("k").await);
        assert!(hold.release().await.unwrap());
    }
}

#[tokio::test]
async fn an_adoption_waits_for_the_release_of_a_dropped_hold() {
    let server = Server::start().await;
    let locks = server.locks();
    for _ in 0..TIMES {
        drop(locks.write("k").token("t").acquire().await.unwrap());
        assert!(locks.adopt("k", "t", Mode::Write).await.is_err());
    }
}

#[tokio::test]
async fn an_acquisition_waits_for_the_withdrawal_of_a_request_that_was_given_up() {
    let server = Server::start().await;
    let locks = server.locks();
    let request = locks.write("k").token("t");
    for _ in 0..TIMES {
        let () = server.ask("SLOCK.LOCK k other 60000").await;
        let mut waits = Box::pin(request.acquire());
        tokio::select! {
            _ = &mut waits => panic!("another has the lock"),
            () = until(async || server.info("k", "waiters").await == 1) => {}
        }
        let () = server.ask("SLOCK.UNLOCK k other").await;
        let releases = server.calls("slock.unlock").await;
        drop(waits);
        let hold = request.acquire().await.unwrap();
        released(&server, releases).await;
        assert!(!server.is_free("k").await);
        assert!(hold.release().await.unwrap());
    }
}

#[tokio::test]
async fn an_acquisition_waits_for_a_dropped_release() {
    let server = Server::start().await;
    let request = server.locks().write("k").token("t");
    for _ in 0..TIMES {
        let releases = server.calls("slock.unlock").await;
        let hold = request.acquire().await.unwrap();
        tokio::select! {
            biased;
            _ = hold.release() => panic!("no answer can be there yet"),
            () = std::future::ready(()) => {}
        }
        let hold = request.acquire().await.unwrap();
        released(&server, releases).await;
        assert!(!server.is_free("k").await);
        assert!(hold.release().await.unwrap());
    }
}

#[tokio::test]
async fn a_lost_hold_is_not_released() {
    let server = Server::start().await;
    let locks = server.locks();
    let request = locks.write("k").token("t").renew(false);
    for drops in [true, false] {
        let lost = request.clone().ttl(SHORT).acquire().await.unwrap();
        lost.lost().await;
        let later = request.acquire().await.unwrap();
        let releases = server.calls("slock.unlock").await;
        if drops {
            drop(lost);
        } else {
            assert!(!lost.release().await.unwrap());
        }
        assert!(later.release().await.unwrap());
        assert_eq!(server.calls("slock.unlock").await, releases + 1);
    }
}

/// With a token that the library drew, the server is told: it may count longer than the client.
#[tokio::test]
async fn a_lost_hold_with_a_token_that_was_drawn_is_released() {
    let server = Server::start().await;
    let locks: Locks = server.locks();
    let lost = locks.write("k").renew(false).ttl(SHORT).acquire().await.unwrap();
    lost.lost().await;
    drop(lost);
    locks.close().await;
    assert_eq!(server.calls("slock.unlock").await, 1);
}

#[tokio::test]
async fn an_acquisition_of_a_quorum_waits_for_the_release_of_a_dropped_hold() {
    let server = Server::start().await;
    let quorum = Quorum::new([server.client()]);
    let request = quorum.write("k").token("t");
    for _ in 0..TIMES {
        let releases = server.calls("slock.unlock").await;
        drop(request.acquire().await.unwrap());
        let hold = request.try_acquire().await.unwrap().unwrap();
        released(&server, releases).await;
        assert!(!server.is_free("k").await);
        assert!(hold.release().await);
    }
}

#[tokio::test]
async fn a_lost_hold_of_a_quorum_is_not_released() {
    let server = Server::start().await;
    let quorum = Quorum::new([server.client()]);
    let request = quorum.write("k").token("t").renew(false);
    for drops in [true, false] {
        let lost = request.clone().ttl(SHORT).acquire().await.unwrap();
        lost.lost().await;
        let later = request.acquire().await.unwrap();
        let releases = server.calls("slock.unlock").await;
        if drops {
            drop(lost);
        } else {
            assert!(!lost.release().await);
        }
        assert!(later.release().await);
        assert_eq!(server.calls("slock.unlock").await, releases + 1);
    }
}
