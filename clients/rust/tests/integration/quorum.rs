use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use slock_client::{Error, Mode, Poll, Quorum, Reason};
use tokio::task::JoinSet;

use crate::server::{Server, until};

async fn servers() -> Vec<Server> {
    let mut servers = Vec::new();
    for _ in 0..5 {
        servers.push(Server::start().await);
    }
    servers
}

fn quorum(servers: &[Server]) -> Quorum {
    Quorum::builder(servers.iter().map(Server::client)).node_timeout(Duration::from_millis(500)).build()
}

async fn holders(servers: &[Server]) -> usize {
    let mut count = 0;
    for server in servers {
        count += usize::from(!server.is_free("k").await);
    }
    count
}

#[tokio::test]
async fn a_majority_locks_and_a_minority_does_not() {
    let mut servers = servers().await;
    let quorum = quorum(&servers);
    let hold = quorum.write("k").acquire().await.unwrap();
    until(async || holders(&servers).await == 5).await;
    until(async || hold.fences().iter().flatten().count() == 5).await;
    assert!(quorum.read("k").try_acquire().await.unwrap().is_none());
    assert!(hold.release().await.unwrap());
    let reads = [quorum.read("k").acquire().await.unwrap(), quorum.read("k").acquire().await.unwrap()];
    drop(reads);

    servers[0].kill();
    servers[1].kill();
    until(async || holders(&servers[2..]).await == 0).await;
    let hold = quorum.write("k").acquire().await.unwrap();
    hold.extend(Duration::from_secs(20)).await.unwrap();
    assert!(hold.release().await.unwrap());

    servers[2].kill();
    let request = quorum.write("k").wait(Duration::from_millis(300));
    match request.acquire().await {
        Err(error @ Error::QuorumMissed(_)) => {
            for server in &servers {
                assert!(error.to_string().contains(&server.address()), "{error}");
            }
        }
        other => panic!("{other:?}"),
    }
    until(async || holders(&servers[3..]).await == 0).await;
}

#[tokio::test]
async fn a_slow_node_holds_nothing_up_and_keeps_nothing() {
    let servers = servers().await;
    let quorum = quorum(&servers);
    quorum.write("k").acquire().await.unwrap().release().await.unwrap();
    let paused = (servers[0].pause().await, servers[1].pause().await);
    let hold = quorum.write("k").acquire().await.unwrap();
    hold.check().unwrap();
    assert!(hold.release().await.unwrap());
    drop(paused);
    until(async || holders(&servers).await == 0).await;
}

#[tokio::test]
async fn a_node_that_restarted_empty_is_back_after_one_extension() {
    let mut servers = servers().await;
    let quorum = quorum(&servers);
    let hold = quorum.write("k").renew(false).acquire().await.unwrap();
    until(async || holders(&servers).await == 5).await;
    servers[0].restart().await;
    servers[1].restart().await;
    assert_eq!(holders(&servers).await, 3);
    hold.extend(Duration::from_secs(10)).await.unwrap();
    until(async || holders(&servers).await == 5).await;
    for server in &mut servers[..3] {
        server.restart().await;
    }
    assert!(matches!(
        hold.extend(Duration::from_secs(10)).await,
        Err(Error::Lost { reason: Reason::Gone, .. })
    ));
    assert_eq!(holders(&servers[..3]).await, 0);
}

/// A server that is empty again is asked to grant the hold anew by one extension only.
#[tokio::test]
async fn extensions_one_right_after_the_other_leave_no_hold_that_nobody_knows() {
    let servers = servers().await;
    let quorum = quorum(&servers);
    let ttl = Duration::from_secs(3600);
    for round in 0..20 {
        let hold = quorum.write("k").ttl(ttl).renew(false).acquire().await.unwrap();
        until(async || hold.fences().iter().flatten().count() == 5).await;
        let () = servers[0].ask("DEL k").await;
        hold.extend(ttl).await.unwrap();
        if round % 2 == 0 {
            hold.extend(ttl).await.unwrap();
        } else {
            let (one, other) = tokio::join!(hold.extend(ttl), hold.extend(ttl));
            one.and(other).unwrap();
        }
        until(async || holders(&servers).await == 5).await;
        until(async || hold.fences()[0] == Some(servers[0].info("k", "fence").await)).await;
        assert!(hold.release().await.unwrap());
        until(async || holders(&servers).await == 0).await;
    }
}

#[tokio::test]
async fn a_release_by_token_ends_a_hold_on_all_servers_in_whichever_mode() {
    let mut servers = servers().await;
    let quorum = quorum(&servers);
    let reader = quorum.read("k").acquire().await.unwrap();
    until(async || holders(&servers).await == 5).await;
    assert_eq!(quorum.release("k", "nobody").await.unwrap(), 0);
    assert_eq!(quorum.release("k", reader.token()).await.unwrap(), 5);
    assert_eq!(holders(&servers).await, 0);
    assert!(!reader.release().await.unwrap());

    let writer = quorum.write("k").renew(false).acquire().await.unwrap();
    until(async || holders(&servers).await == 5).await;
    servers[0].kill();
    let () = servers[1].ask("DEL k").await;
    assert_eq!(quorum.release("k", writer.token()).await.unwrap(), 3);
    assert_eq!(holders(&servers[1..]).await, 0);
    assert!(!writer.release().await.unwrap());
    quorum.close().await;
    assert!(matches!(quorum.release("k", "t").await, Err(Error::Closed)));
}

