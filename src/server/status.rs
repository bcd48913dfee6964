//! What the server's configuration and `INFO` say.

use redis_module::raw;

use super::api::api;
use super::ctx::Ctx;

/// Fields of `INFO stats`; see [`Ctx::totals`].
pub const TOTALS: [&std::ffi::CStr; 6] = [
    c"total_connections_received",
    c"total_commands_processed",
    c"total_net_input_bytes",
    c"total_net_output_bytes",
    c"keyspace_hits",
    c"keyspace_misses",
];

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
    pub fn config(self, name: &std::ffi::CStr) -> Option<String> {
        let reply = api!(RedisModule_Call(
            self.pointer(),
            c"CONFIG".as_ptr(),
            c"cc".as_ptr(),
            c"GET".as_ptr(),
            name.as_ptr()
        ));
        if reply.is_null() {
            return None;
        }
        let value = api!(RedisModule_CallReplyArrayElement(reply, 1));
        let text = if value.is_null() { None } else { text_in(value) };
        api!(RedisModule_FreeCallReply(reply));
        text
    }

    /// Whether the server has a command of this name, which may have been renamed. It must be one that
    /// takes an argument: it is called without.
    pub fn knows_command(self, name: &std::ffi::CStr) -> bool {
        let reply = api!(RedisModule_Call(self.pointer(), name.as_ptr(), c"".as_ptr()));
        let error = std::io::Error::last_os_error().raw_os_error();
        if !reply.is_null() {
            api!(RedisModule_FreeCallReply(reply));
        }
        !reply.is_null() || error != Some(libc::ENOENT)
    }

    /// Whether a replica, a backlog kept for one, or the append-only file listens, or soon will.
    pub fn info_shows_listeners(self) -> bool {
        let is_zero = |section, fields: &[&std::ffi::CStr]| {
            let info = api!(RedisModule_GetServerInfo(self.pointer(), std::ffi::CStr::as_ptr(section)));
            let all_zero = fields.iter().all(|field| {
                let mut failed = 0;
                let value = api!(RedisModule_ServerInfoGetFieldSigned(info, field.as_ptr(), &mut failed));
                failed == 0 && value == 0
            });
            api!(RedisModule_FreeServerInfo(std::ptr::null_mut(), info));
            all_zero
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
        let info = api!(RedisModule_GetServerInfo(self.pointer(), c"replication".as_ptr()));
        let mut failed = 0;
        let field = c"min_slaves_good_slaves".as_ptr();
        let good = api!(RedisModule_ServerInfoGetFieldSigned(info, field, &mut failed));
        api!(RedisModule_FreeServerInfo(std::ptr::null_mut(), info));
        (failed == 0).then_some(good)
    }

    /// Some of what the server counts; none of it becomes less, but by `CONFIG RESETSTAT`.
    pub fn totals(self) -> [u64; TOTALS.len()] {
        let info = api!(RedisModule_GetServerInfo(self.pointer(), c"stats".as_ptr()));
        let totals = TOTALS.map(|field| {
            let mut failed = 0;
            let total = api!(RedisModule_ServerInfoGetFieldSigned(info, field.as_ptr(), &mut failed));
            u64::try_from(total).unwrap_or(0)
        });
        api!(RedisModule_FreeServerInfo(std::ptr::null_mut(), info));
        totals
    }

    /// How the last writing to disk went.
    pub fn disk(self) -> Disk {
        let info = api!(RedisModule_GetServerInfo(self.pointer(), c"persistence".as_ptr()));
        let mut unknown = 0;
        let enabled = api!(RedisModule_ServerInfoGetFieldSigned(info, c"aof_enabled".as_ptr(), &mut unknown));
        let is_logged = enabled != 0;
        let failed = |field: &std::ffi::CStr| {
            let value = api!(RedisModule_ServerInfoGetFieldC(info, field.as_ptr()));
            // SAFETY: the server answers null or a string that lives as long as `info`.
            !value.is_null() && unsafe { std::ffi::CStr::from_ptr(value) } == c"err"
        };
        let disk = Disk {
            snapshot_failed: failed(c"rdb_last_bgsave_status"),
            log_failed: is_logged && failed(c"aof_last_write_status"),
        };
        api!(RedisModule_FreeServerInfo(std::ptr::null_mut(), info));
        disk
    }
}

fn text_in(reply: *mut raw::RedisModuleCallReply) -> Option<String> {
    let mut length = 0;
    let start = api!(RedisModule_CallReplyStringPtr(reply, &mut length)).cast::<u8>();
    (!start.is_null()).then(|| {
        // SAFETY: the server says where the bytes are and how many; they live as long as `reply`.
        let bytes = unsafe { std::slice::from_raw_parts(start, length) };
        String::from_utf8_lossy(bytes).into_owned()
    })
}
