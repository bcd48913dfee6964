//! Every call ends at most one second after its limit, whatever the server does.

use std::time::{Duration, Instant};

use slock_client::{Error, Locks, Poll, Quorum, Waiting};

use crate::server::{Server, free_port, until};

const WAIT: Duration = Duration::from_millis(300);
const SECOND: Duration = Duration::from_secs(1);

fn all_ways_to_wait() -> [Waiting; 3] {
    [Waiting::Notify, Waiting::Block, Waiting::Poll(Poll::constant(Duration::from_millis(10)))]
}

fn timed_out<T: std::fmt::Debug>(result: Result<T, Error>) {
    assert!(matches!(result, Err(Error::TimedOut { source: Some(_), .. })), "{result:?}");
}

/// Ends at most a second after its limit, and not before it.
async fn takes<T>(limit: Duration, call: impl Future<Output = T>) -> T {
    let start = Instant::now();
    let result = call.await;
    let elapsed = start.elapsed();
    assert!(elapsed >= limit && elapsed <= limit + SECOND, "{elapsed:?}");
    result
}

#[tokio::test]
async fn a_request_at_a_silent_server() {
    let server = Server::start().await;
    for waiting in all_ways_to_wait() {
        let locks = Locks::builder(server.client()).waiting(waiting).retry_for(2 * WAIT).build();
        locks.write("warm").acquire().await.unwrap().release().await.unwrap();
        let paused = server.pause().await;
        for wait in [Duration::ZERO, WAIT] {
            timed_out(takes(wait, locks.write("k").wait(wait).acquire()).await);
        }
        timed_out(takes(2 * WAIT, locks.write("k").acquire()).await);
        timed_out(takes(2 * WAIT, locks.write("k").try_acquire()).await);
        drop(paused);
        locks.close().await;
        until(async || server.is_free("k").await).await;
    }
}

#[tokio::test]
async fn a_wait_during_which_the_server_falls_silent() {
    let server = Server::start().await;
    for waiting in all_ways_to_wait() {
        let () = server.ask("SLOCK.LOCK k other 60000").await;
        let locks = Locks::builder(server.client()).waiting(waiting.clone()).build();
        let request = locks.write("k").wait(SECOND);
        let waits = tokio::spawn(async move { takes(SECOND, request.acquire()).await });
        let asked = server.calls("slock.lock").await;
        if let Waiting::Poll(_) = waiting {
            until(async || server.calls("slock.lock").await > asked).await;
        } else {
            until(async || server.info("k", "waiters").await == 1).await;
        }
        let paused = server.pause().await;
        assert!(matches!(waits.await.unwrap(), Err(Error::TimedOut { .. })));
        drop(paused);
        locks.close().await;
        until(async || server.info("k", "waiters").await == 0).await;
        let () = server.ask("SLOCK.UNLOCK k other").await;
    }
}

/// Confirming the validity of a hold that was granted after a long wait is within the limit too.
#[tokio::test]
async fn a_server_that_falls_silent_before_the_hold_is_confirmed() {
    let server = Server::start().await;
    let proxy = crate::proxy::Proxy::start(&server).await;
    let locks = Locks::new(proxy.client());
    let () = server.ask("SLOCK.LOCK k other 700").await;
    proxy.keep_from("SLOCK.EXTEND");
    let request = locks.write("k").ttl(Duration::from_millis(1500)).renew(false).wait(SECOND);
    timed_out(takes(SECOND, request.acquire()).await);
    assert!(proxy.has_kept());
}

#[tokio::test]
async fn calls_for_a_hold_at_a_silent_server() {
    let server = Server::start().await;
    let locks = Locks::builder(server.client()).retry_for(WAIT).build();
    let hold = locks.write("k").renew(false).acquire().await.unwrap();
    let reader = locks.read("r").renew(false).acquire().await.unwrap();
    let paused = server.pause().await;
    timed_out(takes(WAIT, hold.extend(SECOND)).await);
    timed_out(takes(WAIT, reader.upgrade(None)).await);
    timed_out(takes(WAIT, hold.downgrade()).await);
    timed_out(takes(WAIT, locks.info("k")).await);
    timed_out(takes(WAIT, locks.queues()).await);
    timed_out(takes(WAIT, locks.release("k", "t")).await);
    timed_out(takes(WAIT, locks.adopt("k", "t", slock_client::Mode::Write)).await);
    timed_out(takes(WAIT, hold.release()).await);
    drop(paused);
    until(async || server.is_free("k").await).await;
}

