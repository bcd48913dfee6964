//! Sharded channels: who listens to them here, and sending them messages.

use redis_module::raw;

use super::api::api;
use super::ctx::{Ctx, OwnCtx};
use super::string::{OwnedString, Str};

impl Ctx<'_> {
    /// Whether anybody on this server has subscribed to this channel by `SSUBSCRIBE`. The server counts the question in
    /// `commandstats`; there is no other way to ask.
    pub fn has_shard_subscriber(self, channel: Str<'_>) -> bool {
        let (pubsub, numsub) = (c"PUBSUB".as_ptr(), c"SHARDNUMSUB".as_ptr());
        let reply = api!(RedisModule_Call(self.pointer(), pubsub, c"cs".as_ptr(), numsub, channel.pointer()));
        if reply.is_null() {
            return false;
        }
        let count = api!(RedisModule_CallReplyArrayElement(reply, 1));
        let count = if count.is_null() { 0 } else { api!(RedisModule_CallReplyInteger(count)) };
        api!(RedisModule_FreeCallReply(reply));
        count > 0
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
