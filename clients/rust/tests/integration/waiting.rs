use std::time::Duration;

use redis::Client;
use slock_client::{Error, Locks, Poll, Waiting};
use tokio::task::JoinSet;

use crate::server::{Server, until};

async fn is_granted_after_a_release(server: &Server, locks: &Locks) {
    let hold = locks.write("k").acquire().await.unwrap();
    let waits = {
        let locks = locks.clone();
        tokio::spawn(async move { locks.write("k").acquire().await })
    };
    until(async || server.info("k", "waiters").await == 1).await;
    hold.release().await.unwrap();
    let next = waits.await.unwrap().unwrap();
    assert_eq!(server.info("k", "fence").await, next.fence());
    let short = locks.write("k").wait(Duration::from_millis(30));
    assert!(matches!(short.acquire().await, Err(Error::TimedOut { .. })));
    let none = locks.write("k").wait(Duration::ZERO);
    assert!(matches!(none.acquire().await, Err(Error::TimedOut { .. })));
    assert_eq!(server.info("k", "waiters").await, 0);
    assert!(next.release().await.unwrap());
}

#[tokio::test]
async fn a_wait_ends_with_a_message() {
    let server = Server::start().await;
    let locks = server.locks();
    is_granted_after_a_release(&server, &locks).await;
    // Commands and messages share one connection.
    until(async || server.clients().await == 1).await;
}

#[tokio::test]
async fn a_wait_blocks_a_connection_of_its_own() {
    let server = Server::start().await;
    let locks = Locks::builder(server.client()).waiting(Waiting::Block).build();
    is_granted_after_a_release(&server, &locks).await;
    assert_eq!(server.calls("ssubscribe").await, 0);
}

#[tokio::test]
async fn a_wait_longer_than_the_base_library_waits_for_replies() {
    let server = Server::start().await;
    for waiting in [Waiting::Notify, Waiting::Block] {
        let locks = Locks::builder(server.client()).waiting(waiting).build();
        let hold = locks.write("k").acquire().await.unwrap();
        let request = locks.write("k").wait(Duration::from_millis(2500));
        assert!(matches!(request.acquire().await, Err(Error::TimedOut { .. })));
        assert!(hold.release().await.unwrap());
    }
    // Each wait was asked once without and once with a wait, and never repeated.
    assert_eq!(server.calls("slock.lock").await, 6);
}