/// Each server of a quorum has a twentieth of the ttl.
#[tokio::test]
async fn a_long_ttl_at_a_silent_quorum() {
    let server = Server::start().await;
    let quorum = Quorum::builder([server.client()]).retry_for(WAIT).build();
    let ttl = Duration::from_secs(3600);
    let request = quorum.write("k").ttl(ttl);
    let hold = request.acquire().await.unwrap();
    let _paused = server.pause().await;
    let adopting = request.clone().token(hold.token());
    assert!(matches!(takes(WAIT, request.acquire()).await, Err(Error::QuorumMissed(_))));
    assert!(matches!(takes(WAIT, request.try_acquire()).await, Err(Error::QuorumMissed(_))));
    assert!(matches!(takes(WAIT, adopting.adopt()).await, Err(Error::QuorumMissed(_))));
    assert!(matches!(takes(WAIT, hold.extend(ttl)).await, Err(Error::QuorumMissed(_))));
    assert!(matches!(takes(WAIT, hold.release()).await, Err(Error::QuorumMissed(_))));
}

#[tokio::test]
async fn a_request_without_a_wait_where_nobody_listens() {
    let client = redis::Client::open(format!("redis://127.0.0.1:{}/", free_port())).unwrap();
    for waiting in all_ways_to_wait() {
        let locks = Locks::builder(client.clone()).waiting(waiting).retry_for(WAIT).build();
        let start = Instant::now();
        timed_out(locks.write("k").acquire().await);
        assert!(start.elapsed() <= WAIT + SECOND);
        // Nothing was sent, so nothing is to be given up.
        locks.close().await;
        assert!(start.elapsed() <= WAIT + SECOND);
    }
}

#[tokio::test]
async fn a_wait_survives_an_outage_for_a_while() {
    for waiting in [Waiting::Notify, Waiting::Block] {
        let mut server = Server::start().await;
        let builder = Locks::builder(server.client()).waiting(waiting).retry_for(Duration::from_millis(1));
        let locks = builder.retry_wait_for(SECOND).build();
        locks.write("warm").acquire().await.unwrap().release().await.unwrap();
        let () = server.ask("SLOCK.LOCK k other 60000").await;
        let request = locks.write("k");
        let waits = tokio::spawn(async move { request.acquire().await });
        until(async || server.info("k", "waiters").await == 1).await;
        let start = Instant::now();
        server.kill();
        timed_out(waits.await.unwrap());
        assert!(start.elapsed() >= SECOND / 2 && start.elapsed() <= 2 * SECOND, "{:?}", start.elapsed());
    }
}

#[tokio::test]
async fn what_could_not_be_released_is_not_taken() {
    let server = Server::start().await;
    let permissions = "~* &* +@all";
    let lacking = [("unlock", &["k"][..]), ("munlock", &["k"]), ("munlock", &["a", "b"]), ("cancel", &["k"])];
    for (lacks, keys) in lacking {
        let () = server.ask(&format!("ACL SETUSER app on >secret {permissions} -slock.{lacks}")).await;
        let client = redis::Client::open(format!("redis://app:secret@{}/", server.address())).unwrap();
        match Locks::new(client).write(keys).acquire().await {
            Err(Error::Redis(error)) => assert_eq!(error.code(), Some("NOPERM")),
            other => panic!("{other:?}"),
        }
        assert!(server.is_free(keys[0]).await);
    }
    // Who may not lock several keys may lock one.
    let () = server.ask(&format!("ACL SETUSER app on >secret {permissions} -slock.mlock")).await;
    let client = redis::Client::open(format!("redis://app:secret@{}/", server.address())).unwrap();
    assert!(Locks::new(client).write("k").acquire().await.unwrap().release().await.unwrap());
}
