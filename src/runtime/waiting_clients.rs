//! Those who wait: blocked clients, and whoever has subscribed to the channels on which requests are answered.

use slock_core::{Answer, Clients, LockError, NotGranted, WaitResult, Waiter};

use super::blocked_clients::BlockedClients;
use super::callers::LastCaller;
use super::notify::Heard;
use crate::errors::error_reply;
use crate::server::Reply;

/// See the module.
#[derive(Default)]
pub struct WaitingClients {
    /// Clients that are blocked.
    pub blocked: BlockedClients,
    last_caller: LastCaller,
    heard: Heard,
}

impl WaitingClients {
    /// Tells whoever waits how the wait has ended, if somebody is still there. Only from a timer.
    pub fn answer(&mut self, answer: Answer) {
        let reply = match answer.result {
            WaitResult::Granted(fence) => Reply::Int(fence.cast_signed()),
            WaitResult::TimedOut => Reply::Int(0),
            WaitResult::Failed(error) => error_reply(&error),
        };
        match answer.channel {
            None => self.blocked.answer(answer.request, reply),
            Some((channel, tag)) => self.heard.publish(&channel, reply, &tag),
        }
    }

    /// The call of the timer is over.
    pub fn end_turn(&mut self) {
        self.heard.forget();
        self.blocked.free_left_over();
    }
}

impl Clients for WaitingClients {
    /// The permissions of a user may have changed since it asked: core commands that wait look again too, from
    /// Redis 8.0 on. And whoever listened may have gone.
    fn may_be_granted(&mut self, waiter: &Waiter, names: &[&[u8]]) -> Result<(), NotGranted> {
        if waiter.channel.as_ref().is_some_and(|channel| !self.heard.is_heard(channel)) {
            return Err(NotGranted::Unheard);
        }
        if self.last_caller.may_run(&waiter.caller, names) {
            Ok(())
        } else {
            Err(NotGranted::Failed(LockError::NoPermission))
        }
    }
}
