//! No call takes longer than its limit, and its error says why.

use std::error::Error as _;
use std::time::{Duration, Instant};

use futures_util::future::{BoxFuture, FutureExt, join_all};
use slock_client::{Error, Locks, Mode, Server as Given};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use crate::server::Server;

const LIMIT: Duration = Duration::from_millis(500);

/// The texts of an error and its causes.
fn texts(error: &Error) -> Vec<String> {
    let mut texts = vec![error.to_string()];
    let mut cause = error.source();
    while let Some(error) = cause {
        texts.push(error.to_string());
        cause = error.source();
    }
    texts
}

/// Others have the lock, or the server cannot be reached: a program tells these apart. No text comes twice.
#[tokio::test]
async fn busy_is_not_down() {
    let mut server = Server::start().await;
    let at_once = Duration::ZERO; // still, a server that replies is used
    let locks = Locks::builder(server.client()).retry_for(at_once).retry_wait_for(at_once).build();
    let () = server.ask("SLOCK.LOCK k another 60000 META web-7").await;
    assert!(locks.write("k").try_acquire().await.unwrap().is_none());
    let tiny = locks.write("k").wait(Duration::from_nanos(1)); // it is none, and the reply is waited for
    assert!(matches!(tiny.acquire().await, Err(Error::TimedOut { .. })));
    let busy = locks.write("k").wait(Duration::from_millis(50)).acquire().await.unwrap_err();
    assert!(matches!(busy, Error::TimedOut { .. }), "{busy:?}");
    let [text] = &texts(&busy)[..] else { panic!("{busy:?}") };
    assert!(
        text.starts_with("timed out after ") && text.ends_with("(lock k), held by web-7 another"),
        "{text}"
    );

    let hold = locks.write("held").ttl(Duration::from_secs(2)).acquire().await.unwrap();
    server.kill();
    for wait in [Duration::ZERO, Duration::from_millis(50), Duration::from_secs(60)] {
        let down = locks.write("k").wait(wait).acquire().await.unwrap_err();
        assert!(matches!(down, Error::NoAnswer { .. }), "{down:?}");
        let [text, cause] = &texts(&down)[..] else { panic!("{:?}", texts(&down)) };
        assert!(
            text.starts_with("no reply from the server within ") && text.ends_with(" (lock k)"),
            "{text}"
        );
        assert!(cause.contains("refused"), "{cause}");
        assert!(down.redis().is_some_and(redis::RedisError::is_connection_refusal));
    }
    let lost = hold.lost().await;
    let [text, cause] = &texts(&lost)[..] else { panic!("{:?}", texts(&lost)) };
    assert_eq!(text, "the lock was lost, expired (lock held)");
    assert!(cause.contains("refused"), "{cause}");
}

/// A server that does not even accept connections: its backlog is full, and the kernel drops what comes.
async fn full() -> (TcpListener, Vec<TcpStream>) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(1).unwrap();
    let address = listener.local_addr().unwrap();
    let mut connections = Vec::new();
    while let Ok(Ok(connection)) =
        tokio::time::timeout(Duration::from_millis(200), TcpStream::connect(address)).await
    {
        connections.push(connection);
    }
    (listener, connections)
}

/// As with TLS to a server that is far away: longer than the reply to a command may take.
#[tokio::test]
async fn a_connection_that_is_slow_to_open() {
    let server = Server::start().await;
    let proxy = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = redis::Client::open(format!("redis://{}/", proxy.local_addr().unwrap())).unwrap();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = proxy.accept().await {
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(1200)).await;
                let mut server = TcpStream::connect(("127.0.0.1", server.port)).await.unwrap();
                tokio::io::copy_bidirectional(&mut client, &mut server).await
            });
        }
        drop(server);
    });
    Locks::new(client).write("k").acquire().await.unwrap().release().await.unwrap();
}

async fn within(limit: Duration, name: &str, call: BoxFuture<'_, Result<(), Error>>) {
    let began = Instant::now();
    let result = call.await;
    assert!(matches!(result, Err(Error::NoAnswer { .. })), "{name}: {result:?}");
    // A second, of which a loaded machine gets another two.
    assert!(began.elapsed() < limit + Duration::from_secs(3), "{name}: {:?}", began.elapsed());
}

#[tokio::test]
async fn each_call_ends_in_a_black_hole() {
    let (full, silent) = (full().await, TcpListener::bind("127.0.0.1:0").await.unwrap());
    let mut paused = Server::start().await;
    let given = paused.client();
    // Without a time limit, and given to the library.
    let config = redis::AsyncConnectionConfig::new().set_response_timeout(None);
    let connection = given.get_multiplexed_async_connection_with_config(&config).await.unwrap();
    let of = |address: std::net::SocketAddr| redis::Client::open(format!("redis://{address}/")).unwrap();
    let places: [(&str, Given); 4] = [
        ("full", of(full.0.local_addr().unwrap()).into()),
        ("silent", of(silent.local_addr().unwrap()).into()),
        ("paused", paused.client().into()),
        ("paused, with a connection", (given, connection).into()),
    ];
    let mut all = Vec::new();
    for (place, server) in places {
        let locks = Locks::builder(server).retry_for(LIMIT).build();
        let holds = match place.starts_with("paused") {
            true => Some((
                locks.write(format!("{place} extended")).acquire().await.unwrap(),
                locks.write(format!("{place} released")).acquire().await.unwrap(),
                locks.write(format!("{place} downgraded")).acquire().await.unwrap(),
            )),
            false => None,
        };
        all.push((place, locks, holds));
    }
    let process = paused.pause().await;
    let calls = all.iter().flat_map(|(place, locks, holds)| {
        let mut calls: Vec<(&str, BoxFuture<'_, Result<(), Error>>)> = vec![
            ("acquire", async { locks.write("k").acquire().await.map(drop) }.boxed()),
            ("wait", async { locks.write("k").wait(LIMIT / 2).acquire().await.map(drop) }.boxed()),
            ("try", async { locks.write("k").try_acquire().await.map(drop) }.boxed()),
            ("run", async { locks.write("k").run(|_| async {}).await }.boxed()),
            ("adopt", async { locks.adopt("k", "token", Mode::Write).await.map(drop) }.boxed()),
            ("release a token", async { locks.release("k", "token").await.map(drop) }.boxed()),
            ("info", async { locks.info("k").await.map(drop) }.boxed()),
            ("queues", async { locks.queues().await.map(drop) }.boxed()),
        ];
        if let Some((extended, released, downgraded)) = holds {
            calls.push(("extend", extended.extend(Duration::from_secs(60)).boxed()));
            calls.push(("release", released.release().boxed()));
            calls.push(("downgrade", async { downgraded.downgrade().await.map(drop) }.boxed()));
        }
        calls.into_iter().map(move |(name, call)| async move {
            within(LIMIT, &format!("{name}, {place}"), call).await;
        })
    });
    join_all(calls).await;
    for (_, locks, _) in &all {
        let began = Instant::now();
        locks.close().await;
        assert!(began.elapsed() < LIMIT + Duration::from_secs(3));
    }
    drop(process);
    paused.kill();
}
