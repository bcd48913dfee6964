//! Sending commands to replicas and the log.

use redis_module::raw;

use super::api::api;
use super::ctx::Ctx;
use super::string::Str;

impl Ctx<'_> {
    /// Sends `SLOCK.APPLY key change [meta]` to replicas and the log.
    pub fn replicate(self, name: Str<'_>, change: &[u8], meta: &[u8]) {
        let (ctx, command, name) = (self.pointer(), c"SLOCK.APPLY".as_ptr(), name.pointer());
        let (change, length) = (change.as_ptr(), change.len());
        if meta.is_empty() {
            api!(RedisModule_Replicate(ctx, command, c"sb".as_ptr(), name, change, length));
        } else {
            let (form, meta, meta_length) = (c"sbb".as_ptr(), meta.as_ptr(), meta.len());
            api!(RedisModule_Replicate(ctx, command, form, name, change, length, meta, meta_length));
        }
    }

    /// Sends `DEL key` to replicas and the log. False, and nothing is sent, where the server has renamed that command.
    pub fn replicate_removal(self, name: Str<'_>) -> bool {
        let (command, form) = (c"DEL".as_ptr(), c"s".as_ptr());
        let status = api!(RedisModule_Replicate(self.pointer(), command, form, name.pointer()));
        status == raw::REDISMODULE_OK as i32
    }

    /// Passes a command on to replicas and the log just as it came.
    pub fn replicate_verbatim(self) {
        api!(RedisModule_ReplicateVerbatim(self.pointer()));
    }

    /// Has the server count a change of the data set, for its save points, without sending it
    /// anywhere. Only where nobody listens.
    pub fn count_change(self) {
        api!(RedisModule_ReplicateVerbatim(self.pointer()));
    }
}
