//! Those who wait: blocked clients, and whoever has subscribed to the channels on which requests are answered.

use slock_core::{Answer, Clients, LockError, NotGranted, WaitResult, Waiter};

use std::rc::Rc;

use super::blocked_clients::BlockedClients;
use super::callers::LastCaller;
use crate::server::{OwnedString, Reply, Str, own_ctx};

/// See the module.
#[derive(Default)]
pub struct WaitingClients {
    /// Clients that are blocked.
    pub blocked: BlockedClients,
    last_caller: LastCaller,
    /// The channel that somebody was seen to listen to in this call of the timer. No client runs a command
    /// meanwhile.
    heard: Option<(Rc<[u8]>, OwnedString)>,
}

impl WaitingClients {
    /// Tells whoever waits how the wait has ended, if somebody is still there. `reply_to` words it. Only from a
    /// timer.
    pub fn answer(&mut self, answer: Answer, reply_to: impl FnOnce(WaitResult) -> Reply) {
        let reply = reply_to(answer.result);
        let Some((channel, tag)) = answer.channel else { return self.blocked.answer(answer.request, reply) };
        // The number, or the code of the error, and the tag.
        let mut message = match reply {
            Reply::Int(number) => number.to_string(),
            Reply::Error(text) => format!("-{}", text.split(' ').next().unwrap_or_default()),
            Reply::WrongArity | Reply::Null | Reply::Sent => return,
        }
        .into_bytes();
        message.push(b' ');
        message.extend_from_slice(&tag);
        match &self.heard {
            Some((heard, text)) if *heard == channel => own_ctx().publish(text.as_str(), &message),
            _ => own_ctx().publish(OwnedString::new(&channel).as_str(), &message),
        }
    }

    /// The call of the timer is over: whoever listens may go.
    pub fn end_turn(&mut self) {
        self.heard = None;
        self.blocked.free_left_over();
    }

    fn is_heard(&mut self, channel: &Rc<[u8]>) -> bool {
        if self.heard.as_ref().is_some_and(|(heard, _)| heard == channel) {
            return true;
        }
        let text = OwnedString::new(channel);
        let is_heard = own_ctx().as_ctx().has_shard_subscriber(text.as_str());
        if is_heard {
            self.heard = Some((channel.clone(), text));
        }
        is_heard
    }
}

impl Clients for WaitingClients {
    /// The permissions of a user may have changed since it asked: core commands that wait look again too, from
    /// Redis 8.0 on. And whoever listened may have gone.
    fn may_be_granted(&mut self, waiter: &Waiter, names: &[&[u8]]) -> Result<(), NotGranted> {
        if waiter.channel.as_ref().is_some_and(|channel| !self.is_heard(channel)) {
            return Err(NotGranted::Unheard);
        }
        if self.last_caller.may_run(&waiter.caller, names) {
            Ok(())
        } else {
            Err(NotGranted::Failed(LockError::NoPermission))
        }
    }
}

/// Those of these channels that nobody on this server has subscribed to.
pub fn without_subscriber(channels: &[Rc<[u8]>]) -> impl Iterator<Item = &[u8]> {
    let names: Vec<OwnedString> = channels.iter().map(|channel| OwnedString::new(channel)).collect();
    let names: Vec<Str<'_>> = names.iter().map(OwnedString::as_str).collect();
    let are_heard = own_ctx().as_ctx().have_shard_subscribers(&names);
    channels.iter().zip(are_heard).filter(|(_, is_heard)| !is_heard).map(|(channel, _)| &**channel)
}
