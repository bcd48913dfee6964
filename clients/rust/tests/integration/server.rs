//! A server for one test. It ends with the test, and also if the test process is killed.
use std::collections::HashMap;
use std::net::TcpListener;
use std::panic::Location;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, FromRedisValue, Value};
use slock_client::Locks;
use tempfile::TempDir;

/// The shell kills the server when the pipe to it is closed, however the test ends.
const WRAPPER: &str =
    r#"log=$1; shift; "$@" >>"$log" 2>&1 & server=$!; read line; kill -9 $server; wait $server"#;
const LIMIT: Duration = Duration::from_secs(60);

pub struct Server {
    pub port: u16,
    directory: TempDir,
    shell: Child,
}

impl Server {
    pub async fn start() -> Self {
        Self::with(&["--loadmodule", &module()]).await
    }

    pub async fn with(arguments: &[&str]) -> Self {
        let (port, directory) = (free_port(), tempfile::tempdir().unwrap());
        let shell = Command::new("sh")
            .args(["-c", WRAPPER, "sh"])
            .arg(directory.path().join("log"))
            .args(["redis-server", "--port", &port.to_string(), "--save", "", "--dir"])
            .arg(directory.path())
            .args(arguments)
            .stdin(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("sh can be started");
        let server = Self { port, directory, shell };
        until(async || server.try_ask::<String>("PING").await.is_ok()).await;
        server
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    pub fn client(&self) -> Client {
        Client::open(self.url()).unwrap()
    }

    pub fn locks(&self) -> Locks {
        Locks::new(self.client())
    }

    pub async fn ask<T: FromRedisValue>(&self, command: &str) -> T {
        self.try_ask(command).await.unwrap()
    }

    /// With more time than the crate's own half a second, which is short for a busy machine.
    pub async fn connection(&self) -> redis::RedisResult<MultiplexedConnection> {
        let limit = Some(Duration::from_secs(10));
        let config = AsyncConnectionConfig::new().set_connection_timeout(limit).set_response_timeout(limit);
        self.client().get_multiplexed_async_connection_with_config(&config).await
    }

    pub async fn try_ask<T: FromRedisValue>(&self, command: &str) -> redis::RedisResult<T> {
        let mut connection = self.connection().await?;
        let mut words = command.split(' ');
        redis::cmd(words.next().unwrap()).arg(words.collect::<Vec<_>>()).query_async(&mut connection).await
    }

    /// A number of `SLOCK.INFO key`; 0 if nobody holds or waits.
    pub async fn info(&self, key: &str, field: &str) -> i64 {
        let info: Option<HashMap<String, Value>> = self.ask(&format!("SLOCK.INFO {key}")).await;
        let value = info.and_then(|mut info| info.remove(field));
        value.map_or(0, |value| redis::from_redis_value(value).unwrap())
    }

    /// Waits until nobody holds a lock or waits for one.
    pub async fn is_empty(&self) {
        until(async || {
            let text: String = self.ask("INFO slock").await;
            text.contains("slock_locks:0\r") && text.contains("slock_waiters:0\r")
        })
        .await;
    }

    pub async fn calls(&self, command: &str) -> u64 {
        let text: String = self.ask("INFO commandstats").await;
        let start = format!("cmdstat_{command}:calls=");
        let line = text.lines().find_map(|line| line.strip_prefix(&start));
        line.map_or(0, |rest| rest.split(',').next().unwrap().parse().unwrap())
    }

    /// Stops the process without ending it. The result lets it go on.
    pub async fn pause(&self) -> Paused {
        let text: String = self.ask("INFO server").await;
        let process = text.lines().find_map(|line| line.strip_prefix("process_id:")).unwrap().to_owned();
        signal("STOP", &process);
        Paused(process)
    }

    pub fn kill(&mut self) {
        drop(self.shell.stdin.take());
        let _ = self.shell.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            let log = std::fs::read_to_string(self.directory.path().join("log")).unwrap_or_default();
            eprintln!("log of the server on port {}:\n{log}", self.port);
        }
    }
}

pub struct Paused(String);

impl Drop for Paused {
    fn drop(&mut self) {
        signal("CONT", &self.0);
    }
}

fn signal(name: &str, process: &str) {
    Command::new("kill").args([&format!("-{name}"), process]).status().unwrap();
}

pub fn module() -> String {
    std::env::var("SLOCK_MODULE").expect("SLOCK_MODULE names the module")
}

/// Below those from which the system draws for connections: one of them could have it before the server.
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = std::process::id() % 9_000;
    loop {
        let port = 11_000 + (first as u16 + NEXT.fetch_add(1, Ordering::Relaxed)) % 9_000;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// Waits for a condition. If that is in vain, the place of the call says for which.
#[track_caller]
pub fn until(mut condition: impl AsyncFnMut() -> bool) -> impl Future<Output = ()> {
    let place = Location::caller();
    async move {
        let waits = async {
            while !condition().await {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        if tokio::time::timeout(LIMIT, waits).await.is_err() {
            panic!("the condition at {place} did not become true in {LIMIT:?}");
        }
    }
}
