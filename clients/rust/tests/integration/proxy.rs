//! A proxy that holds back replies or one connection's commands, and cuts connections.

use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::server::Server;

#[derive(Clone, Copy, PartialEq)]
enum Replies {
    Pass,
    Hold,
}

pub struct Proxy {
    pub port: u16,
    replies: watch::Sender<Replies>,
    cuts: Arc<watch::Sender<u64>>,
    keeping: Arc<Keeping>,
    task: JoinHandle<()>,
}

/// Commands that stay in the proxy: those of one connection from one with this word on.
struct Keeping {
    word: Mutex<Option<&'static str>>,
    delivered: watch::Sender<bool>,
    /// Goes to the client before the next reply.
    inserted: Mutex<&'static [u8]>,
}

impl Keeping {
    /// Whether these bytes are the first to be kept.
    fn begins_with(&self, bytes: &[u8]) -> bool {
        let mut word = self.word.lock().unwrap();
        let begins = word.is_some_and(|word| bytes.windows(word.len()).any(|part| part == word.as_bytes()));
        if begins {
            *word = None;
        }
        begins
    }
}

impl Proxy {
    pub async fn start(server: &Server) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (replies, _) = watch::channel(Replies::Pass);
        let cuts = Arc::new(watch::channel(0).0);
        let (word, delivered, inserted) = (Mutex::default(), watch::channel(false).0, Mutex::default());
        let keeping = Arc::new(Keeping { word, delivered, inserted });
        let (to, replies_of, cuts_of, keeping_of) =
            (server.port, replies.clone(), cuts.clone(), keeping.clone());
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let keeping = keeping_of.clone();
                tokio::spawn(join(client, to, replies_of.subscribe(), cuts_of.subscribe(), keeping));
            }
        });
        Self { port, replies, cuts, keeping, task }
    }

    pub fn client(&self) -> redis::Client {
        redis::Client::open(format!("redis://127.0.0.1:{}/", self.port)).unwrap()
    }

    /// From now on replies stay in the proxy. Commands pass.
    pub fn hold_replies(&self) {
        self.replies.send_replace(Replies::Hold);
    }

    pub fn pass_replies(&self) {
        self.replies.send_replace(Replies::Pass);
    }

    /// The client gets this before the next reply.
    pub fn insert_before_a_reply(&self, message: &'static [u8]) {
        *self.keeping.inserted.lock().unwrap() = message;
    }

    /// Keeps the next command with this word, and all that follows on its connection.
    pub fn keep_from(&self, word: &'static str) {
        self.keeping.delivered.send_replace(false);
        *self.keeping.word.lock().unwrap() = Some(word);
    }

    /// Whether a command is kept since [`Proxy::keep_from`].
    pub fn has_kept(&self) -> bool {
        self.keeping.word.lock().unwrap().is_none()
    }

    /// Sends the server what was kept, also when the client has closed the connection.
    pub fn deliver(&self) {
        self.keeping.delivered.send_replace(true);
    }

    /// Closes all connections, with the replies that are held back. New ones pass.
    pub fn cut(&self) {
        self.cuts.send_modify(|cuts| *cuts += 1);
        self.pass_replies();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
        self.cut();
    }
}

async fn join(
    client: TcpStream,
    to: u16,
    mut replies: watch::Receiver<Replies>,
    mut cuts: watch::Receiver<u64>,
    keeping: Arc<Keeping>,
) {
    let Ok(server) = TcpStream::connect(("127.0.0.1", to)).await else { return };
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let commands = async {
        let mut buffer = vec![0; 65536];
        loop {
            let length = from_client.read(&mut buffer).await?;
            if length == 0 {
                return std::io::Result::Ok(());
            }
            if keeping.begins_with(&buffer[..length]) {
                let _ = keeping.delivered.subscribe().wait_for(|delivered| *delivered).await;
            }
            to_server.write_all(&buffer[..length]).await?;
        }
    };
    let answers = async {
        let mut buffer = vec![0; 65536];
        loop {
            let length = from_server.read(&mut buffer).await?;
            let _ = replies.wait_for(|replies| *replies == Replies::Pass).await;
            if length == 0 {
                return std::io::Result::Ok(());
            }
            let inserted = std::mem::take(&mut *keeping.inserted.lock().unwrap());
            to_client.write_all(&[inserted, &buffer[..length]].concat()).await?;
        }
    };
    tokio::select! {
        biased;
        _ = cuts.changed() => {}
        _ = commands => {}
        _ = answers => {}
    }
}
