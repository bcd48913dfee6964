//! A server for one test. It ends with the test, and also when the test process is killed.

use std::collections::HashMap;
use std::net::TcpListener;
use std::panic::Location;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use redis::{AsyncConnectionConfig, Client, FromRedisValue, Value};
use slock_client::Locks;
use tempfile::TempDir;

/// The shell kills the server when the pipe to it is closed, however the test ends.
const WRAPPER: &str =
    r#"log=$1; shift; "$@" >>"$log" 2>&1 & server=$!; read line; kill -9 $server; wait $server"#;
/// Generous: a loaded machine is three times slower. Whatever waits for longer has failed.
const LIMIT: Duration = Duration::from_secs(60);
/// A whole test.
const TEST_LIMIT: Duration = Duration::from_secs(240);

pub struct Server {
    pub port: u16,
    arguments: Vec<String>,
    directory: TempDir,
    shell: Child,
    ended: Arc<AtomicBool>,
}

impl Server {
    /// A test that waits for ever ends all tests, and says which it was.
    fn end_the_test_after(&self, limit: Duration) {
        let (ended, log) = (self.ended.clone(), self.log());
        let test = std::thread::current().name().unwrap_or_default().to_owned();
        std::thread::spawn(move || {
            let started = Instant::now();
            while started.elapsed() < limit {
                if ended.load(Ordering::Relaxed) {
                    return;
                }
                std::thread::sleep(Duration::from_millis(500));
            }
            eprintln!("{test} was not over after {limit:?}. The log of its server:\n{}", read(&log));
            std::process::exit(101);
        });
    }

    fn log(&self) -> PathBuf {
        self.directory.path().join("log")
    }

    pub async fn start() -> Self {
        Self::with(&["--loadmodule", &module()]).await
    }

    pub async fn with(arguments: &[&str]) -> Self {
        let port = free_port();
        let directory = tempfile::tempdir().unwrap();
        let arguments: Vec<_> = arguments.iter().map(|argument| argument.to_string()).collect();
        let shell = spawn(port, &directory, &arguments);
        let server = Self { port, arguments, directory, shell, ended: Arc::default() };
        server.end_the_test_after(TEST_LIMIT);
        server.is_up().await;
        server
    }

    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub fn client(&self) -> Client {
        Client::open(format!("redis://127.0.0.1:{}/", self.port)).unwrap()
    }

    pub fn locks(&self) -> Locks {
        Locks::new(self.client())
    }

    pub async fn ask<T: FromRedisValue>(&self, command: &str) -> T {
        self.try_ask(command).await.unwrap()
    }

    pub async fn try_ask<T: FromRedisValue>(&self, command: &str) -> redis::RedisResult<T> {
        let limit = Some(Duration::from_secs(10));
        let config = AsyncConnectionConfig::new().set_connection_timeout(limit).set_response_timeout(limit);
        let mut connection = self.client().get_multiplexed_async_connection_with_config(&config).await?;
        let mut words = command.split(' ');
        let mut command = redis::cmd(words.next().unwrap());
        for word in words {
            command.arg(word);
        }
        command.query_async(&mut connection).await
    }

    async fn is_up(&self) {
        until(async || self.try_ask::<String>("PING").await.is_ok()).await;
    }

    /// A number of `SLOCK.INFO key`; 0 when nobody holds or waits.
    pub async fn info(&self, key: &str, field: &str) -> i64 {
        let info: Option<HashMap<String, Value>> = self.ask(&format!("SLOCK.INFO {key}")).await;
        let value = info.and_then(|mut info| info.remove(field));
        value.map_or(0, |value| redis::from_redis_value(value).unwrap())
    }

    pub async fn is_free(&self, key: &str) -> bool {
        self.ask::<Value>(&format!("SLOCK.INFO {key}")).await == Value::Nil
    }

    /// How often the command was called.
    pub async fn calls(&self, command: &str) -> u64 {
        let text: String = self.ask("INFO commandstats").await;
        let start = format!("cmdstat_{command}:calls=");
        let line = text.lines().find_map(|line| line.strip_prefix(&start));
        line.map_or(0, |rest| rest.split(',').next().unwrap().parse().unwrap())
    }

    pub async fn clients(&self) -> usize {
        let text: String = self.ask("CLIENT LIST").await;
        // The connection that asks is not counted.
        text.lines().count() - 1
    }

    async fn process(&self) -> String {
        let text: String = self.ask("INFO server").await;
        let line = text.lines().find_map(|line| line.strip_prefix("process_id:"));
        line.unwrap().to_owned()
    }

    /// Stops the process without ending it. The result lets it go on.
    pub async fn pause(&self) -> Paused {
        let process = self.process().await;
        signal("STOP", &process);
        Paused(process)
    }

    pub fn kill(&mut self) {
        drop(self.shell.stdin.take());
        let _ = self.shell.wait();
    }

    /// Starts it anew on the same port. Without persistence it comes back empty.
    pub async fn restart(&mut self) {
        self.kill();
        self.shell = spawn(self.port, &self.directory, &self.arguments);
        self.is_up().await;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        self.kill();
        if std::thread::panicking() {
            eprintln!("log of the server on port {}:\n{}", self.port, read(&self.log()));
        }
    }
}

fn read(log: &Path) -> String {
    std::fs::read_to_string(log).unwrap_or_default()
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

fn spawn(port: u16, directory: &TempDir, arguments: &[String]) -> Child {
    Command::new("sh")
        .args(["-c", WRAPPER, "sh"])
        .arg(directory.path().join("log"))
        .args(["redis-server", "--port", &port.to_string(), "--save", "", "--dir"])
        .arg(directory.path())
        .args(arguments)
        .stdin(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("sh can be started")
}

pub fn module() -> String {
    std::env::var("SLOCK_MODULE").expect("SLOCK_MODULE names the module")
}

/// A port that is free, and also the one on which a node of a cluster talks to the others. Below those from which the
/// system draws for connections: one of them could have it before the server.
pub fn free_port() -> u16 {
    static NEXT: LazyLock<AtomicU16> = LazyLock::new(|| AtomicU16::new(rand::random()));
    loop {
        let port = 11_000 + NEXT.fetch_add(1, Ordering::Relaxed) % 9_000;
        if [port, port + 10_000].iter().all(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok()) {
            return port;
        }
    }
}

/// Waits for a condition. The place of the call says for which.
#[track_caller]
pub fn until(condition: impl AsyncFnMut() -> bool) -> impl Future<Output = ()> {
    until_limit(LIMIT, condition)
}

#[track_caller]
fn until_limit(limit: Duration, mut condition: impl AsyncFnMut() -> bool) -> impl Future<Output = ()> {
    let place = Location::caller();
    async move {
        let waits = async {
            while !condition().await {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        if tokio::time::timeout(limit, waits).await.is_err() {
            panic!("waited in vain for {limit:?}, for the condition at {place}");
        }
    }
}

#[tokio::test]
#[should_panic(expected = "integration/server.rs")]
async fn a_wait_in_vain_ends_and_says_where() {
    until_limit(Duration::from_millis(20), async || false).await;
}

#[tokio::test]
async fn a_free_port_has_a_free_bus_and_the_output_of_a_server_is_kept() {
    let taken = TcpListener::bind(("127.0.0.1", free_port() + 10_000));
    assert!(taken.is_ok());
    let server = Server::start().await;
    assert!(read(&server.log()).contains("Ready to accept connections"));
}
