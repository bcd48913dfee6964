// SPDX-License-Identifier: MIT OR Apache-2.0

//! Strings of the server.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::slice;

use redis_module::raw;

use super::api::api;

/// A string that the server lends for as long as a command runs.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Str<'a> {
    pointer: *mut raw::RedisModuleString,
    lent: PhantomData<&'a ()>,
}

impl<'a> Str<'a> {
    /// Wraps what the server handed to a callback.
    ///
    /// # Safety
    /// `pointer` is a live string of the server's, and stays so for `'a`.
    pub(super) unsafe fn from_raw(pointer: *mut raw::RedisModuleString) -> Self {
        Self { pointer, lent: PhantomData }
    }

    /// The arguments of a command.
    ///
    /// # Safety
    /// `argv` points to `argc` live strings that stay so for `'a`; or is null, where there are none.
    pub(super) unsafe fn arguments(argv: *mut *mut raw::RedisModuleString, argc: i32) -> &'a [Self] {
        if argv.is_null() {
            return &[];
        }
        // SAFETY: a `Str` is one pointer and nothing else (`repr(transparent)`); the rest is the
        // caller's promise.
        unsafe { slice::from_raw_parts(argv.cast::<Self>(), usize::try_from(argc).unwrap_or(0)) }
    }

    /// The bytes of the string.
    pub fn bytes(self) -> &'a [u8] {
        let mut length = 0;
        let start = api!(RedisModule_StringPtrLen(self.pointer, &mut length));
        // SAFETY: the server says where its bytes are and how many; nobody changes them during a command.
        unsafe { slice::from_raw_parts(start.cast::<u8>(), length) }
    }

    /// The integer that the string spells, exactly as the server's own commands read one.
    pub fn integer(self) -> Option<i64> {
        let mut number = 0;
        let status = api!(RedisModule_StringToLongLong(self.pointer, &mut number));
        (status == raw::REDISMODULE_OK as i32).then_some(number)
    }

    pub(super) fn pointer(self) -> *mut raw::RedisModuleString {
        self.pointer
    }
}

/// A string of the server's that we made, freed when dropped.
pub struct OwnedString(*mut raw::RedisModuleString);

impl OwnedString {
    /// A string with these bytes.
    pub fn new(bytes: &[u8]) -> Self {
        // Made without a context, so that no callback's end frees it.
        Self(api!(RedisModule_CreateString(std::ptr::null_mut(), bytes.as_ptr().cast(), bytes.len())))
    }

    /// Takes over a string that nobody else frees.
    ///
    /// # Safety
    /// `pointer` is a live string of the server's, and the caller gives up its share of it.
    pub(super) unsafe fn from_raw(pointer: *mut raw::RedisModuleString) -> Self {
        Self(pointer)
    }

    /// This string, borrowed.
    pub fn as_str(&self) -> Str<'_> {
        Str { pointer: self.0, lent: PhantomData }
    }
}

/// Strings that we made, each of which lives as long as all of them.
#[derive(Default)]
pub struct Strings(RefCell<Vec<OwnedString>>);

impl Strings {
    /// One more, with these bytes.
    pub fn add(&self, bytes: &[u8]) -> Str<'_> {
        let string = OwnedString::new(bytes);
        let lent = Str { pointer: string.0, lent: PhantomData };
        self.0.borrow_mut().push(string);
        lent
    }
}

/// The string that was made last for a purpose which mostly needs the same one again.
#[derive(Default)]
pub struct LastString(Option<OwnedString>);

impl LastString {
    /// The string with these bytes.
    pub fn with(&mut self, bytes: &[u8]) -> Str<'_> {
        let same = self.0.take().filter(|last| last.as_str().bytes() == bytes);
        self.0.insert(same.unwrap_or_else(|| OwnedString::new(bytes))).as_str()
    }
}

impl Drop for OwnedString {
    fn drop(&mut self) {
        api!(RedisModule_FreeString(std::ptr::null_mut(), self.0));
    }
}
