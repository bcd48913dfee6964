//! What a node of a cluster still serves.

use super::api::api;
use super::ctx::Ctx;
use super::string::Str;

impl Ctx<'_> {
    /// Whether this node of a cluster still takes writes of the key. While a slot is migrated, a key
    /// that has gone may be at the other node already.
    ///
    /// Asked by a write that changes nothing, since a node of a cluster that is down may go on serving
    /// reads. (On a server where that command was renamed, by a read.)
    pub fn owns_key(self, name: Str<'_>) -> bool {
        let (long_ago, later_only) = (c"1".as_ptr(), c"GT".as_ptr());
        let (probe, form) = (c"PEXPIREAT".as_ptr(), c"scc".as_ptr());
        let mut reply =
            api!(RedisModule_Call(self.pointer(), probe, form, name.pointer(), long_ago, later_only));
        if reply.is_null() && std::io::Error::last_os_error().raw_os_error() == Some(libc::ENOENT) {
            reply = api!(RedisModule_Call(self.pointer(), c"EXISTS".as_ptr(), c"s".as_ptr(), name.pointer()));
        }
        if reply.is_null() {
            return false;
        }
        api!(RedisModule_FreeCallReply(reply));
        true
    }
}
