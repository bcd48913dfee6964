//! Releases and withdrawals that still run for tokens that the caller gave.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use redis::RedisError;
use tokio::sync::Notify;

use crate::answer;
use crate::command::Owner;

/// How long after the wait of an acquisition a release may go on for which it waits: that takes as long as any
/// command, also when the wait is zero.
const GRACE: Duration = Duration::from_millis(500);

/// A later hold of the same token must not be there yet when one of these is carried out.
#[derive(Default)]
pub(crate) struct GivenTokens {
    running: Mutex<HashMap<String, usize>>,
    ended: Notify,
}

/// A release or a withdrawal that runs until this is dropped.
pub(crate) struct Ending {
    tokens: Arc<GivenTokens>,
    token: String,
}

impl GivenTokens {
    fn running(&self) -> MutexGuard<'_, HashMap<String, usize>> {
        self.running.lock().expect("no panic while the tokens are locked")
    }

    /// Nothing for a token that the library drew: it is used once.
    pub(crate) fn ending(self: &Arc<Self>, owner: &Owner) -> Option<Ending> {
        if !owner.given {
            return None;
        }
        *self.running().entry(owner.token.clone()).or_default() += 1;
        Some(Ending { tokens: self.clone(), token: owner.token.clone() })
    }

    /// Waits until nothing runs any more that could end a new hold of this token.
    pub(crate) async fn ended(&self, owner: &Owner) {
        if !owner.given {
            return;
        }
        loop {
            let mut ended = std::pin::pin!(self.ended.notified());
            ended.as_mut().enable();
            if !self.running().contains_key(&owner.token) {
                return;
            }
            ended.await;
        }
    }
}

/// Whether this ended in time.
pub(crate) async fn within(deadline: Option<Instant>, ended: impl Future<Output = ()>) -> bool {
    let Some(deadline) = deadline else {
        ended.await;
        return true;
    };
    tokio::time::timeout_at((deadline + GRACE).into(), ended).await.is_ok()
}

/// The error where a release takes longer than the wait.
pub(crate) fn still_running() -> RedisError {
    answer::no_answer("the server to a release of the same token")
}

impl Drop for Ending {
    fn drop(&mut self) {
        let mut running = self.tokens.running();
        if let Some(count) = running.get_mut(&self.token) {
            *count -= 1;
            if *count == 0 {
                running.remove(&self.token);
            }
        }
        drop(running);
        self.tokens.ended.notify_waiters();
    }
}
