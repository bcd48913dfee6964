use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use slock_client::{Error, Reason};
use tokio::runtime::Handle;

use crate::server::{Server, until};

const TTL: Duration = Duration::from_millis(1000);

#[tokio::test]
async fn work_of_many_ttls_keeps_the_lock() {
    let server = Server::start().await;
    let request = server.locks().write("k").ttl(TTL);
    let fences = request
        .run(async |hold: std::sync::Arc<slock_client::HoldView>| {
            tokio::time::sleep(4 * TTL).await;
            (hold.fence(), server.info("k", "fence").await)
        })
        .await
        .unwrap();
    assert_eq!(fences.0, fences.1);
    assert!(server.is_free("k").await);
}

/// Sets a flag when it is dropped.
struct Dropped(Arc<AtomicBool>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[tokio::test]
async fn work_is_dropped_when_the_lock_is_lost() {
    let server = Server::start().await;
    let dropped = Arc::new(AtomicBool::new(false));
    let flag = Dropped(dropped.clone());
    let request = server.locks().write("k").ttl(TTL);
    let task = tokio::spawn(async move {
        request
            .run(|_| async move {
                let _flag = flag;
                std::future::pending::<()>().await;
            })
            .await
    });
    until(async || !server.is_free("k").await).await;
    let () = server.ask("DEL k").await;
    assert!(matches!(task.await.unwrap(), Err(Error::Lost { reason: Reason::Gone, .. })));
    assert!(dropped.load(Ordering::SeqCst));
}

#[tokio::test]
async fn a_loss_is_told_at_once() {
    let server = Server::start().await;
    let hold = server.locks().write("k").ttl(Duration::from_secs(3600)).acquire().await.unwrap();
    let view = hold.view();
    let lost = tokio::spawn(async move { view.lost().await });
    let () = server.ask("DEL k").await;
    assert!(matches!(hold.extend(TTL).await, Err(Error::Lost { reason: Reason::Gone, .. })));
    assert_eq!(lost.await.unwrap(), Reason::Gone);
}

#[tokio::test]
async fn work_that_blocks_past_the_validity_ends_with_lost() {
    let server = Server::start().await;
    let request = server.locks().write("k").ttl(TTL);
    // The only thread is blocked, so nothing can be renewed.
    let result = request.run(|_| async { std::thread::sleep(2 * TTL) }).await;
    assert!(matches!(result, Err(Error::Lost { reason: Reason::Expired, .. })));
}

#[tokio::test]
async fn a_server_that_does_not_answer_is_a_loss_when_the_validity_has_passed() {
    let server = Server::start().await;
    let locks = server.locks();
    let hold = locks.write("k").ttl(TTL).acquire().await.unwrap();
    let valid_until = hold.valid_until();
    let paused = server.pause().await;
    assert_eq!(hold.lost().await, Reason::Expired);
    assert!(std::time::Instant::now() >= valid_until);
    drop(paused);
    // Lost is final, whatever the server says.
    until(async || server.is_free("k").await).await;
    assert!(matches!(hold.check(), Err(Error::Lost { reason: Reason::Expired, .. })));
    assert!(matches!(hold.extend(TTL).await, Err(Error::Lost { reason: Reason::Expired, .. })));
    assert!(!hold.release().await.unwrap());
}

#[tokio::test]
async fn renewals_go_on_over_a_reconnect() {
    let server = Server::start().await;
    let locks = server.locks();
    let hold = locks.write("k").ttl(TTL).acquire().await.unwrap();
    let () = server.ask("CLIENT KILL TYPE normal SKIPME yes").await;
    let renewed = server.calls("slock.extend").await;
    until(async || server.calls("slock.extend").await >= renewed + 5).await;
    hold.check().unwrap();
    assert!(hold.release().await.unwrap());
}

#[tokio::test]
async fn a_lease_ends() {
    let server = Server::start().await;
    let locks = server.locks();
    let hold = locks.write("k").ttl(TTL).longest_lease(3 * TTL).acquire().await.unwrap();
    assert_eq!(hold.lost().await, Reason::LeaseEnded);
    until(async || server.is_free("k").await).await;
    let hold = locks.write("k").longest_lease(TTL).acquire().await.unwrap();
    assert_eq!(hold.lost().await, Reason::LeaseEnded);
    // The server still has it. Lost is lost all the same.
    assert!(!server.is_free("k").await);
    assert!(!hold.release().await.unwrap());
    assert!(server.is_free("k").await);
}

#[tokio::test]
async fn nothing_is_renewed_after_the_release() {
    let server = Server::start().await;
    let locks = server.locks();
    let hold = locks.write("k").ttl(TTL).acquire().await.unwrap();
    until(async || server.calls("slock.extend").await > 0).await;
    hold.release().await.unwrap();
    let renewed = server.calls("slock.extend").await;
    tokio::time::sleep(2 * TTL).await;
    assert_eq!(server.calls("slock.extend").await, renewed);
}

#[tokio::test]
async fn one_task_renews_all_holds_and_none_is_there_without() {
    let server = Server::start().await;
    let locks = server.locks();
    let tasks = || Handle::current().metrics().num_alive_tasks();
    let mut holds = Vec::new();
    let alone = |key: String| locks.write(key).renew(false).ttl(Duration::from_secs(60));
    holds.push(alone("first".into()).acquire().await.unwrap());
    let before = tasks();
    for number in 0..100 {
        holds.push(alone(format!("a{number}")).acquire().await.unwrap());
    }
    assert_eq!(tasks(), before);
    for number in 0..1000 {
        holds.push(locks.write(format!("b{number}")).ttl(10 * TTL).acquire().await.unwrap());
    }
    assert_eq!(tasks(), before + 1);
    until(async || server.calls("slock.extend").await >= 1000).await;
    for hold in &holds {
        hold.check().unwrap();
    }
}
