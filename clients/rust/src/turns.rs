//! One at a time does what all need, such as to connect, and the others take what came of it.

use std::time::Instant;

use redis::RedisError;
use tokio::sync::Mutex;

/// The last failure, and when it came.
#[derive(Default)]
pub(crate) struct Turns(Mutex<Option<(Instant, RedisError)>>);

impl Turns {
    /// What is known, or what the work gives. Who has waited for another's turn that failed fails with it: a
    /// thousand tasks must not try a server that is away one after the other.
    pub(crate) async fn take<T>(
        &self,
        known: impl Fn() -> Option<T>,
        work: impl Future<Output = Result<T, RedisError>>,
    ) -> Result<T, RedisError> {
        if let Some(known) = known() {
            return Ok(known);
        }
        let came = Instant::now();
        let mut last_failure = self.0.lock().await;
        if let Some(known) = known() {
            return Ok(known);
        }
        if let Some((at, error)) = &*last_failure
            && *at >= came
        {
            return Err(error.clone());
        }
        let result = work.await;
        if let Err(error) = &result {
            *last_failure = Some((Instant::now(), error.clone()));
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use futures_util::future::join_all;

    use super::*;

    #[tokio::test]
    async fn who_waited_for_a_failure_shares_it() {
        let (turns, tries) = (Turns::default(), AtomicU32::new(0));
        let take = || {
            turns.take(|| None::<()>, async {
                tries.fetch_add(1, Ordering::SeqCst);
                tokio::task::yield_now().await;
                Err(RedisError::from((redis::ErrorKind::Io, "away")))
            })
        };
        assert!(join_all((0..100).map(|_| take())).await.iter().all(Result::is_err));
        assert_eq!(tries.load(Ordering::SeqCst), 1);
        // Who comes later tries again.
        take().await.unwrap_err();
        assert_eq!(tries.load(Ordering::SeqCst), 2);
    }
}
