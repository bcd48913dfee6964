//! The context of a callback: whom we answer, which database we see, what we make known.

use std::ffi::CString;
use std::marker::PhantomData;

use redis_module::raw;

use super::api;
use super::text::Text;

/// The context that the server gives to one callback.
#[derive(Clone, Copy)]
pub struct Ctx<'a> {
    pointer: *mut raw::RedisModuleCtx,
    lent: PhantomData<&'a ()>,
}

/// What a command answers.
pub enum Reply {
    /// An integer.
    Int(i64),
    /// An error, its code first.
    Error(String),
    /// "wrong number of arguments".
    WrongArity,
    /// It is sent already, or comes later.
    Sent,
}

/// How the last writing to disk went, as far as it went to one.
#[derive(Clone, Copy, Debug)]
pub struct Disk {
    /// The last snapshot could not be saved.
    pub snapshot_failed: bool,
    /// The append-only file, if there is one, could not be written.
    pub log_failed: bool,
}

/// How it stands with a connection that may be about to close.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionEnd {
    /// The server closes it soon, and drops until then what it is told.
    pub is_given_up: bool,
    /// It closes when it has been sent all its replies, as after `QUIT`.
    pub is_after_reply: bool,
    /// Nothing is left to be sent to it.
    pub has_sent_all: bool,
}

impl<'a> Ctx<'a> {
    /// Wraps what the server handed to a callback.
    ///
    /// # Safety
    /// `pointer` is the live context of a callback that lasts for `'a`.
    pub(super) unsafe fn from_raw(pointer: *mut raw::RedisModuleCtx) -> Self {
        Self { pointer, lent: PhantomData }
    }

    pub(super) fn pointer(self) -> *mut raw::RedisModuleCtx {
        self.pointer
    }

    /// The database that this context sees.
    pub fn db(self) -> i32 {
        api!(RedisModule_GetSelectedDb(self.pointer))
    }

    /// Turns to another database. Not in a command: the client would stay there.
    pub fn select_db(self, db: i32) {
        api!(RedisModule_SelectDb(self.pointer, db));
    }

    /// The connection that this command came from; 0 where there is none.
    pub fn client_id(self) -> u64 {
        api!(RedisModule_GetClientId(self.pointer))
    }

    fn flags(self) -> u32 {
        api!(RedisModule_GetContextFlags(self.pointer)) as u32
    }

    /// Whether the command may leave its client without an answer for a while: not in `MULTI`,
    /// scripts, functions, another module's call, or while a log is loaded.
    pub fn may_block(self) -> bool {
        let forbidding = raw::REDISMODULE_CTX_FLAGS_DENY_BLOCKING
            | raw::REDISMODULE_CTX_FLAGS_MULTI
            | raw::REDISMODULE_CTX_FLAGS_LUA
            | raw::REDISMODULE_CTX_FLAGS_REPLICATED;
        self.flags() & forbidding == 0
    }

    /// Whether a script or a function runs the command, rather than a connection.
    pub fn is_in_script(self) -> bool {
        self.flags() & raw::REDISMODULE_CTX_FLAGS_LUA != 0
    }

    /// Whether a client with this number is connected. One that is being closed still is, until the
    /// server has said so.
    pub fn is_connected(self, client_id: u64) -> bool {
        let found = api!(RedisModule_GetClientInfoById(std::ptr::null_mut(), client_id));
        found == raw::REDISMODULE_OK as i32
    }

    /// How it stands with a connection that may be about to close, by `CLIENT LIST`. `None` where that
    /// cannot be asked.
    pub fn connection_end(self, client_id: u64) -> Option<ConnectionEnd> {
        let id = CString::new(client_id.to_string()).unwrap_or_default();
        let (command, form) = (c"CLIENT".as_ptr(), c"ccc".as_ptr());
        let reply = api!(RedisModule_Call(
            self.pointer,
            command,
            form,
            c"LIST".as_ptr(),
            c"ID".as_ptr(),
            id.as_ptr()
        ));
        let line = Self::text_of(reply)?;
        let field = |name: &str| line.split([' ', '\n']).find_map(|field| field.strip_prefix(name));
        let flags = field("flags=")?;
        Some(ConnectionEnd {
            is_given_up: flags.contains('A'),
            is_after_reply: flags.contains('c'),
            has_sent_all: field("obl=") == Some("0") && field("oll=") == Some("0"),
        })
    }

