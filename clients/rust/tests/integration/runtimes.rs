//! Locks that outlive the runtime which opened their connections.

use std::time::Duration;

use tokio::runtime::{Builder, Runtime};

use crate::server::{Server, until};

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

#[test]
fn a_wait_goes_on_when_the_runtime_of_another_shuts_down() {
    let (first, second) = (runtime(), runtime());
    let server = second.block_on(Server::start());
    let locks = server.locks();
    let () = second.block_on(server.ask("SLOCK.LOCK k other 3600000"));
    for (runtime, waiters) in [(&first, 1), (&second, 2)] {
        let request = locks.write("k").renew(false);
        runtime.spawn(async move {
            let hold = request.acquire().await.unwrap();
            hold.release().await.unwrap();
        });
        second.block_on(until(async || server.info("k", "waiters").await == waiters));
    }
    first.shutdown_timeout(Duration::ZERO);
    let () = second.block_on(server.ask("SLOCK.UNLOCK k other"));
    second.block_on(until(async || server.is_free("k").await));
    second.block_on(locks.close());
}

#[test]
fn a_dropped_hold_is_released_when_its_runtime_has_shut_down() {
    let (first, second) = (runtime(), runtime());
    let server = second.block_on(Server::start());
    let request = server.locks().write("k").ttl(Duration::from_secs(3600));
    let hold = first.block_on(request.acquire()).unwrap();
    first.shutdown_timeout(Duration::ZERO);
    second.block_on(async {
        drop(hold);
        until(async || server.is_free("k").await).await;
    });
}

#[test]
fn holds_are_renewed_when_the_runtime_that_renewed_shuts_down() {
    let (first, second) = (runtime(), runtime());
    let server = second.block_on(Server::start());
    let ttl = Duration::from_millis(600);
    let request = server.locks().write("k").ttl(ttl);
    let _renewed_first = first.block_on(server.locks().write("other").ttl(ttl).acquire()).unwrap();
    let hold = first.block_on(request.acquire()).unwrap();
    first.shutdown_timeout(Duration::ZERO);
    second.block_on(async {
        let next = request.try_acquire().await.unwrap();
        assert!(next.is_none());
        hold.extend(ttl).await.unwrap();
        let renewed = server.calls("slock.extend").await;
        until(async || server.calls("slock.extend").await > renewed + 3).await;
        hold.check().unwrap();
        assert!(hold.release().await.unwrap());
        assert!(server.is_free("k").await);
    });
}
