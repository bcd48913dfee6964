//! A proxy that holds back replies, and cuts connections.

use std::sync::Arc;

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
    task: JoinHandle<()>,
}

impl Proxy {
    pub async fn start(server: &Server) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (replies, _) = watch::channel(Replies::Pass);
        let cuts = Arc::new(watch::channel(0).0);
        let (to, replies_of, cuts_of) = (server.port, replies.clone(), cuts.clone());
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(join(client, to, replies_of.subscribe(), cuts_of.subscribe()));
            }
        });
        Self { port, replies, cuts, task }
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
) {
    let Ok(server) = TcpStream::connect(("127.0.0.1", to)).await else { return };
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let commands = async { tokio::io::copy(&mut from_client, &mut to_server).await.map(drop) };
    let answers = async {
        let mut buffer = vec![0; 65536];
        loop {
            let length = from_server.read(&mut buffer).await?;
            let _ = replies.wait_for(|replies| *replies == Replies::Pass).await;
            if length == 0 {
                return std::io::Result::Ok(());
            }
            to_client.write_all(&buffer[..length]).await?;
        }
    };
    tokio::select! {
        biased;
        _ = cuts.changed() => {}
        _ = commands => {}
        _ = answers => {}
    }
}
