//! Tests of parts, over a server in memory whose replies and messages may be lost or late.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use redis::{Cmd, RedisResult, Value, make_extension_error};

use crate::acquisition::Grant;
use crate::clock::Moment;
use crate::protocol::{draw, message};
use crate::server::Server;
use crate::slot::{slot, tag_for};
use crate::testing::{Connection, MemoryServer, words};
use crate::transport::{Call, Reply, Topology, Transport};
use crate::{Error, Hold, Locks, Mode, Quorum};

/// Gives the reply to a command instead of the server, or nothing.
type Instead = Box<dyn Fn(&Cmd) -> Option<RedisResult<Value>> + Send + Sync>;

struct Filter {
    connection: Connection,
    topology: Topology,
    instead: Mutex<Instead>,
}

impl Filter {
    fn new(instead: impl Fn(&Cmd) -> Option<RedisResult<Value>> + Send + Sync + 'static) -> Arc<Self> {
        let connection = Connection::new(MemoryServer::new(), Arc::new(|_| {})); // no message arrives
        let topology = Topology { name: "filter".into(), is_cluster: false, is_failover: false };
        Arc::new(Self { connection, topology, instead: Mutex::new(Box::new(instead)) })
    }

    fn locks(self: &Arc<Self>) -> Locks {
        Locks::new(self.server())
    }

    fn server(self: &Arc<Self>) -> Server {
        let filter = self.clone();
        Server::over(|_| filter)
    }
}

impl Transport for Arc<Filter> {
    fn call<'a>(&'a self, call: Call<'a>) -> BoxFuture<'a, RedisResult<Reply>> {
        let instead = (self.instead.lock().unwrap())(call.command);
        async move {
            match instead {
                Some(reply) => Ok(Reply { value: reply?, then: Value::Nil, is_alone: true }),
                None => self.connection.call(call).await,
            }
        }
        .boxed()
    }

    fn listen<'a>(&'a self, channel: &'a str) -> BoxFuture<'a, RedisResult<()>> {
        self.connection.listen(channel)
    }

    fn topology(&self) -> &Topology {
        &self.topology
    }

    fn close(&self) {}
}

fn is(command: &Cmd, name: &str) -> bool {
    words(command)[0] == name
}

/// A request that waits is sent again.
#[tokio::test]
async fn a_message_that_is_lost() {
    let filter = Filter::new(|_| None);
    // So it is sent again after at most 250 ms.
    let locks = Locks::builder(filter.server()).retry_wait_for(Duration::from_secs(1)).build();
    let first = locks.write("k").acquire().await.unwrap();
    let request = locks.write("k");
    let second = tokio::spawn(async move { request.acquire().await });
    while locks.info("k").await.unwrap().unwrap().waiters == 0 {
        tokio::task::yield_now().await;
    }
    first.release().await.unwrap();
    let second = tokio::time::timeout(Duration::from_secs(3), second).await.expect("it is sent again");
    second.unwrap().unwrap().release().await.unwrap();
}

/// A free lock is taken, whatever becomes of the channel.
#[tokio::test]
async fn a_channel_that_nobody_subscribes_to() {
    let filter = Filter::new(|command| {
        let refused = make_extension_error("NOSUBSCRIBER".into(), None);
        words(command).iter().any(|word| word == "NOTIFY").then_some(Err(refused))
    });
    let (locks, wait) = (filter.locks(), Duration::from_millis(20));
    let _busy = locks.write("busy").acquire().await.unwrap();
    assert!(matches!(locks.write("busy").wait(wait).acquire().await, Err(Error::TimedOut(_))));
    let _hold = locks.write("free").wait(100 * wait).acquire().await.unwrap();
}

