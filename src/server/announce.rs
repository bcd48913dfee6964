//! Keyspace events, and what `WATCH` and client-side caches are told.

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
}
