// SPDX-License-Identifier: MIT OR Apache-2.0

//! What a command answers, and `INFO`.

use std::ffi::{CStr, CString};

use redis_module::raw;

use super::api::api;
use super::ctx::Ctx;

/// What a command answers.
pub enum Reply {
    /// An integer.
    Int(i64),
    /// An error, its code first.
    Error(String),
    /// "wrong number of arguments".
    WrongArity,
    /// Nothing.
    Null,
    /// It is sent already, or comes later.
    Sent,
}

impl Ctx<'_> {
    /// Answers the client.
    #[inline(always)]
    pub fn send(self, reply: Reply) {
        match reply {
            Reply::Int(number) => self.reply_int(number),
            Reply::Error(text) => self.reply_error(&text),
            Reply::WrongArity => {
                api!(RedisModule_WrongArity(self.pointer()));
            }
            Reply::Null => self.reply_null(),
            Reply::Sent => {}
        }
    }

    /// An integer.
    pub fn reply_int(self, number: i64) {
        api!(RedisModule_ReplyWithLongLong(self.pointer(), number));
    }

    /// A string.
    pub fn reply_bytes(self, bytes: &[u8]) {
        api!(RedisModule_ReplyWithStringBuffer(self.pointer(), bytes.as_ptr().cast(), bytes.len()));
    }

    /// Nothing.
    pub fn reply_null(self) {
        api!(RedisModule_ReplyWithNull(self.pointer()));
    }

    /// The head of an array of so many elements.
    pub fn reply_array(self, length: usize) {
        api!(RedisModule_ReplyWithArray(self.pointer(), length as _));
    }

    /// The head of a map of so many pairs; a flat array for clients that speak RESP2.
    pub fn reply_map(self, pairs: usize) {
        api!(RedisModule_ReplyWithMap(self.pointer(), pairs as _));
    }

    #[cold]
    fn reply_error(self, text: &str) {
        let text = CString::new(text).unwrap_or_else(|_| c"ERR unprintable error".into());
        api!(RedisModule_ReplyWithError(self.pointer(), text.as_ptr()));
    }
}

/// The section of `INFO` that is being written.
pub struct Section(pub(super) *mut raw::RedisModuleInfoCtx);

impl Section {
    /// Adds a field. The server puts the module's name before it.
    pub fn field(&self, name: &CStr, value: u64) {
        api!(RedisModule_InfoAddFieldULongLong(self.0, name.as_ptr(), value));
    }

    /// Adds a field with parts, as `name:part=value,part=value`.
    pub fn field_of_parts(&self, name: &CStr, parts: &[(&CStr, u64)]) {
        api!(RedisModule_InfoBeginDictField(self.0, name.as_ptr()));
        parts.iter().for_each(|(part, value)| self.field(part, *value));
        api!(RedisModule_InfoEndDictField(self.0));
    }
}
