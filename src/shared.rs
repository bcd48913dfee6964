// SPDX-License-Identifier: MIT OR Apache-2.0

//! Numbers and flags that any callback may read and set. (One thread runs them, but for values that the server frees
//! in the background: these only read flags and count.)

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};

macro_rules! shared {
    ($(#[$doc:meta])* $name:ident, $value:ty, $atomic:ty) => {
        $(#[$doc])*
        pub struct $name($atomic);

        impl $name {
            pub const fn new(value: $value) -> Self {
                Self(<$atomic>::new(value))
            }

            pub fn get(&self) -> $value {
                self.0.load(Relaxed)
            }

            pub fn set(&self, value: $value) {
                self.0.store(value, Relaxed);
            }
        }
    };
}

shared!(
    /// Whether something is so.
    Flag, bool, AtomicBool
);
shared!(
    /// A number that is counted.
    Count, u64, AtomicU64
);

impl Count {
    pub fn add(&self, more: u64) {
        self.0.fetch_add(more, Relaxed);
    }
}

shared!(
    /// A setting.
    Number, i64, AtomicI64
);
