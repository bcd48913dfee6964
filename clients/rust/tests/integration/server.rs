//! A server for one test. It ends with the test, and also when the test process is killed.

use std::collections::HashMap;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use redis::{Client, FromRedisValue, Value};
use slock_client::Locks;
use tempfile::TempDir;

/// The shell kills the server when the pipe to it is closed, however the test ends.
const WRAPPER: &str = r#""$@" >/dev/null 2>&1 & server=$!; read line; kill -9 $server; wait $server"#;

pub struct Server {
    pub port: u16,
    arguments: Vec<String>,
    directory: TempDir,
    shell: Child,
}

impl Server {
    pub async fn start() -> Self {
        Self::with(&["--loadmodule", &module()]).await
    }

    pub async fn with(arguments: &[&str]) -> Self {
        let port = free_port();
        let directory = tempfile::tempdir().unwrap();
        let arguments: Vec<_> = arguments.iter().map(|argument| argument.to_string()).collect();
        let shell = spawn(port, &directory, &arguments);
        let server = Self { port, arguments, directory, shell };
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
        let mut connection = self.client().get_multiplexed_async_connection().await?;
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
        self.kill();
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

fn spawn(port: u16, directory: &TempDir, arguments: &[String]) -> Child {
    Command::new("sh")
        .args(["-c", WRAPPER, "sh", "redis-server", "--port", &port.to_string(), "--save", "", "--dir"])
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

pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Waits for a condition. A test that waits for ever has failed.
pub async fn until(mut condition: impl AsyncFnMut() -> bool) {
    while !condition().await {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
