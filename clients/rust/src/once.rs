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
#[path = "../tests/unit/once.rs"]
mod tests;
