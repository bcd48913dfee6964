use slock_client::Error;

use crate::server::{Server, until};

#[tokio::test]
async fn a_server_without_the_module() {
    let server = Server::with(&[]).await;
    match server.locks().write("k").acquire().await {
        Err(error @ Error::ModuleNotLoaded) => assert!(error.to_string().contains("--loadmodule")),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_cycle_of_owners() {
    let server = Server::start().await;
    let locks = server.locks();
    let (a, b) = (locks.write("a").token("owner-a"), locks.write("b").token("owner-b"));
    let _holds = (a.acquire().await.unwrap(), b.acquire().await.unwrap());
    let request = locks.write("b").token("owner-a");
    let waits = tokio::spawn(async move { request.acquire().await });
    until(async || server.info("b", "waiters").await == 1).await;
    match locks.write("a").token("owner-b").acquire().await {
        Err(Error::Deadlock(text)) => assert!(text.contains("owner-a") && text.contains("owner-b"), "{text}"),
        other => panic!("{other:?}"),
    }
    waits.abort();
}

#[tokio::test]
async fn a_queue_that_is_full() {
    let server = Server::start().await;
    let () = server.ask("CONFIG SET slock.max-waiters 1").await;
    let locks = server.locks();
    let hold = locks.write("k").acquire().await.unwrap();
    let request = locks.write("k");
    let waits = tokio::spawn(async move { request.acquire().await });
    until(async || server.info("k", "waiters").await == 1).await;
    assert!(matches!(locks.write("k").acquire().await, Err(Error::QueueFull(_))));
    hold.release().await.unwrap();
    assert!(waits.await.unwrap().unwrap().release().await.unwrap());
}

#[tokio::test]
async fn a_key_of_another_type_and_other_mistakes() {
    let server = Server::start().await;
    let locks = server.locks();
    let () = server.ask("SET text value").await;
    let code = |error: Error| match error {
        Error::Redis(error) => error.code().unwrap_or_default().to_owned(),
        other => panic!("{other:?}"),
    };
    assert_eq!(code(locks.write("text").acquire().await.unwrap_err()), "WRONGTYPE");
    let too_long = locks.write("k").metadata("m".repeat(1025));
    assert_eq!(code(too_long.acquire().await.unwrap_err()), "ERR");
    let _hold = locks.write("k").token("me").acquire().await.unwrap();
    assert!(matches!(locks.read("k").token("me").acquire().await, Err(Error::WrongMode(_))));
}

#[tokio::test]
async fn an_upgrade_of_what_is_gone() {
    let server = Server::start().await;
    let locks = server.locks();
    let hold = locks.read("k").acquire().await.unwrap();
    let () = server.ask("DEL k").await;
    assert!(matches!(hold.upgrade(None).await, Err(Error::NotHeld)));
    assert!(matches!(hold.check(), Err(Error::Lost { .. })));
}
