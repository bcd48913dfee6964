// SPDX-License-Identifier: MIT OR Apache-2.0

//! What a user may do.

use redis_module::raw;

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

    /// Whether the user may run this command, the name of the command first, and use its keys as it does.
    pub fn may_run(&self, command: &[Str<'_>]) -> bool {
        // The server only reads the array, which is one of pointers (`Str` is `repr(transparent)`).
        let (start, count) = (command.as_ptr().cast_mut().cast(), command.len() as i32);
        api!(RedisModule_ACLCheckCommandPermissions(self.0, start, count)) == raw::REDISMODULE_OK as i32
    }
}

/// A user who is shown who holds and who waits.
pub struct Viewer {
    /// `None` for who may see all: another module, say.
    user: Option<Option<User>>,
    info: OwnedString,
}

impl Viewer {
    /// The user of this name, or who has none.
    pub fn of_name(name: Option<&[u8]>) -> Self {
        let user = name.map(|name| User::named(OwnedString::new(name).as_str()));
        Self { user, info: OwnedString::new(b"SLOCK.INFO") }
    }

    /// Whether `SLOCK.INFO` would show the user this lock.
    pub fn may_look_at(&self, name: &[u8]) -> bool {
        let Some(user) = &self.user else { return true };
        let name = OwnedString::new(name);
        user.as_ref().is_some_and(|user| user.may_run(&[self.info.as_str(), name.as_str()]))
    }
}

impl Drop for User {
    fn drop(&mut self) {
        // What is freed is the handle, not the user.
        api!(RedisModule_FreeModuleUser(self.0));
    }
}
