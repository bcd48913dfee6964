//! Commands and waits over TLS.

use std::process::Command;

use slock_client::{Error, Locks};

use crate::server::{Server, free_port, module, until};

/// Gives the address too. The certificate is signed by nobody.
async fn server_with_tls(directory: &tempfile::TempDir) -> (Server, String) {
    let [key, certificate] =
        ["key", "certificate"].map(|name| directory.path().join(name).display().to_string());
    let words = format!(
        "req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=localhost -keyout {key} -out {certificate}"
    );
    let made = Command::new("openssl").args(words.split(' ')).output().expect("openssl is on the PATH");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let (port, module) = (free_port(), module());
    let tls = format!(
        "--tls-port {port} --tls-cert-file {certificate} --tls-key-file {key} --tls-auth-clients no --loadmodule {module}"
    );
    (Server::with(&tls.split(' ').collect::<Vec<_>>()).await, format!("rediss://127.0.0.1:{port}/"))
}

#[tokio::test]
async fn locks_and_waits_go_over_tls() {
    let directory = tempfile::tempdir().unwrap();
    let (server, address) = server_with_tls(&directory).await;
    let locks = Locks::new(redis::Client::open(format!("{address}#insecure")).unwrap());
    let hold = locks.write("k").acquire().await.unwrap();
    let request = locks.write("k");
    let waits = tokio::spawn(async move { request.acquire().await?.release().await });
    until(async || server.info("k", "waiters").await == 1).await;
    hold.release().await.unwrap();
    waits.await.unwrap().unwrap();

    match Locks::new(redis::Client::open(address).unwrap()).write("k").acquire().await {
        Err(Error::Redis(error)) => assert!(error.to_string().contains("certificate"), "{error}"),
        other => panic!("{other:?}"),
    }
}