    /// The text of a reply that is a string, which is freed.
    fn text_of(reply: *mut raw::RedisModuleCallReply) -> Option<String> {
        if reply.is_null() {
            return None;
        }
        let text = Self::text_in(reply);
        api!(RedisModule_FreeCallReply(reply));
        text
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

    /// Whether this server is a replica.
    pub fn is_replica(self) -> bool {
        self.flags() & raw::REDISMODULE_CTX_FLAGS_SLAVE != 0
    }

    /// Whether this server is a node of a cluster.
    pub fn is_cluster(self) -> bool {
        self.flags() & raw::REDISMODULE_CTX_FLAGS_CLUSTER != 0
    }

    /// Whether the server evicts keys of this kind, those with an expiry, when memory runs out.
    pub fn may_evict(self) -> bool {
        self.flags() & raw::REDISMODULE_CTX_FLAGS_EVICT != 0
    }

    /// Whether nothing may be replicated now: clients are paused, for a failover or by command.
    pub fn is_paused(self) -> bool {
        api!(RedisModule_AvoidReplicaTraffic()) != 0
    }

    /// A setting of the server's configuration, as `CONFIG GET` shows it.
    pub fn config(self, name: &std::ffi::CStr) -> Option<String> {
        let reply = api!(RedisModule_Call(
            self.pointer,
            c"CONFIG".as_ptr(),
            c"cc".as_ptr(),
            c"GET".as_ptr(),
            name.as_ptr()
        ));
        if reply.is_null() {
            return None;
        }
        let value = api!(RedisModule_CallReplyArrayElement(reply, 1));
        let text = if value.is_null() { None } else { Self::text_in(value) };
        api!(RedisModule_FreeCallReply(reply));
        text
    }

    /// Whether the server has a command of this name, which may have been renamed. It must be one that
    /// takes an argument: it is called without.
    pub fn knows_command(self, name: &std::ffi::CStr) -> bool {
        let reply = api!(RedisModule_Call(self.pointer, name.as_ptr(), c"".as_ptr()));
        let error = std::io::Error::last_os_error().raw_os_error();
        if !reply.is_null() {
            api!(RedisModule_FreeCallReply(reply));
        }
        !reply.is_null() || error != Some(libc::ENOENT)
    }

    /// How many replicas are near enough for `min-replicas-to-write`, if that is in force.
    pub fn good_replicas(self) -> Option<i64> {
        let info = api!(RedisModule_GetServerInfo(self.pointer, c"replication".as_ptr()));
        let mut failed = 0;
        let field = c"min_slaves_good_slaves".as_ptr();
        let good = api!(RedisModule_ServerInfoGetFieldSigned(info, field, &mut failed));
        api!(RedisModule_FreeServerInfo(std::ptr::null_mut(), info));
        (failed == 0).then_some(good)
    }

    /// How the last writing to disk went.
    pub fn disk(self) -> Disk {
        let info = api!(RedisModule_GetServerInfo(self.pointer, c"persistence".as_ptr()));
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

    /// Whether this node of a cluster still takes writes of the key. While a slot is migrated, a key
    /// that has gone may be at the other node already.
    ///
    /// Asked by a write that changes nothing, since a node of a cluster that is down may go on serving
    /// reads. (On a server where that command was renamed, by a read.)
    pub fn owns_key(self, name: Text<'_>) -> bool {
        let (long_ago, later_only) = (c"1".as_ptr(), c"GT".as_ptr());
        let (probe, form) = (c"PEXPIREAT".as_ptr(), c"scc".as_ptr());
        let mut reply =
            api!(RedisModule_Call(self.pointer, probe, form, name.pointer(), long_ago, later_only));
        if reply.is_null() && std::io::Error::last_os_error().raw_os_error() == Some(libc::ENOENT) {
            reply = api!(RedisModule_Call(self.pointer, c"EXISTS".as_ptr(), c"s".as_ptr(), name.pointer()));
        }
        if reply.is_null() {
            return false;
        }
        api!(RedisModule_FreeCallReply(reply));
        true
    }

    /// Sends `SLOCK.APPLY key change [meta]` to replicas and the log.
    pub fn replicate(self, name: Text<'_>, change: &[u8], meta: &[u8]) {
        let (ctx, command, name) = (self.pointer, c"SLOCK.APPLY".as_ptr(), name.pointer());
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
        api!(RedisModule_ReplicateVerbatim(self.pointer));
    }

    /// Announces an event of the module's class to keyspace subscribers.
    pub fn announce(self, event: &std::ffi::CStr, name: Text<'_>) {
        let class = raw::REDISMODULE_NOTIFY_MODULE;
        api!(RedisModule_NotifyKeyspaceEvent(self.pointer, class, event.as_ptr(), name.pointer()));
    }

    /// Announces that a key went because its time was up, as the server does when it collects one.
    pub fn announce_expired(self, name: Text<'_>) {
        let class = raw::REDISMODULE_NOTIFY_EXPIRED;
        api!(RedisModule_NotifyKeyspaceEvent(self.pointer, class, c"expired".as_ptr(), name.pointer()));
    }

    /// Announces that a key went because it became empty, as the server does for its own types.
    pub fn announce_gone(self, name: Text<'_>) {
        let class = raw::REDISMODULE_NOTIFY_GENERIC;
        api!(RedisModule_NotifyKeyspaceEvent(self.pointer, class, c"del".as_ptr(), name.pointer()));
    }

    /// Tells `WATCH` and client-side caches that the key has changed.
    pub fn signal_modified(self, name: Text<'_>) {
        api!(RedisModule_SignalModifiedKey(self.pointer, name.pointer()));
    }

    /// Answers the client.
    pub fn send(self, reply: Reply) {
        match reply {
            Reply::Int(number) => self.reply_int(number),
            Reply::Error(text) => self.reply_error(&text),
            Reply::WrongArity => {
                api!(RedisModule_WrongArity(self.pointer));
            }
            Reply::Sent => {}
        }
    }

    /// An integer.
    pub fn reply_int(self, number: i64) {
        api!(RedisModule_ReplyWithLongLong(self.pointer, number));
    }

    /// A string.
    pub fn reply_bytes(self, bytes: &[u8]) {
        api!(RedisModule_ReplyWithStringBuffer(self.pointer, bytes.as_ptr().cast(), bytes.len()));
    }

    /// Nothing.
    pub fn reply_null(self) {
        api!(RedisModule_ReplyWithNull(self.pointer));
    }

    /// The head of an array of so many elements.
    pub fn reply_array(self, length: usize) {
        api!(RedisModule_ReplyWithArray(self.pointer, length as _));
    }

    /// The head of a map of so many pairs; a flat array for clients that speak RESP2.
    pub fn reply_map(self, pairs: usize) {
        api!(RedisModule_ReplyWithMap(self.pointer, pairs as _));
    }

    fn reply_error(self, text: &str) {
        let text = CString::new(text).unwrap_or_else(|_| c"ERR unprintable error".into());
        api!(RedisModule_ReplyWithError(self.pointer, text.as_ptr()));
    }
}

/// Hands the context of `RedisModule_OnLoad` to `load`.
pub fn with_load_ctx<R>(context: &redis_module::Context, load: impl FnOnce(Ctx<'_>) -> R) -> R {
    // SAFETY: the context is live while the crate's `init` function runs, and `load` cannot keep it.
    load(unsafe { Ctx::from_raw(context.get_raw()) })
}

/// A line in the server's log that an operator should see.
pub fn log_warning(line: &str) {
    log(c"warning", line);
}

impl Ctx<'_> {
    /// A line in the server's log.
    pub fn log_notice(self, line: &str) {
        log(c"notice", line);
    }
}

fn log(level: &std::ffi::CStr, line: &str) {
    let line = CString::new(line.replace('\0', " ")).unwrap_or_default();
    // The server names the module in the line only when it gets a context of the module's.
    let ctx = super::timer::module_ctx();
    let prefix = if ctx.is_null() { c"<slock> %s" } else { c"%s" };
    api!(RedisModule_Log(ctx, level.as_ptr(), prefix.as_ptr(), line.as_ptr()));
}
