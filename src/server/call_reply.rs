// SPDX-License-Identifier: MIT OR Apache-2.0

//! Replies to commands that we have the server run.

use std::ptr::NonNull;

use redis_module::raw;

use super::api::api;

/// A reply, freed when dropped.
pub(super) struct CallReply(NonNull<raw::RedisModuleCallReply>);

impl CallReply {
    /// What `RM_Call` gave, null being no reply.
    pub(super) fn of(reply: *mut raw::RedisModuleCallReply) -> Option<Self> {
        NonNull::new(reply).map(Self)
    }

    pub(super) fn is_error(&self) -> bool {
        api!(RedisModule_CallReplyType(self.0.as_ptr())) == raw::REDISMODULE_REPLY_ERROR as i32
    }

    /// The integer at this position of an array; 0 if there is none.
    pub(super) fn integer_at(&self, at: usize) -> i64 {
        let element = api!(RedisModule_CallReplyArrayElement(self.0.as_ptr(), at));
        if element.is_null() { 0 } else { api!(RedisModule_CallReplyInteger(element)) }
    }

    /// The text at this position of an array.
    pub(super) fn text_at(&self, at: usize) -> Option<String> {
        let element = api!(RedisModule_CallReplyArrayElement(self.0.as_ptr(), at));
        if element.is_null() {
            return None;
        }
        let mut length = 0;
        let start = api!(RedisModule_CallReplyStringPtr(element, &mut length)).cast::<u8>();
        (!start.is_null()).then(|| {
            // SAFETY: the server says where the bytes are and how many; they live as long as the reply.
            let bytes = unsafe { std::slice::from_raw_parts(start, length) };
            String::from_utf8_lossy(bytes).into_owned()
        })
    }
}

impl Drop for CallReply {
    fn drop(&mut self) {
        api!(RedisModule_FreeCallReply(self.0.as_ptr()));
    }
}

/// Why the last `RM_Call` did not run its command, as an error number: right after it, before anything is freed.
pub(super) fn call_error() -> Option<i32> {
    std::io::Error::last_os_error().raw_os_error()
}
