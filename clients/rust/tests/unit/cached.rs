use std::sync::atomic::{AtomicU32, Ordering};

use futures_util::future::join_all;

use super::*;

#[tokio::test]
async fn who_waited_for_a_failure_shares_it() {
    let (cached, tries) = (Cached::<()>::default(), AtomicU32::new(0));
    let get = || {
        cached.get(async {
            tries.fetch_add(1, Ordering::SeqCst);
            tokio::task::yield_now().await;
            Err(Failure::no_answer("it"))
        })
    };
    assert!(join_all((0..100).map(|_| get())).await.iter().all(Result::is_err));
    assert_eq!(tries.load(Ordering::SeqCst), 1);
    // Who comes later tries again.
    get().await.unwrap_err();
    assert_eq!(tries.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn an_earlier_one_discards_no_later_one() {
    let cached = Cached::default();
    cached.get(async { Ok(1) }).await.unwrap();
    cached.discard_if(|made| *made == 1);
    cached.get(async { Ok(2) }).await.unwrap();
    cached.discard_if(|made| *made == 1);
    assert_eq!(cached.current(), Some(2));
}
