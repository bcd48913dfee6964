// SPDX-License-Identifier: MIT OR Apache-2.0

//! Being called by the server.

use std::ffi::CStr;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::log::log_warning;

/// Runs a callback. A panic ends here, in the log, instead of taking the server down.
pub fn guard<R>(what: &CStr, callback: impl FnOnce() -> R) -> Option<R> {
    match catch_unwind(AssertUnwindSafe(callback)) {
        Ok(result) => Some(result),
        Err(panic) => {
            let reason = panic
                .downcast_ref::<&str>()
                .map(ToString::to_string)
                .or_else(|| panic.downcast_ref::<String>().cloned())
                .unwrap_or_default();
            let what = what.to_string_lossy();
            log_warning(&format!("internal error in {what}, please report it: {reason}"));
            None
        }
    }
}
