//! Arguments with which nothing can be locked are errors at once, before anything is sent.

use std::time::Duration;

use slock_client::{Error, Locks, Mode, Poll, Quorum, Waiting};

use crate::server::{Server, free_port};

fn nobody() -> redis::Client {
    redis::Client::open(format!("redis://127.0.0.1:{}/", free_port())).unwrap()
}

fn refused<T>(result: Result<T, Error>, says: &str) {
    match result.err() {
        Some(Error::InvalidArgument(text)) => assert!(text.contains(says), "{text}"),
        other => panic!("{other:?}"),
    }
}

const TOO_SHORT: [Duration; 4] =
    [Duration::ZERO, Duration::from_micros(10), Duration::from_millis(1), Duration::from_micros(1999)];

#[tokio::test]
async fn a_ttl_that_leaves_no_validity() {
    let locks = Locks::new(nobody());
    let quorum = Quorum::new([nobody()]);
    for ttl in TOO_SHORT {
        let request = locks.write("k").token("t").ttl(ttl);
        refused(request.acquire().await, "at least 2 ms");
        refused(request.try_acquire().await, "at least 2 ms");
        refused(request.run(|_| async {}).await, "at least 2 ms");
        refused(request.adopt().await, "at least 2 ms");
        refused(Locks::builder(nobody()).ttl(ttl).build().read("k").acquire().await, "at least 2 ms");
        refused(quorum.write("k").ttl(ttl).acquire().await, "at least 2 ms");
    }
}

#[tokio::test]
async fn a_ttl_that_the_drift_of_a_quorum_uses_up() {
    let quorum = Quorum::builder([nobody()]).drift_factor(0.5).build();
    let request = quorum.write("k").token("t").ttl(Duration::from_millis(4));
    refused(request.acquire().await, "longer than 4ms");
    refused(request.try_acquire().await, "longer than 4ms");
    refused(request.adopt().await, "longer than 4ms");
}

#[tokio::test]
async fn an_extension_by_too_little_changes_nothing() {
    let server = Server::start().await;
    let hold = server.locks().write("k").ttl(Duration::from_secs(3600)).renew(false).acquire().await.unwrap();
    let quorum = Quorum::new([server.client()]);
    let of_quorum = quorum.write("q").ttl(Duration::from_secs(3600)).renew(false).acquire().await.unwrap();
    let ends = (hold.valid_until(), of_quorum.valid_until());
    for ttl in TOO_SHORT {
        refused(hold.extend(ttl).await, "at least 2 ms");
        refused(of_quorum.extend(ttl).await, "at least 2 ms");
    }
    for (now, before) in [(hold.valid_until(), ends.0), (of_quorum.valid_until(), ends.1)] {
        assert!(now.max(before) - now.min(before) < Duration::from_secs(1));
    }
    hold.extend(Duration::from_secs(60)).await.unwrap();
    of_quorum.extend(Duration::from_secs(60)).await.unwrap();
}

#[tokio::test]
async fn no_key() {
    let none = Vec::<String>::new;
    let locks = Locks::new(nobody());
    refused(locks.write(none()).acquire().await, "at least one key");
    refused(locks.read(none()).try_acquire().await, "at least one key");
    refused(locks.adopt(none(), "t", Mode::Write).await, "at least one key");
    refused(locks.release(none(), "t").await, "at least one key");
    let quorum = Quorum::new([nobody()]);
    refused(quorum.write(none()).acquire().await, "at least one key");
    refused(quorum.adopt(none(), "t", Mode::Write).await, "at least one key");
    refused(quorum.release(none(), "t").await, "at least one key");
}

#[tokio::test]
async fn a_limit_for_a_writer() {
    refused(Locks::new(nobody()).write("k").limit(3).acquire().await, "for reading");
    refused(Quorum::new([nobody()]).write("k").limit(3).try_acquire().await, "for reading");
    refused(Locks::new(nobody()).read("k").limit(0).acquire().await, "at least 1");
}

#[tokio::test]
async fn a_limit_for_all_is_that_of_the_readers() {
    let server = Server::start().await;
    let locks = Locks::builder(server.client()).limit(1).build();
    let reader = locks.read("k").acquire().await.unwrap();
    assert!(locks.read("k").try_acquire().await.unwrap().is_none());
    assert!(reader.release().await.unwrap());
    let writer = locks.write("k").token("t").acquire().await.unwrap();
    writer.hand_over().unwrap();
    let _adopted = locks.adopt("k", "t", Mode::Write).await.unwrap();
    assert_eq!(locks.release("k", "t").await.unwrap(), 1);
}

#[tokio::test]
async fn no_pause_between_polls() {
    let (none, some) = (Duration::ZERO, Duration::from_secs(1));
    for poll in [Poll::constant(none), Poll::exponential(none, some), Poll::exponential(some, none).limit(9)]
    {
        let locks = Locks::builder(nobody()).waiting(Waiting::Poll(poll.clone())).build();
        refused(locks.write("k").acquire().await, "a pause of polling is 0");
        let quorum = Quorum::builder([nobody()]).poll(poll).build();
        refused(quorum.write("k").acquire().await, "a pause of polling is 0");
    }
}
