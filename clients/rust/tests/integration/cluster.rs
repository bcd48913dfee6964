//! Two nodes of a cluster, between which slots move.

use std::time::Duration;

use slock_client::{Locks, Server as Servers, Waiting};

use crate::server::{Server, module, until};

/// The slot of the key `{job}`, which the second node takes over.
const SLOT: u16 = 2906;

async fn cluster() -> (Server, Server) {
    let module = module();
    let arguments = ["--loadmodule", &module, "--cluster-enabled", "yes"];
    let (first, second) = (Server::with(&arguments).await, Server::with(&arguments).await);
    let () = first.ask("CLUSTER ADDSLOTSRANGE 0 16383").await;
    let () = first.ask(&format!("CLUSTER MEET 127.0.0.1 {}", second.port)).await;
    for server in [&first, &second] {
        until(async || {
            let info: String = server.ask("CLUSTER INFO").await;
            info.contains("cluster_state:ok") && info.contains("cluster_known_nodes:2")
        })
        .await;
    }
    (first, second)
}

async fn id(server: &Server) -> String {
    server.ask("CLUSTER MYID").await
}

async fn move_slot(from: &Server, to: &Server) {
    let (from_id, to_id) = (id(from).await, id(to).await);
    let () = to.ask(&format!("CLUSTER SETSLOT {SLOT} IMPORTING {from_id}")).await;
    let () = from.ask(&format!("CLUSTER SETSLOT {SLOT} MIGRATING {to_id}")).await;
    let keys: Vec<String> = from.ask(&format!("CLUSTER GETKEYSINSLOT {SLOT} 100")).await;
    for key in keys {
        let () = from.ask(&format!("MIGRATE 127.0.0.1 {} {key} 0 5000", to.port)).await;
    }
    let () = to.ask(&format!("CLUSTER SETSLOT {SLOT} NODE {to_id}")).await;
    let () = from.ask(&format!("CLUSTER SETSLOT {SLOT} NODE {to_id}")).await;
}

fn locks(server: &Server, waiting: Waiting) -> Locks {
    let node = format!("redis://{}/", server.address());
    Locks::builder(Servers::cluster([node]).unwrap()).waiting(waiting).build()
}

#[tokio::test]
async fn locks_and_waits_follow_a_slot_that_moves() {
    for waiting in [Waiting::Notify, Waiting::Block] {
        let (first, second) = cluster().await;
        assert_eq!(first.ask::<u16>("CLUSTER KEYSLOT {job}").await, SLOT);
        let locks = locks(&first, waiting);
        let request = locks.write(&["{job}:a", "{job}:b"]).ttl(Duration::from_secs(4));
        let hold = request.acquire().await.unwrap();
        let waits = {
            let request = request.clone();
            tokio::spawn(async move { request.acquire().await })
        };
        until(async || first.info("{job}:a", "waiters").await == 1).await;
        move_slot(&first, &second).await;
        until(async || second.info("{job}:a", "waiters").await == 1).await;
        // The hold is renewed where it is now.
        let renewed = second.calls("slock.mextend").await;
        until(async || second.calls("slock.mextend").await > renewed + 1).await;
        hold.check().unwrap();
        assert!(hold.release().await.unwrap());
        let next = waits.await.unwrap().unwrap();
        assert_eq!(second.info("{job}:b", "fence").await, next.fence());
        assert!(next.release().await.unwrap());
    }
}

#[tokio::test]
async fn a_wait_that_is_dropped_after_its_slot_moved_leaves_nothing() {
    let (first, second) = cluster().await;
    let locks = locks(&first, Waiting::Notify);
    let () = first.ask("SLOCK.LOCK {job} other 60000").await;
    let request = locks.write("{job}");
    let waits = tokio::spawn(async move { request.acquire().await });
    until(async || first.info("{job}", "waiters").await == 1).await;
    move_slot(&first, &second).await;
    until(async || second.info("{job}", "waiters").await == 1).await;
    waits.abort();
    until(async || second.info("{job}", "waiters").await == 0).await;
    let () = second.ask("SLOCK.UNLOCK {job} other").await;
    assert!(second.is_free("{job}").await);
}

#[tokio::test]
async fn a_node_that_is_away_ends_no_hold_on_another() {
    let (first, second) = cluster().await;
    move_slot(&first, &second).await;
    let locks = locks(&first, Waiting::Notify);
    let mut away = Vec::new();
    for number in 0..200 {
        let request = locks.write(format!("away{number}")).ttl(Duration::from_secs(7));
        away.push(request.acquire().await.unwrap());
    }
    let hold = locks.write("{job}").ttl(Duration::from_secs(3)).acquire().await.unwrap();
    let _paused = first.pause().await;
    until(async || {
        hold.check().unwrap();
        away.iter().all(|away| away.check().is_err())
    })
    .await;
}