#[tokio::test]
async fn a_hold_is_handed_over_by_its_token() {
    let mut servers = servers().await;
    let quorum = quorum(&servers);
    for server in &servers[..3] {
        let () = server.ask("SLOCK.LOCK k theirs 60000").await;
    }
    assert!(matches!(quorum.adopt("k", "theirs", Mode::Read).await, Err(Error::NotHeld)));
    assert!(matches!(quorum.adopt("k", "nobody", Mode::Write).await, Err(Error::NotHeld)));
    assert!(matches!(quorum.write("k").adopt().await, Err(Error::NotHeld)));
    assert_eq!(holders(&servers).await, 3);

    let hold = quorum.adopt("k", "theirs", Mode::Write).await.unwrap();
    assert_eq!(holders(&servers).await, 3);
    assert_eq!(hold.fences()[0], Some(servers[0].info("k", "fence").await));
    assert_eq!(hold.fences().iter().flatten().count(), 3);
    // An extension brings the others back.
    hold.extend(Duration::from_secs(20)).await.unwrap();
    until(async || holders(&servers).await == 5).await;
    assert!(hold.release().await.unwrap());
    until(async || holders(&servers).await == 0).await;

    for server in &servers[..2] {
        let () = server.ask("SLOCK.LOCK k theirs 60000").await;
    }
    assert!(matches!(quorum.adopt("k", "theirs", Mode::Write).await, Err(Error::NotHeld)));
    servers[4].kill();
    assert!(matches!(quorum.adopt("k", "theirs", Mode::Write).await, Err(Error::QuorumMissed(_))));
}

#[tokio::test]
async fn work_ends_when_the_majority_is_lost() {
    let servers = servers().await;
    let request = quorum(&servers).write("k").ttl(Duration::from_secs(3));
    let task = tokio::spawn(async move { request.run(|_| std::future::pending::<()>()).await });
    until(async || holders(&servers).await == 5).await;
    // Again and again: an extension between two of them has the lock taken anew.
    until(async || {
        for server in &servers[..3] {
            let () = server.ask("DEL k").await;
        }
        task.is_finished()
    })
    .await;
    assert!(matches!(task.await.unwrap(), Err(Error::Lost { reason: Reason::Gone, .. })));
    until(async || holders(&servers).await == 0).await;
}

#[tokio::test]
async fn a_dropped_attempt_leaves_nothing() {
    let servers = servers().await;
    let quorum = quorum(&servers);
    quorum.write("k").acquire().await.unwrap().release().await.unwrap();
    let paused = (servers[0].pause().await, servers[1].pause().await, servers[2].pause().await);
    let request = quorum.write("k").ttl(Duration::from_secs(60));
    let task = tokio::spawn(async move { request.acquire().await });
    until(async || holders(&servers[3..]).await == 2).await;
    task.abort();
    until(async || holders(&servers[3..]).await == 0).await;
    drop(paused);
    until(async || holders(&servers).await == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn contenders_never_overlap() {
    let servers = servers().await;
    let poll = Poll::exponential(Duration::from_millis(2), Duration::from_millis(20));
    let quorum = Quorum::builder(servers.iter().map(Server::client)).poll(poll).build();
    let inside = Arc::new(AtomicUsize::new(0));
    let mut tasks = JoinSet::new();
    for _ in 0..20 {
        let (request, inside) = (quorum.write("k"), inside.clone());
        tasks.spawn(async move {
            for _ in 0..3 {
                let hold = request.acquire().await.unwrap();
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                tokio::time::sleep(Duration::from_millis(1)).await;
                inside.fetch_sub(1, Ordering::SeqCst);
                hold.release().await.unwrap();
            }
        });
    }
    tasks.join_all().await;
}

#[tokio::test]
async fn close_ends_requests_that_poll() {
    let servers = servers().await;
    let poll = Poll::constant(Duration::from_secs(3600));
    let quorum = Quorum::builder(servers.iter().map(Server::client)).poll(poll).build();
    let hold = quorum.write("k").renew(false).acquire().await.unwrap();
    let request = quorum.write("k");
    let polls = tokio::spawn(async move { request.acquire().await });
    until(async || servers[4].calls("slock.lock").await == 2).await;
    quorum.close().await;
    assert!(matches!(polls.await.unwrap(), Err(Error::Closed)));
    assert!(matches!(hold.extend(Duration::from_secs(60)).await, Err(Error::Closed)));
    drop(hold);
    until(async || holders(&servers).await == 0).await;
    for server in &servers {
        until(async || server.clients().await == 0).await;
    }
}
