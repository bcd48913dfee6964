//! What the server tells of a lock and of its queues.

use std::time::Duration;

use slock_client::Mode;

use crate::server::{Server, until};

#[tokio::test]
async fn who_holds_and_who_waits() {
    for protocol in ["2", "3"] {
        let server = Server::start().await;
        let client =
            redis::Client::open(format!("redis://{}/?protocol={protocol}", server.address())).unwrap();
        let locks = slock_client::Locks::new(client);
        assert!(locks.info("k").await.unwrap().is_none());
        assert!(locks.queues().await.unwrap().is_empty());
        let hold = locks.read("k").metadata("host=a").acquire().await.unwrap();
        let request = locks.write("k").wait(Duration::from_secs(3600));
        let waits = tokio::spawn(async move { request.acquire().await });
        until(async || server.info("k", "waiters").await == 1).await;
        let info = locks.info("k").await.unwrap().unwrap();
        assert_eq!((info.mode, info.readers, info.waiters), (Some(Mode::Read), 1, 1));
        assert_eq!(info.fence, hold.fence());
        let [holder] = &info.holders[..] else { panic!("{info:?}") };
        assert_eq!((holder.token.as_str(), holder.fence), (hold.token(), hold.fence()));
        assert_eq!(holder.metadata.as_deref(), Some("host=a"));
        let [waiter] = &info.queue[..] else { panic!("{info:?}") };
        assert_eq!((waiter.mode, waiter.upgrade, waiter.metadata.as_ref()), (Mode::Write, false, None));
        assert!(waiter.wait.is_some_and(|wait| wait <= Duration::from_secs(3600)));
        let queues = locks.queues().await.unwrap();
        let [queue] = &queues[..] else { panic!("{queues:?}") };
        assert_eq!((queue.key.as_str(), queue.waiters, queue.writers), ("k", 1, 1));
        assert_eq!((queue.mode, queue.next.as_str()), (Some(Mode::Read), waiter.token.as_str()));
        waits.abort();
    }
}
