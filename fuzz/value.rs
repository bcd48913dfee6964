//! Stored values: whatever the bytes are, they are refused or they are the one encoding of a lock.

#![no_main]

use libfuzzer_sys::fuzz_target;
use slock_core::format::{decode, encode};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(lock) = decode(bytes) {
        assert_eq!(encode(&lock), bytes, "two encodings of one lock");
    }
});
