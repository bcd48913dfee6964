//! What a user may do.

use redis_module::raw;
use smallvec::SmallVec;

use super::api::api;
use super::ctx::Ctx;
use super::string::{OwnedString, Str};

impl Ctx<'_> {
    /// The name of the user that this command comes from. `None` where it comes from no connection: from
    /// another module, or a log.
    pub fn user_name(self) -> Option<OwnedString> {
        let name = api!(RedisModule_GetClientUserNameById(self.pointer(), self.client_id()));
        // SAFETY: the string is new, and nobody else frees it: the context does not manage memory.
        (!name.is_null()).then(|| unsafe { OwnedString::from_raw(name) })
    }
}

/// A user as it is now. Not to be kept: it may be changed or deleted.
pub struct User(*mut raw::RedisModuleUser);

impl User {
    /// The user of this name, if there is one.
    pub fn named(name: Str<'_>) -> Option<Self> {
        let user = api!(RedisModule_GetModuleUserFromUserName(name.pointer()));
        (!user.is_null()).then(|| Self(user))
    }

    pub(super) fn pointer(&self) -> *mut raw::RedisModuleUser {
        self.0
    }

    /// Whether the user may read this key.
    pub fn may_read(&self, key: Str<'_>) -> bool {
        let access = raw::REDISMODULE_CMD_KEY_ACCESS as i32;
        api!(RedisModule_ACLCheckKeyPermissions(self.0, key.pointer(), access)) == raw::REDISMODULE_OK as i32
    }

    /// Whether the user may run this command, the name of the command first, and use its keys as it does.
    pub fn may_run(&self, command: &[Str<'_>]) -> bool {
        let mut words: SmallVec<[*mut raw::RedisModuleString; 5]> =
            command.iter().map(|word| word.pointer()).collect();
        let (start, count) = (words.as_mut_ptr(), words.len() as i32);
        api!(RedisModule_ACLCheckCommandPermissions(self.0, start, count)) == raw::REDISMODULE_OK as i32
    }
}

impl Drop for User {
    fn drop(&mut self) {
        // What is freed is the handle, not the user.
        api!(RedisModule_FreeModuleUser(self.0));
    }
}
