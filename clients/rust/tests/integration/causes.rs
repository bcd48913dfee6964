//! What `TimedOut` and `Lost` say of their cause.

use std::error::Error as _;
use std::time::Duration;

use redis::RedisError;
use slock_client::{Error, Locks, Poll, Quorum, Reason, Waiting};
use tokio::net::TcpSocket;

use crate::proxy::Proxy;
use crate::server::{Server, until};

const WAIT: Duration = Duration::from_millis(200);
/// Long enough for a new connection and an answer.
const LONG_WAIT: Duration = Duration::from_secs(2);
const TTL: Duration = Duration::from_millis(300);

/// A port that refuses connections. Nobody else can take it while this lives.
struct ClosedPort(TcpSocket);

impl ClosedPort {
    fn new() -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        Self(socket)
    }

    fn client(&self) -> redis::Client {
        redis::Client::open(format!("redis://{}/", self.0.local_addr().unwrap())).unwrap()
    }
}

/// The cause as an error of the redis crate, and the error's own text.
fn of_redis(error: &Error) -> (&RedisError, String) {
    let source = error.source().unwrap_or_else(|| panic!("{error:?} has a cause"));
    (source.downcast_ref().unwrap_or_else(|| panic!("{source:?} is of the redis crate")), error.to_string())
}

fn all_ways_to_wait() -> [Waiting; 3] {
    [Waiting::Notify, Waiting::Block, Waiting::Poll(Poll::constant(Duration::from_millis(10)))]
}

#[tokio::test]
async fn a_wait_for_a_server_that_cannot_be_reached() {
    let closed = ClosedPort::new();
    for waiting in all_ways_to_wait() {
        let locks = Locks::builder(closed.client()).waiting(waiting).wait(WAIT).build();
        let error = locks.write(&["{k}:1", "{k}:2"]).acquire().await.unwrap_err();
        assert!(matches!(error, Error::TimedOut { source: Some(_), .. }), "{error:?}");
        let (cause, text) = of_redis(&error);
        assert!(cause.is_connection_refusal(), "{cause}");
        assert!(text.contains("{k}:1, {k}:2"), "{text}");
    }
}

#[tokio::test]
async fn a_wait_for_a_server_that_answers_errors() {
    let server = Server::start().await;
    let () = server.ask("CONFIG SET min-replicas-to-write 1").await;
    for waiting in all_ways_to_wait() {
        let locks = Locks::builder(server.client()).waiting(waiting).wait(WAIT).build();
        let error = locks.write("k").acquire().await.unwrap_err();
        assert!(matches!(error, Error::TimedOut { .. }), "{error:?}");
        assert_eq!(of_redis(&error).0.code(), Some("NOREPLICAS"));
    }
}

#[tokio::test]
async fn a_wait_for_a_server_that_does_not_answer_any_more() {
    let server = Server::start().await;
    let proxy = Proxy::start(&server).await;
    let locks = Locks::new(proxy.client());
    let _hold = locks.write("k").renew(false).acquire().await.unwrap();
    proxy.hold_replies();
    let error = locks.write("k").wait(WAIT).acquire().await.unwrap_err();
    assert!(matches!(error, Error::TimedOut { .. }), "{error:?}");
    assert!(of_redis(&error).0.is_timeout(), "{error:?}");
}

#[tokio::test]
async fn a_wait_for_another_owner_has_no_error_as_its_cause() {
    let server = Server::start().await;
    let hold = server.locks().write("k").renew(false).ttl(10 * LONG_WAIT).acquire().await.unwrap();
    let mut waits = tokio::task::JoinSet::new();
    for waiting in all_ways_to_wait() {
        let request = Locks::builder(server.client()).waiting(waiting).wait(LONG_WAIT).build().write("k");
        waits.spawn(async move { request.acquire().await });
    }
    until(async || server.info("k", "waiters").await == 2).await;
    // An error that has passed is no cause any more.
    let () = server.ask("CLIENT KILL TYPE normal SKIPME yes").await;
    let () = server.ask("CLIENT KILL TYPE pubsub").await;
    for ended in waits.join_all().await {
        match ended {
            Err(error @ Error::TimedOut { source: None, .. }) => {
                assert_eq!(error.to_string(), "the time for k is over");
            }
            other => panic!("{other:?}"),
        }
    }
    hold.check().unwrap();
}

