// SPDX-License-Identifier: MIT OR Apache-2.0

//! `NOTIFY`: requests that are answered on channels. Who may listen, who listens, and the messages.

use std::rc::Rc;

use crate::server::{Ctx, LastString, OwnedString, Reply, Str, User, own_ctx, same_slot};

/// Whether a request of this user (`None`: one who may do everything) for these keys may be answered on this channel.
///
/// # Errors
/// The error reply that says why not.
pub fn check_channel(
    ctx: Ctx<'_>,
    user: Option<Str<'_>>,
    channel: Str<'_>,
    keys: &[Str<'_>],
) -> Result<(), Reply> {
    let refused = |text: &str| Err(Reply::Error(text.into()));
    if ctx.is_cluster() && !same_slot(channel.bytes(), keys[0].bytes()) {
        return refused("CROSSSLOT The channel is not in the slot of the keys");
    }
    if !may_use(user, channel) {
        return refused("NOPERM The user may not subscribe to this channel");
    }
    if !ctx.has_shard_subscriber(channel) {
        return refused("NOSUBSCRIBER Nobody has subscribed to this channel by SSUBSCRIBE on this server");
    }
    Ok(())
}

/// Whether this user may use a channel; without a name, any.
pub fn may_use(user: Option<Str<'_>>, channel: Str<'_>) -> bool {
    user.is_none_or(|name| User::named(name).is_some_and(|user| user.may_subscribe(channel)))
}

/// The channel that somebody was seen to listen to in this call of the timer. No client runs a command meanwhile.
#[derive(Default)]
pub struct Heard {
    channel: Option<Rc<[u8]>>,
    string: LastString,
}

impl Heard {
    /// Whether somebody listens.
    pub fn is_heard(&mut self, channel: &Rc<[u8]>) -> bool {
        if self.channel.as_ref() != Some(channel) {
            let is_heard = own_ctx().as_ctx().has_shard_subscriber(self.string.with(channel));
            self.channel = is_heard.then(|| channel.clone());
        }
        self.channel.is_some()
    }

    /// The call of the timer is over: the subscriber may go.
    pub fn end_turn(&mut self) {
        self.channel = None;
    }

    /// Publishes how a wait has ended: the number, or the code of the error, and the tag.
    pub fn publish(&mut self, channel: &[u8], reply: Reply, tag: &[u8]) {
        let end = match reply {
            Reply::Int(number) => number.to_string(),
            Reply::Error(text) => format!("-{}", text.split(' ').next().unwrap_or_default()),
            Reply::WrongArity | Reply::Null | Reply::Sent => return,
        };
        own_ctx().publish(self.string.with(channel), &[end.as_bytes(), b" ", tag].concat());
    }
}

/// Those of these channels that nobody on this server has subscribed to.
pub fn without_subscriber(channels: &[Rc<[u8]>]) -> impl Iterator<Item = &[u8]> {
    let names: Vec<OwnedString> = channels.iter().map(|channel| OwnedString::new(channel)).collect();
    let names: Vec<Str<'_>> = names.iter().map(OwnedString::as_str).collect();
    let are_heard = own_ctx().as_ctx().have_shard_subscribers(&names);
    channels.iter().zip(are_heard).filter(|(_, is_heard)| !is_heard).map(|(channel, _)| &**channel)
}
