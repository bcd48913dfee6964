//! Something that all need, such as a connection: it is made once, and whoever comes meanwhile waits for that.

use std::sync::RwLock;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use tokio_util::task::AbortOnDropHandle;

use crate::answers::Failure;

/// The one attempt to make it. Many read what came of it at once, with every command.
pub(crate) struct Cached<T>(RwLock<Option<Attempt<T>>>);

/// It goes on when all have left who waited for it, however little time each of them had.
type Attempt<T> = Shared<BoxFuture<'static, Result<T, Failure>>>;

const NO_PANIC: &str = "no panic while this is locked";

impl<T: Clone + Send + Sync + 'static> Cached<T> {
    pub(crate) fn new() -> Self {
        Self(RwLock::new(None))
    }

    /// What is there.
    pub(crate) fn current(&self) -> Option<T> {
        made(self.0.read().expect(NO_PANIC).as_ref()?)
    }

    /// What is there, or comes of the attempt that is under way, or of a new one. Whoever waits for one that fails
    /// fails with it: a thousand tasks must not try a server that is away one after the other.
    pub(crate) async fn get<F>(&self, make: impl FnOnce() -> F) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, Failure>> + Send + 'static,
    {
        let attempt = {
            let mut attempt = self.0.write().expect(NO_PANIC);
            attempt.take_if(|attempt| matches!(attempt.clone().now_or_never(), Some(Err(_))));
            let begin = || {
                let task = AbortOnDropHandle::new(tokio::spawn(make()));
                // A runtime that shuts down ends it.
                task.map(|made| made.unwrap_or_else(|_| Err(Failure::connection_lost()))).boxed().shared()
            };
            attempt.get_or_insert_with(begin).clone()
        };
        attempt.await
    }

    /// The next one who needs it makes a new one, if this is true of what is there.
    pub(crate) fn discard_if(&self, is_bad: impl FnOnce(&T) -> bool) {
        let mut attempt = self.0.write().expect(NO_PANIC);
        attempt.take_if(|attempt| made(attempt).is_some_and(|made| is_bad(&made)));
    }

    /// Takes what is there, and ends an attempt for which nobody waits.
    pub(crate) fn take(&self) -> Option<T> {
        made(&self.0.write().expect(NO_PANIC).take()?)
    }
}

fn made<T: Clone>(attempt: &Attempt<T>) -> Option<T> {
    attempt.peek()?.as_ref().ok().cloned()
}

#[cfg(test)]
#[path = "../tests/unit/cached.rs"]
mod tests;