#[tokio::test]
async fn a_quorum_that_others_hold_says_what_each_server_answered() {
    let (one, two) = (Server::start().await, Server::start().await);
    let closed = ClosedPort::new();
    let quorum = Quorum::new([one.client(), two.client(), closed.client()]);
    let _hold = quorum.write("k").acquire().await.unwrap();
    match quorum.write("k").wait(WAIT).acquire().await {
        Err(Error::TimedOut { source: Some(source), .. }) => {
            let text = source.to_string();
            assert!(matches!(*source, Error::QuorumMissed(_)), "{text}");
            assert!(text.contains(&format!("{}: refused", one.address())), "{text}");
        }
        other => panic!("{other:?}"),
    }
}

/// Locks of a user who may not renew.
async fn without_renewals(server: &Server) -> redis::Client {
    let () = server
        .ask("ACL SETUSER limited on >pw ~other:* +slock.lock +slock.unlock +slock.munlock +slock.cancel +ping +hello +client")
        .await;
    redis::Client::open(format!("redis://limited:pw@127.0.0.1:{}/", server.port)).unwrap()
}

#[tokio::test]
async fn a_loss_after_renewals_that_the_server_refused() {
    let server = Server::start().await;
    let locks = Locks::new(without_renewals(&server).await);
    let hold = locks.write("other:k").ttl(TTL).acquire().await.unwrap();
    assert_eq!(hold.lost().await, Reason::Expired);
    let by_run = locks.write("other:k").ttl(TTL).run(|_| std::future::pending::<()>()).await;
    for error in [hold.check().unwrap_err(), hold.extend(TTL).await.unwrap_err(), by_run.unwrap_err()] {
        assert!(matches!(error, Error::Lost { reason: Reason::Expired, .. }), "{error:?}");
        let (cause, text) = of_redis(&error);
        assert_eq!(cause.code(), Some("NOPERM"));
        assert!(cause.to_string().contains("slock.extend"), "{cause}");
        assert!(text.starts_with("the hold of other:k was lost: expired"), "{text}");
    }
}

#[tokio::test]
async fn a_loss_after_renewals_without_an_answer() {
    let server = Server::start().await;
    // The last renewal is given up long before the validity ends.
    let hold = server.locks().write("k").ttl(3 * TTL).acquire().await.unwrap();
    let _paused = server.pause().await;
    hold.lost().await;
    let error = hold.check().unwrap_err();
    assert!(of_redis(&error).0.is_timeout(), "{error:?}");
}

#[tokio::test]
async fn a_loss_without_a_failed_renewal_has_no_cause() {
    let server = Server::start().await;
    let locks = server.locks();
    let not_renewed = locks.write("a").ttl(TTL).renew(false).acquire().await.unwrap();
    let deleted = locks.write("b").ttl(TTL).acquire().await.unwrap();
    until(async || server.calls("slock.extend").await > 0).await;
    let () = server.ask("DEL b").await;
    for hold in [not_renewed, deleted] {
        hold.lost().await;
        assert!(matches!(hold.check(), Err(Error::Lost { source: None, .. })), "{:?}", hold.check());
    }
}

#[tokio::test]
async fn a_loss_of_a_quorum_says_what_each_server_answered() {
    let server = Server::start().await;
    let quorum = Quorum::new([without_renewals(&server).await]);
    // A node has a twentieth of the ttl for an answer.
    let hold = quorum.write("other:k").ttl(10 * TTL).acquire().await.unwrap();
    assert_eq!(hold.lost().await, Reason::Expired);
    match hold.check() {
        Err(Error::Lost { source: Some(source), .. }) => {
            assert!(matches!(*source, Error::QuorumMissed(_)));
            assert!(source.to_string().contains("slock.extend"), "{source}");
        }
        other => panic!("{other:?}"),
    }
}
