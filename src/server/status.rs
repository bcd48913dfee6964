// SPDX-License-Identifier: MIT OR Apache-2.0

//! What the server's configuration and `INFO` say.

use std::ffi::CStr;

use redis_module::raw;

use super::api::api;
use super::call_reply::CallReply;
use super::ctx::Ctx;

/// How the last writing to disk went, as far as it went to one.
#[derive(Clone, Copy, Debug)]
pub struct Disk {
    /// The last snapshot could not be saved.
    pub snapshot_failed: bool,
    /// The append-only file, if there is one, could not be written.
    pub log_failed: bool,
}

impl Ctx<'_> {
    /// Whether nothing may be replicated now: clients are paused, for a failover or by command.
    pub fn is_paused(self) -> bool {
        api!(RedisModule_AvoidReplicaTraffic()) != 0
    }

    /// A setting of the server's configuration, as `CONFIG GET` shows it. The server counts the call as it counts
    /// those of clients, so ask seldom.
    pub fn config(self, name: &CStr) -> Option<String> {
        let (config, get) = (c"CONFIG".as_ptr(), c"GET".as_ptr());
        let reply = api!(RedisModule_Call(self.pointer(), config, c"cc".as_ptr(), get, name.as_ptr()));
        CallReply::of(reply)?.text_at(1)
    }

    /// Whether a replica, a backlog kept for one, or the append-only file listens, or soon will.
    pub fn info_shows_listeners(self) -> bool {
        let is_zero = |section, fields: &[&CStr]| {
            let info = ServerInfo::of(self, section);
            fields.iter().all(|field| info.number(field) == Some(0))
        };
        self.is_replica()
            || !is_zero(c"replication", &[c"connected_slaves", c"repl_backlog_active"])
            || !is_zero(
                c"persistence",
                &[c"aof_enabled", c"aof_rewrite_in_progress", c"aof_rewrite_scheduled"],
            )
    }

    /// How many replicas are near enough for `min-replicas-to-write`, if that is in force.
    pub fn good_replicas(self) -> Option<i64> {
        ServerInfo::of(self, c"replication").number(c"min_slaves_good_slaves")
    }

    /// How the last writing to disk went.
    pub fn disk(self) -> Disk {
        let info = ServerInfo::of(self, c"persistence");
        let is_logged = info.number(c"aof_enabled").is_some_and(|enabled| enabled != 0);
        Disk {
            snapshot_failed: info.says(c"rdb_last_bgsave_status", c"err"),
            log_failed: is_logged && info.says(c"aof_last_write_status", c"err"),
        }
    }
}

/// A section of `INFO`, freed when dropped. To make one takes the server some microseconds.
struct ServerInfo(*mut raw::RedisModuleServerInfoData);

impl ServerInfo {
    fn of(ctx: Ctx<'_>, section: &CStr) -> Self {
        Self(api!(RedisModule_GetServerInfo(ctx.pointer(), section.as_ptr())))
    }

    /// The number in this field, if it has one.
    fn number(&self, field: &CStr) -> Option<i64> {
        let mut failed = 0;
        let number = api!(RedisModule_ServerInfoGetFieldSigned(self.0, field.as_ptr(), &mut failed));
        (failed == 0).then_some(number)
    }

    /// Whether this field has this text.
    fn says(&self, field: &CStr, text: &CStr) -> bool {
        let value = api!(RedisModule_ServerInfoGetFieldC(self.0, field.as_ptr()));
        // SAFETY: the server answers null or a string that lives as long as the section.
        !value.is_null() && unsafe { CStr::from_ptr(value) } == text
    }
}

impl Drop for ServerInfo {
    fn drop(&mut self) {
        api!(RedisModule_FreeServerInfo(std::ptr::null_mut(), self.0));
    }
}
