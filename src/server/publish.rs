// SPDX-License-Identifier: MIT OR Apache-2.0

//! Sharded channels: who listens to them here, and sending them messages.

use redis_module::raw;
use smallvec::SmallVec;

use super::api::api;
use super::call_reply::CallReply;
use super::ctx::{Ctx, OwnCtx};
use super::string::{OwnedString, Str};

impl Ctx<'_> {
    /// Whether anybody on this server has subscribed to this channel by `SSUBSCRIBE`. The server counts the question in
    /// `commandstats`; there is no other way to ask.
    pub fn has_shard_subscriber(self, channel: Str<'_>) -> bool {
        self.have_shard_subscribers(&[channel])[0]
    }

    /// The same of each of these channels.
    pub fn have_shard_subscribers(self, channels: &[Str<'_>]) -> SmallVec<[bool; 1]> {
        let (pubsub, numsub) = (c"PUBSUB".as_ptr(), c"SHARDNUMSUB".as_ptr());
        let (first, length) = (channels.as_ptr(), channels.len());
        let reply = api!(RedisModule_Call(self.pointer(), pubsub, c"cv".as_ptr(), numsub, first, length));
        let reply = CallReply::of(reply);
        // Of each channel its name and the number of its subscribers.
        let is_heard = |at: usize| reply.as_ref().is_some_and(|reply| reply.integer_at(2 * at + 1) > 0);
        (0..length).map(is_heard).collect()
    }
}

impl OwnCtx<'_> {
    /// Sends a message to all who have subscribed to this channel by `SSUBSCRIBE`. From a timer: there the log is
    /// synced before the message leaves.
    pub fn publish(self, channel: Str<'_>, message: &[u8]) {
        let message = OwnedString::new(message);
        let ctx = self.as_ctx().pointer();
        api!(RedisModule_PublishMessageShard(ctx, channel.pointer(), message.as_str().pointer()));
    }
}

impl super::acl::User {
    /// Whether the user may subscribe to this channel.
    pub fn may_subscribe(&self, channel: Str<'_>) -> bool {
        let flags = raw::REDISMODULE_CMD_CHANNEL_SUBSCRIBE as i32;
        api!(RedisModule_ACLCheckChannelPermissions(self.pointer(), channel.pointer(), flags))
            == raw::REDISMODULE_OK as i32
    }
}
