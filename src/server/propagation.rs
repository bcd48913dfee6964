//! Sending changes to replicas and the log, and whether anybody listens: a replica, a backlog kept for one, or the append-only
//! file.
//!
//! `RM_Replicate` looks its command up and makes an object of every argument before it finds that
//! there is nobody to send it to. On a server alone that was a quarter of the cost of a fresh lock.
//! The API does not say who listens, `INFO` does; but asking it costs much, so the answer is kept until
//! something happens that can change it.
//!
//! # Why this is safe
//!
//! Whoever begins to listen begins with a copy of the data set, or with a backlog of what came after
//! one. A full sync, an append-only file that is turned on and a slot that is exported begin at a fork;
//! a partial sync begins at an offset that a fork, a file that was saved, or a time as a replica gave
//! away. The server announces each of these (forks, saving, loading, changes of role, `CONFIG SET`)
//! before it runs another command, and then we look again; and where we look, a backlog counts as a
//! listener. A backlog may have been there a little longer, since the first replica asked for its copy,
//! but nobody can hold an offset in it from before the announcement. In a cluster, where slots are
//! streamed to other nodes in ways of their own, somebody always listens.
//!
//! Were the answer ever wrong, [`Ctx::note_change`] would let the deciding command itself through. No
//! replica and no log ever runs one: both refuse it with an error.

use std::ffi::CStr;
use std::ptr;

use redis_module::raw;

use super::api::api;
use super::ctx::Ctx;
use super::state;
use super::string::Str;

/// Something has happened that can bring a listener or take one away.
pub(super) fn look_again() {
    state::with(|state| state.has_listeners.set(None));
}

impl Ctx<'_> {
    /// Whether anybody listens to what is replicated now.
    pub fn has_listeners(self) -> bool {
        state::with(|state| state.has_listeners.get()).unwrap_or_else(|| {
            let has_listeners = self.is_cluster() || self.info_shows_listeners();
            state::with(|state| state.has_listeners.set(Some(has_listeners)));
            has_listeners
        })
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

    /// Passes a command on to replicas and the log just as it came.
    pub fn replicate_verbatim(self) {
        api!(RedisModule_ReplicateVerbatim(self.pointer()));
    }

    /// Has the server count a change of the data set, for its save points, without sending it
    /// anywhere. Only where nobody listens.
    pub fn note_change(self) {
        api!(RedisModule_ReplicateVerbatim(self.pointer()));
    }

    fn info_shows_listeners(self) -> bool {
        let is_zero = |section, fields: &[&CStr]| {
            let info = api!(RedisModule_GetServerInfo(self.pointer(), CStr::as_ptr(section)));
            let all_zero = fields.iter().all(|field| {
                let mut failed = 0;
                let value = api!(RedisModule_ServerInfoGetFieldSigned(info, field.as_ptr(), &mut failed));
                failed == 0 && value == 0
            });
            api!(RedisModule_FreeServerInfo(ptr::null_mut(), info));
            all_zero
        };
        self.is_replica()
            || !is_zero(c"replication", &[c"connected_slaves", c"repl_backlog_active"])
            || !is_zero(
                c"persistence",
                &[c"aof_enabled", c"aof_rewrite_in_progress", c"aof_rewrite_scheduled"],
            )
    }
}

/// The server events after which the answer may be another one.
pub(super) const EVENTS: [u64; 5] = [
    raw::REDISMODULE_EVENT_PERSISTENCE,
    raw::REDISMODULE_EVENT_FORK_CHILD,
    raw::REDISMODULE_EVENT_REPLICA_CHANGE,
    raw::REDISMODULE_EVENT_CONFIG,
    raw::REDISMODULE_EVENT_MASTER_LINK_CHANGE,
];
