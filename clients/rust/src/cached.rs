//! Something that all need, such as a connection: one makes it, and the others wait for that.

use std::sync::RwLock;
use std::time::Instant;

use crate::answers::Failure;

pub(crate) struct Cached<T> {
    /// What is there, and which one it is. Many read it at once, with every command.
    made: RwLock<Option<(T, u64)>>,
    making: tokio::sync::Mutex<Making>,
}

#[derive(Default)]
struct Making {
    /// How many have been made.
    number: u64,
    /// The last failure, and when it came.
    failed: Option<(Instant, Failure)>,
}

const NO_PANIC: &str = "no panic while this is locked";

impl<T> Default for Cached<T> {
    fn default() -> Self {
        Self { made: RwLock::default(), making: tokio::sync::Mutex::default() }
    }
}

impl<T: Clone> Cached<T> {
    /// What is there, and its number.
    pub(crate) fn current(&self) -> Option<(T, u64)> {
        self.made.read().expect(NO_PANIC).clone()
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
        let mut making = self.making.lock().await;
        if let Some(current) = self.current() {
            return Ok(current);
        }
        if let Some((at, failure)) = &making.failed
            && *at >= came
        {
            return Err(failure.clone());
        }
        match make.await {
            Ok(value) => {
                making.number += 1;
                let made = (value, making.number);
                *self.made.write().expect(NO_PANIC) = Some(made.clone());
                Ok(made)
            }
            Err(failure) => {
                making.failed = Some((Instant::now(), failure.clone()));
                Err(failure)
            }
        }
    }

    /// The next one who needs it makes a new one, unless there is a later one.
    pub(crate) fn discard(&self, number: u64) {
        self.made.write().expect(NO_PANIC).take_if(|(_, current)| *current == number);
    }

    pub(crate) fn take(&self) -> Option<T> {
        self.made.write().expect(NO_PANIC).take().map(|(value, _)| value)
    }
}

#[cfg(test)]
#[path = "../tests/unit/cached.rs"]
mod tests;
