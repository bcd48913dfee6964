// SPDX-License-Identifier: MIT OR Apache-2.0

//! What a node of a cluster still serves.

use std::sync::OnceLock;

use crc::{CRC_16_XMODEM, Crc};
use redis_module::raw;

use super::api::api;
use super::call_reply::{CallReply, call_error};
use super::ctx::Ctx;
use super::string::Str;

/// Whether both names are in one slot of a cluster.
pub fn same_slot(first: &[u8], second: &[u8]) -> bool {
    slot(first) == slot(second)
}

/// The slot of a key, by the cluster's specification: of the part in the first braces, if they are not empty.
fn slot(name: &[u8]) -> u16 {
    const SLOTS: u16 = 16384;
    const CHECKSUM: Crc<u16> = Crc::<u16>::new(&CRC_16_XMODEM);
    let tag = || {
        let start = name.iter().position(|byte| *byte == b'{')? + 1;
        let length = name[start..].iter().position(|byte| *byte == b'}')?;
        (length > 0).then(|| &name[start..start + length])
    };
    CHECKSUM.checksum(tag().unwrap_or(name)) % SLOTS
}

/// Of a command that was checked only: an error says that it may not run. Else there is no reply, or, on Valkey 9, one
/// of no type.
fn is_error(reply: *mut raw::RedisModuleCallReply) -> bool {
    CallReply::of(reply).is_some_and(|reply| reply.is_error())
}

impl Ctx<'_> {
    /// Whether this node of a cluster still takes writes of the key. While a slot is migrated, a key
    /// that has gone may be at the other node already.
    ///
    /// Asked by a write that changes nothing, since a node of a cluster that is down may go on serving
    /// reads. (On a server where that command was renamed, by a read.) Where the server can check a command
    /// without running it, it is not run: then it is not counted either.
    pub fn owns_key(self, name: Str<'_>) -> bool {
        let (long_ago, later_only) = (c"1".as_ptr(), c"GT".as_ptr());
        let probe = c"PEXPIREAT".as_ptr();
        if self.can_check_only() {
            let form = c"sccD".as_ptr();
            let reply =
                api!(RedisModule_Call(self.pointer(), probe, form, name.pointer(), long_ago, later_only));
            let is_unknown = call_error() == Some(libc::ENOENT);
            if !is_error(reply) {
                return true;
            }
            if !is_unknown {
                return false;
            }
            let (probe, form) = (c"EXISTS".as_ptr(), c"sD".as_ptr());
            return !is_error(api!(RedisModule_Call(self.pointer(), probe, form, name.pointer())));
        }
        let form = c"scc".as_ptr();
        let reply = api!(RedisModule_Call(self.pointer(), probe, form, name.pointer(), long_ago, later_only));
        let is_unknown = reply.is_null() && call_error() == Some(libc::ENOENT);
        let reads =
            || api!(RedisModule_Call(self.pointer(), c"EXISTS".as_ptr(), c"s".as_ptr(), name.pointer()));
        CallReply::of(if is_unknown { reads() } else { reply }).is_some()
    }

    /// Whether the server would refuse a client's write now, where it can tell without running one. (In script mode a
    /// check looks at replicas and the disk, as it does for clients. To run a command so from a timer crashes
    /// Valkey 9.1; a check does not.)
    pub fn refuses_writes(self) -> Option<bool> {
        if !self.can_check_only() {
            return None;
        }
        let (write, form, db) = (c"SWAPDB".as_ptr(), c"ccSD".as_ptr(), c"0".as_ptr());
        let reply = api!(RedisModule_Call(self.pointer(), write, form, db, db));
        let is_unknown = call_error() == Some(libc::ENOENT);
        let refuses = is_error(reply);
        (!refuses || !is_unknown).then_some(refuses)
    }

    /// Whether the server can check a command without running it (from Redis 7.2 on).
    fn can_check_only(self) -> bool {
        static CAN_CHECK_ONLY: OnceLock<bool> = OnceLock::new();
        *CAN_CHECK_ONLY.get_or_init(|| {
            // An error is a reply in this form; only a form that is not known gives nothing and this code.
            let reply = api!(RedisModule_Call(self.pointer(), c"EXISTS".as_ptr(), c"D".as_ptr()));
            let error = call_error();
            CallReply::of(reply).is_some() || error != Some(libc::EBADF)
        })
    }
}
