// SPDX-License-Identifier: MIT OR Apache-2.0

//! Who is told of a change: replicas and the log, keyspace subscribers, `WATCH` and client-side caches.

use redis_module::raw;

use super::api::api;
use super::ctx::Ctx;
use super::string::Str;

impl Ctx<'_> {
    /// Announces an event of the module's class to keyspace subscribers.
    pub fn announce(self, event: &std::ffi::CStr, name: Str<'_>) {
        let class = raw::REDISMODULE_NOTIFY_MODULE;
        api!(RedisModule_NotifyKeyspaceEvent(self.pointer(), class, event.as_ptr(), name.pointer()));
    }

    /// Announces that a key went because its time was up, as the server does when it collects one.
    pub fn announce_expired(self, name: Str<'_>) {
        let class = raw::REDISMODULE_NOTIFY_EXPIRED;
        api!(RedisModule_NotifyKeyspaceEvent(self.pointer(), class, c"expired".as_ptr(), name.pointer()));
    }

    /// Announces that a key went because it became empty, as the server does for its own types.
    pub fn announce_gone(self, name: Str<'_>) {
        let class = raw::REDISMODULE_NOTIFY_GENERIC;
        api!(RedisModule_NotifyKeyspaceEvent(self.pointer(), class, c"del".as_ptr(), name.pointer()));
    }

    /// Tells `WATCH` and client-side caches that the key has changed.
    pub fn signal_modified(self, name: Str<'_>) {
        api!(RedisModule_SignalModifiedKey(self.pointer(), name.pointer()));
    }

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
