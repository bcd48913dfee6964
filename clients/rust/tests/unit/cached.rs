use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use futures_util::future::{join_all, poll_immediate};
use tokio::sync::Notify;

use super::*;

#[tokio::test]
async fn who_waited_for_a_failure_shares_it() {
    let (cached, tries) = (Cached::<()>::new(), Arc::new(AtomicU32::new(0)));
    let get = || {
        let tries = tries.clone();
        cached.get(|| async move {
            tries.fetch_add(1, Ordering::SeqCst);
            Err(Failure::no_answer("it"))
        })
    };
    assert!(join_all((0..100).map(|_| get())).await.iter().all(Result::is_err));
    assert_eq!(tries.load(Ordering::SeqCst), 1);
    // Who comes later tries again.
    get().await.unwrap_err();
    assert_eq!(tries.load(Ordering::SeqCst), 2);
}

/// Many who each have less time than it takes.
#[tokio::test]
async fn an_attempt_goes_on_when_those_who_wait_for_it_leave() {
    let (cached, tries, may_end) = (Cached::new(), Arc::new(AtomicU32::new(0)), Arc::new(Notify::new()));
    let get = || {
        let (tries, may_end) = (tries.clone(), may_end.clone());
        cached.get(|| async move {
            let number = tries.fetch_add(1, Ordering::SeqCst);
            may_end.notified().await;
            Ok(number)
        })
    };
    for _ in 0..100 {
        assert!(poll_immediate(get()).await.is_none());
        tokio::task::yield_now().await;
    }
    may_end.notify_one();
    assert_eq!(get().await.unwrap(), 0);
    assert_eq!(tries.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_failure_that_nobody_waited_for_is_forgotten() {
    let (cached, may_end) = (Cached::new(), Arc::new(Notify::new()));
    let fails = may_end.clone();
    let failing = cached.get(|| async move {
        fails.notified().await;
        Err(Failure::no_answer("it"))
    });
    assert!(poll_immediate(failing).await.is_none());
    may_end.notify_one();
    while Arc::strong_count(&may_end) > 1 {
        tokio::task::yield_now().await;
    }
    assert_eq!(cached.get(|| async { Ok(1) }).await.unwrap(), 1);
}

#[tokio::test]
async fn what_is_taken_while_it_is_made_is_not_made() {
    let (cached, made) = (Cached::<()>::new(), Arc::new(()));
    let makes = made.clone();
    let getting = cached.get(|| async move {
        std::future::pending::<()>().await;
        drop(makes);
        Ok(())
    });
    assert!(poll_immediate(getting).await.is_none());
    assert_eq!(cached.take(), None);
    while Arc::strong_count(&made) > 1 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn an_earlier_one_discards_no_later_one() {
    let cached = Cached::new();
    cached.get(|| async { Ok(1) }).await.unwrap();
    cached.discard_if(|made| *made == 1);
    cached.get(|| async { Ok(2) }).await.unwrap();
    cached.discard_if(|made| *made == 1);
    assert_eq!(cached.current(), Some(2));
}
