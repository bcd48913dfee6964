//! Something that all need, such as a connection: one makes it, and the others wait for that.

use std::sync::RwLock;
use std::time::Instant;

use crate::answers::Failure;

pub(crate) struct Cached<T> {
    /// Many read it at once, with every command.
    made: RwLock<Made<T>>,
    /// The last failure, and when it came.
    making: tokio::sync::Mutex<Option<(Instant, Failure)>>,
}

const NO_PANIC: &str = "no panic while this is locked";

struct Made<T> {
    value: Option<T>,
    /// Which one it is, so that nobody discards a later one.
    number: u64,
}

impl<T> Default for Cached<T> {
    fn default() -> Self {
        Self { made: RwLock::new(Made { value: None, number: 0 }), making: tokio::sync::Mutex::default() }
    }
}

impl<T: Clone> Cached<T> {
    /// What is there, and its number.
    pub(crate) fn current(&self) -> Option<(T, u64)> {
        let made = self.made.read().expect(NO_PANIC);
        made.value.clone().map(|value| (value, made.number))
    }

    fn change<R>(&self, change: impl FnOnce(&mut Made<T>) -> R) -> R {
        change(&mut self.made.write().expect(NO_PANIC))
    }

    /// What is there, or is made now. Who has waited while another failed fails with it: a thousand tasks
    /// must not try a server that is away one after the other.
    pub(crate) async fn get(
        &self,
        make: impl Future<Output = Result<T, Failure>>,
    ) -> Result<(T, u64), Failure> {
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
                let number = self.change(|made| {
                    made.value = Some(value.clone());
                    made.number += 1;
                    made.number
                });
                Ok((value, number))
            }
            Err(error) => {
                *failed = Some((Instant::now(), error.clone()));
                Err(error)
            }
        }
    }

    /// The next one who needs it makes a new one.
    pub(crate) fn discard(&self, number: u64) {
        self.change(|made| made.value.take_if(|_| made.number == number));
    }

    pub(crate) fn take(&self) -> Option<T> {
        self.change(|made| made.value.take())
    }
}

#[cfg(test)]
#[path = "../tests/unit/cached.rs"]
mod tests;