/// The server refuses a request that reaches it after the end of its acquisition.
#[tokio::test]
async fn a_request_that_is_late() {
    let late = Arc::new(Mutex::new(None));
    let kept = late.clone();
    let filter = Filter::new(move |command| {
        let lost = std::io::Error::new(std::io::ErrorKind::TimedOut, "lost").into();
        is(command, "SLOCK.LOCK").then(|| *kept.lock().unwrap() = Some(words(command))).map(|()| Err(lost))
    });
    let locks = Locks::builder(filter.server()).retry_for(Duration::from_millis(5)).build();
    let error = locks.write("k").acquire().await.unwrap_err();
    assert!(matches!(error, Error::NoAnswer { .. }), "{error:?}");
    locks.close().await; // waits for the end
    let words = late.lock().unwrap().take().expect("the request was sent");
    let reply = filter.connection.server.command(&words.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(reply.unwrap_err().code(), Some("REFUSED"));
}

/// A reply to an extension counts for the fencing token that it named: a change of mode gives another one meanwhile.
#[tokio::test]
async fn a_reply_counts_for_the_fence_that_it_names() {
    let hold: Arc<Mutex<Option<Arc<Hold>>>> = Arc::default();
    let changed = hold.clone();
    let filter = Filter::new(move |command| {
        let hold = changed.lock().unwrap().take();
        is(command, "SLOCK.EXTEND").then(|| {
            if let Some(hold) = hold {
                hold.inner.granted(Mode::Write, Grant { fence: hold.fence() + 1, from: Moment::now() });
            }
            Ok(Value::Int(0))
        })
    });
    let held = Arc::new(filter.locks().read("k").acquire().await.unwrap());
    *hold.lock().unwrap() = Some(held.clone());
    held.extend(Duration::from_secs(60)).await.unwrap();
    assert_eq!(held.mode(), Mode::Write);
    assert!(matches!(held.extend(Duration::from_secs(60)).await, Err(Error::Lost { .. })));
}

/// A hold counts as valid for less than its ttl, and no extension shortens that.
#[tokio::test]
async fn validity() {
    let (locks, ttl) = (Locks::new(MemoryServer::new()), Duration::from_secs(10));
    assert_eq!(locks.servers.counted(ttl), Duration::from_millis(10_000 - 11));
    let quorum = Locks::new(Quorum::new([MemoryServer::new()]));
    assert_eq!(quorum.servers.counted(ttl), Duration::from_millis(10_000 - 102));
    let most = locks.write("most").max_hold(ttl / 10).acquire().await.unwrap();
    assert!(most.remaining() <= ttl / 10);
    let hold = locks.write("k").ttl(Duration::from_secs(3600)).acquire().await.unwrap();
    hold.extend(ttl).await.unwrap();
    assert!(hold.remaining() > Duration::from_secs(3500));
    hold.inner.granted(Mode::Write, Grant { fence: hold.fence(), from: Moment::default() });
    assert!(hold.remaining() > Duration::from_secs(3500));
}

/// Work that has detached its hold keeps its result. Who adopts it may give other metadata.
#[tokio::test]
async fn a_lock_is_handed_over() {
    let locks = Locks::new(MemoryServer::new());
    let detach = async |hold: Arc<Hold>| hold.detach().map(|()| hold.token().to_owned()).unwrap();
    let token = locks.write("k").metadata("web-7").run(detach).await.unwrap();
    let _adopted = locks.write("k").token(token).metadata("worker-7").adopt().await.unwrap();
    let info = locks.info("k").await.unwrap().unwrap();
    assert_eq!(info.holders[0].metadata.as_deref(), Some("worker-7"));
}

#[test]
fn channels_are_in_the_slot_of_their_key() {
    assert_eq!(slot("123456789"), 0x31c3); // by the Redis Cluster specification
    for key in ["k", "{user}:k", "a{}b", "a{b", "a}b", "}", "{a}{b}", "}{x}", &"long".repeat(100)] {
        assert_eq!(slot(&format!("{{{}}}.waits:", tag_for(key))), slot(key), "{key}");
    }
}

#[test]
fn messages() {
    assert!(matches!(message(b"7 tag"), Some(("tag", Ok(7)))));
    assert!(
        matches!(message(b"-DEADLOCK tag"), Some(("tag", Err(error))) if error.code() == Some("DEADLOCK"))
    );
    assert!(message(b"nothing").is_none() && message(b"x tag").is_none());
}

#[test]
fn nothing_that_is_drawn_looks_like_an_option() {
    assert!((0..1_000).map(|_| draw()).all(|drawn| drawn.len() == 22 && !drawn.contains('-')));
}
