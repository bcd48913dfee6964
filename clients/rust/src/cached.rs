//! Something that all need, such as a connection: one makes it, and the others wait for that.

use std::sync::RwLock;
use std::time::Instant;

use crate::answers::Failure;

pub(crate) struct Cached<T> {
    /// What is there. Many read it at once, with every command.
    made: RwLock<Option<T>>,
    /// Locked while one is made. The last failure, and when it came.
    failed: tokio::sync::Mutex<Option<(Instant, Failure)>>,
}

const NO_PANIC: &str = "no panic while this is locked";

impl<T> Default for Cached<T> {
    fn default() -> Self {
        Self { made: RwLock::default(), failed: tokio::sync::Mutex::default() }
    }
}

impl<T: Clone> Cached<T> {
    /// What is there.
    pub(crate) fn current(&self) -> Option<T> {
        self.made.read().expect(NO_PANIC).clone()
    }

    /// What is there, or is made now. Who has waited while another failed fails with it: a thousand tasks
    /// must not try a server that is away one after the other.
    pub(crate) async fn get(&self, make: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
        if let Some(current) = self.current() {
            return Ok(current);
        }
        let came = Instant::now();
        let mut failed = self.failed.lock().await;
        if let Some(current) = self.current() {
            return Ok(current);
        }
        if let Some((at, failure)) = &*failed
            && *at >= came
        {
            return Err(failure.clone());
        }
        let made = make.await.inspect_err(|failure| *failed = Some((Instant::now(), failure.clone())))?;
        *self.made.write().expect(NO_PANIC) = Some(made.clone());
        Ok(made)
    }

    /// The next one who needs it makes a new one, if this is true of what is there.
    pub(crate) fn discard_if(&self, is_bad: impl FnOnce(&T) -> bool) {
        self.made.write().expect(NO_PANIC).take_if(|made| is_bad(made));
    }
}

#[cfg(test)]
#[path = "../tests/unit/cached.rs"]
mod tests;