#[tokio::test]
async fn polling_asks_again() {
    let server = Server::start().await;
    let locks = |poll| Locks::builder(server.client()).waiting(Waiting::Poll(poll)).build();
    let polling = locks(Poll::constant(Duration::from_millis(5)));
    let hold = polling.write("k").acquire().await.unwrap();
    let once = locks(Poll::none());
    assert!(matches!(once.write("k").acquire().await, Err(Error::TimedOut { .. })));
    let before = server.calls("slock.lock").await;
    let four = locks(Poll::constant(Duration::from_millis(1)).limit(3));
    assert!(matches!(four.write("k").acquire().await, Err(Error::TimedOut { .. })));
    assert_eq!(server.calls("slock.lock").await, before + 4);
    let waits = tokio::spawn(async move { polling.write("k").acquire().await });
    until(async || server.calls("slock.lock").await > before + 6).await;
    hold.release().await.unwrap();
    assert!(waits.await.unwrap().unwrap().release().await.unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn many_tasks_wait_over_one_connection() {
    let server = Server::start().await;
    let locks = server.locks();
    let hold = locks.write("k").acquire().await.unwrap();
    let mut tasks = JoinSet::new();
    for _ in 0..2000 {
        let request = locks.write("k");
        tasks.spawn(async move { request.acquire().await.unwrap().release().await.unwrap() });
    }
    until(async || server.info("k", "waiters").await == 2000).await;
    // A second one follows where the first had no answer in time.
    until(async || server.clients().await <= 2).await;
    hold.release().await.unwrap();
    assert!(tasks.join_all().await.into_iter().all(|released| released));
}

#[tokio::test]
async fn a_wait_survives_the_loss_of_the_connection_that_listens() {
    let server = Server::start().await;
    let locks = server.locks();
    let hold = locks.write("k").acquire().await.unwrap();
    let waits = {
        let locks = locks.clone();
        tokio::spawn(async move { locks.write("k").acquire().await })
    };
    until(async || server.info("k", "waiters").await == 1).await;
    let asked = server.calls("slock.lock").await;
    let () = server.ask("CLIENT KILL TYPE pubsub").await;
    until(async || server.calls("slock.lock").await > asked).await;
    until(async || server.info("k", "waiters").await == 1).await;
    hold.release().await.unwrap();
    assert!(waits.await.unwrap().unwrap().release().await.unwrap());
}

#[tokio::test]
async fn a_message_that_was_lost_is_asked_for_again() {
    let server = Server::start().await;
    let locks = server.locks();
    let hold = locks.write("k").acquire().await.unwrap();
    let waits = {
        let locks = locks.clone();
        tokio::spawn(async move { locks.write("k").acquire().await })
    };
    until(async || server.info("k", "waiters").await == 1).await;
    // Both in one turn of the server: the message goes to a connection that is closed at once.
    let mut connection = server.client().get_multiplexed_async_connection().await.unwrap();
    let mut both = redis::pipe();
    both.atomic().cmd("SLOCK.UNLOCK").arg("k").arg(hold.token());
    both.cmd("CLIENT").arg("KILL").arg("TYPE").arg("pubsub");
    let () = both.query_async(&mut connection).await.unwrap();
    assert!(waits.await.unwrap().unwrap().release().await.unwrap());
}

#[tokio::test]
async fn a_wait_survives_a_restart_of_the_server() {
    for waiting in [Waiting::Notify, Waiting::Block] {
        let mut server = Server::start().await;
        let locks = Locks::builder(server.client()).waiting(waiting).build();
        let () = server.ask("SLOCK.LOCK k other 60000").await;
        let waits = tokio::spawn(async move { locks.write("k").acquire().await });
        until(async || server.info("k", "waiters").await == 1).await;
        server.restart().await;
        assert!(waits.await.unwrap().unwrap().release().await.unwrap());
    }
}

#[tokio::test]
async fn without_permission_for_channels_all_waits_block() {
    for permissions in ["resetchannels +@all", "allchannels +@all -ssubscribe"] {
        let server = Server::start().await;
        let () = server.ask(&format!("ACL SETUSER app on >secret ~* {permissions}")).await;
        let client = Client::open(format!("redis://app:secret@{}/", server.address())).unwrap();
        let locks = Locks::new(client);
        let hold = locks.write("k").acquire().await.unwrap();
        // At once: none of them has heard yet what the others have found out.
        let waits: Vec<_> = (0..5)
            .map(|_| {
                let locks = locks.clone();
                // Each releases its own hold: they are granted in their order of arrival, not in this one.
                tokio::spawn(async move { locks.write("k").acquire().await.unwrap().release().await })
            })
            .collect();
        until(async || server.info("k", "waiters").await == 5).await;
        hold.release().await.unwrap();
        for wait in waits {
            wait.await.unwrap().unwrap();
        }
    }
}

#[tokio::test]
async fn a_long_wait_hands_out_a_hold_that_is_valid() {
    let server = Server::start().await;
    let locks = server.locks();
    let hold = locks.write("k").acquire().await.unwrap();
    let ttl = Duration::from_millis(400);
    let request = locks.write("k").ttl(ttl).renew(false);
    let waits = tokio::spawn(async move { request.acquire().await });
    until(async || server.info("k", "waiters").await == 1).await;
    tokio::time::sleep(ttl).await;
    hold.release().await.unwrap();
    let next = waits.await.unwrap().unwrap();
    next.check().unwrap();
    assert_eq!(server.calls("slock.extend").await, 1);
}

#[tokio::test]
async fn close_ends_what_waits() {
    for waiting in [Waiting::Notify, Waiting::Block] {
        let server = Server::start().await;
        let locks = Locks::builder(server.client()).waiting(waiting).build();
        let () = server.ask("SLOCK.LOCK k other 60000").await;
        let waits = {
            let locks = locks.clone();
            tokio::spawn(async move { locks.write("k").acquire().await })
        };
        until(async || server.info("k", "waiters").await == 1).await;
        locks.close().await;
        assert!(matches!(waits.await.unwrap(), Err(Error::Closed)));
        until(async || server.info("k", "waiters").await == 0).await;
        until(async || server.clients().await == 0).await;
    }
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn connections_that_wait_are_probed() {
    for (waiting, connections) in [(Waiting::Notify, 1), (Waiting::Block, 2)] {
        let server = Server::start().await;
        let () = server.ask("SLOCK.LOCK k other 60000").await;
        let request = Locks::builder(server.client()).waiting(waiting).build().write("k");
        let task = tokio::spawn(async move { request.acquire().await });
        until(async || server.info("k", "waiters").await == 1).await;
        // The timer of each connection to the server: 02 is that of the probes.
        until(async || {
            let to_server = format!(":{:04X}", server.port);
            let all = std::fs::read_to_string("/proc/net/tcp").unwrap();
            let of_client = all.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
            let of_client: Vec<_> =
                of_client.filter(|words| words[2].ends_with(&to_server) && words[3] == "01").collect();
            of_client.len() == connections && of_client.iter().all(|words| words[5].starts_with("02"))
        })
        .await;
        task.abort();
    }
}
