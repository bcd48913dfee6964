//! What `INFO` says, read within the process.

use std::ffi::CStr;

use redis_module::raw;

use super::api::api;
use super::ctx::Ctx;

/// A section of `INFO`, freed when dropped. To make one takes the server some microseconds.
pub(super) struct ServerInfo(*mut raw::RedisModuleServerInfoData);

impl ServerInfo {
    pub(super) fn of(ctx: Ctx<'_>, section: &CStr) -> Self {
        Self(api!(RedisModule_GetServerInfo(ctx.pointer(), section.as_ptr())))
    }

    /// The number in this field, if it has one.
    pub(super) fn number(&self, field: &CStr) -> Option<i64> {
        let mut failed = 0;
        let number = api!(RedisModule_ServerInfoGetFieldSigned(self.0, field.as_ptr(), &mut failed));
        (failed == 0).then_some(number)
    }

    /// Whether this field has this text.
    pub(super) fn says(&self, field: &CStr, text: &CStr) -> bool {
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
