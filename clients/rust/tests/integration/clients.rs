//! What the program gives: clients and connections of the redis crate; and programs without async.

use std::collections::HashSet;
use std::sync::Mutex;
use std::time::Duration;

use slock_client::{Error, Locks, blocking};

use crate::server::{Server, until};

#[tokio::test]
async fn a_connection_of_the_programs_has_the_commands_of_calls() {
    let server = Server::start().await;
    let mut connection = server.connection().await.unwrap();
    redis::cmd("CLIENT").arg(("SETNAME", "program")).exec_async(&mut connection).await.unwrap();
    let last = async || {
        let clients: String = server.ask("CLIENT LIST").await;
        let own = clients.lines().find(|client| client.contains(" name=program ")).unwrap();
        own.split(' ').find_map(|word| word.strip_prefix("cmd=")).unwrap().to_owned()
    };
    let locks = Locks::new((server.client(), connection));
    let hold = locks.write("k").ttl(Duration::from_secs(3)).acquire().await.unwrap();
    until(async || server.calls("slock.extend").await > 0).await;
    assert_eq!(last().await, "slock.lock");
    hold.release().await.unwrap();
    assert_eq!(last().await, "slock.munlock");
}

#[tokio::test]
async fn a_connection_of_the_programs_to_another_database() {
    let server = Server::start().await;
    let third = redis::Client::open(format!("redis://127.0.0.1:{}/3", server.port)).unwrap();
    let error =
        Locks::new((third, server.connection().await.unwrap())).write("k").acquire().await.unwrap_err();
    assert!(error.to_string().contains("the connection is for database 0, the client for 3"), "{error}");
}

/// Renewals do not use it, and calls leave it after a while.
#[tokio::test]
async fn a_connection_of_the_programs_that_is_blocked() {
    let server = Server::start().await;
    let connection = server.connection().await.unwrap();
    let locks = Locks::new((server.client(), connection.clone()));
    let hold = locks.write("k").ttl(Duration::from_secs(3)).acquire().await.unwrap();
    let blocked = tokio::spawn(async move {
        redis::cmd("BLPOP").arg(("nothing", 0)).exec_async(&mut connection.clone()).await
    });
    until(async || server.ask::<String>("INFO clients").await.contains("blocked_clients:1")).await;
    let renewed = server.calls("slock.extend").await;
    until(async || server.calls("slock.extend").await > renewed + 1).await;
    hold.release().await.unwrap();
    locks.write("k").run(|_| async {}).await.unwrap();
    blocked.abort();
}

/// The error is the server's, and the next call has another connection.
#[tokio::test]
async fn a_login_that_is_refused() {
    let server = Server::start().await;
    let mut connection = server.connection().await.unwrap();
    let mut set = async |password: &str| {
        redis::cmd("CONFIG").arg(("SET", "requirepass", password)).exec_async(&mut connection).await.unwrap();
    };
    let locks = server.locks();
    set("secret").await;
    let error = locks.write("k").acquire().await.unwrap_err();
    assert!(matches!(error, Error::Redis(_)) && error.to_string().contains("NOAUTH"), "{error:?}");
    set("").await;
    until(async || locks.write("k").try_acquire().await.is_ok()).await;
}

/// WAIT blocks its connection, so no other call uses it meanwhile; the next call does.
#[tokio::test]
async fn calls_that_wait_for_replicas_share_a_connection() {
    let server = Server::start().await;
    let request = server.locks().write("k").min_replicas(1).replica_timeout(Duration::from_millis(5));
    let mut used = HashSet::new();
    for _ in 0..10 {
        let error = request.try_acquire().await.unwrap_err();
        assert!(matches!(error, Error::TooFewReplicas { .. }), "{error:?}");
        server.is_empty().await; // it is released
        let clients: String = server.ask("CLIENT LIST").await;
        let waited = clients.lines().filter(|client| client.contains(" cmd=wait "));
        used.extend(waited.map(|client| client.split(' ').next().unwrap().to_owned()));
    }
    assert_eq!(used.len(), 1, "{used:?}");
}

/// Many threads of a program without async.
#[test]
fn threads_take_turns() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let server = runtime.block_on(Server::start());
    let locks = blocking::Locks::new(server.client());
    let sum = Mutex::new(0);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..20 {
                    let work = |_: &blocking::Hold| {
                        let seen = *sum.lock().unwrap();
                        std::thread::yield_now();
                        *sum.lock().unwrap() = seen + 1;
                    };
                    locks.write("k").run(work).unwrap();
                }
            });
        }
    });
    assert_eq!(*sum.lock().unwrap(), 160);
    let hold = locks.write("k").ttl(Duration::from_secs(3)).acquire().unwrap();
    assert!(locks.write("k").try_acquire().unwrap().is_none());
    runtime.block_on(until(async || server.calls("slock.extend").await > 1)); // this thread renews nothing
    hold.check().unwrap();
    drop(hold); // waits for the reply
    let hold = locks.write("k").try_acquire().unwrap().expect("it was released");
    runtime.block_on(async { drop(hold) }); // also here
    let hold = locks.write("k").try_acquire().unwrap().expect("it was released");
    runtime.block_on(server.ask::<()>("DEL k"));
    assert!(matches!(hold.release(), Err(Error::Lost { .. })));
    locks.close();
}
