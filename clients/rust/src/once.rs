//! Something that all need, such as a connection: one makes it, and the others wait for that.

use std::sync::{Mutex, MutexGuard};
use std::time::Instant;

use redis::RedisError;

pub(crate) struct Once<T> {
    made: Mutex<Made<T>>,
    /// The last failure, and when it came.
    making: tokio::sync::Mutex<Option<(Instant, RedisError)>>,
}

struct Made<T> {
    value: Option<T>,
    /// Which one it is, so that nobody discards a later one.
    number: u64,
}

impl<T> Default for Once<T> {
    fn default() -> Self {
        Self { made: Mutex::new(Made { value: None, number: 0 }), making: tokio::sync::Mutex::default() }
    }
}

impl<T: Clone> Once<T> {
    fn made(&self) -> MutexGuard<'_, Made<T>> {
        self.made.lock().expect("no panic while this is locked")
    }

    /// What is there, and its number.
    pub(crate) fn current(&self) -> Option<(T, u64)> {
        let made = self.made();
        made.value.clone().map(|value| (value, made.number))
    }

    /// What is there, or is made now. Who has waited while another failed fails with it: a thousand tasks
    /// must not try a server that is away one after the other.
    pub(crate) async fn get(
        &self,
        make: impl Future<Output = Result<T, RedisError>>,
    ) -> Result<(T, u64), RedisError> {
        if let Some(current) = self.current() {
            return Ok(current);
        }
        let came = Instant::now();
        let mut failed = self.making.lock().await;
        if let Some(current) = self.current() {
            return Ok(current);
        }
        if let Some((at, error)) = &*failed
            && *at >= came
        {
            return Err(error.clone());
        }
        match make.await {
            Ok(value) => {
                let mut made = self.made();
                made.value = Some(value.clone());
                made.number += 1;
                Ok((value, made.number))
            }
            Err(error) => {
                *failed = Some((Instant::now(), error.clone()));
                Err(error)
            }
        }
    }

    /// The next one who needs it makes a new one.
    pub(crate) fn discard(&self, number: u64) {
        let mut made = self.made();
        if made.number == number {
            made.value = None;
        }
    }

    pub(crate) fn take(&self) -> Option<T> {
        self.made().value.take()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use futures_util::future::join_all;

    use super::*;

    #[tokio::test]
    async fn who_waited_for_a_failure_shares_it() {
        let (once, tries) = (Once::<()>::default(), AtomicU32::new(0));
        let get = || {
            once.get(async {
                tries.fetch_add(1, Ordering::SeqCst);
                tokio::task::yield_now().await;
                Err(RedisError::from((redis::ErrorKind::Io, "away")))
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
        let once = Once::default();
        let (_, first) = once.get(async { Ok(1) }).await.unwrap();
        once.discard(first);
        let (_, second) = once.get(async { Ok(2) }).await.unwrap();
        once.discard(first);
        assert_eq!(once.current(), Some((2, second)));
    }
}
