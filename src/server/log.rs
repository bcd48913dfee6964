// SPDX-License-Identifier: MIT OR Apache-2.0

//! The server's log.

use std::ffi::{CStr, CString};

use super::api::api;
use super::module_ctx::module_ctx;

/// A line that an operator should see.
pub fn log_warning(line: &str) {
    log(c"warning", line);
}

/// A line that says what is so.
pub fn log_notice(line: &str) {
    log(c"notice", line);
}

/// What a client chose, as a part of a line: without characters that would begin another line or hide a part of this
/// one, and at most 256 characters of it, since the server cuts a line at about 1,000.
pub fn loggable(bytes: &[u8]) -> String {
    const MOST: usize = 256;
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(4 * MOST)]);
    let (mut shown, mut room) = (String::new(), MOST);
    for escaped in text.chars().map(char::escape_debug) {
        if escaped.len() > room {
            return format!("\"{shown}\"...");
        }
        room -= escaped.len();
        shown.extend(escaped);
    }
    format!("\"{shown}\"")
}

fn log(level: &CStr, line: &str) {
    let line = CString::new(line.replace('\0', " ")).unwrap_or_default();
    // The server names the module in the line only when it gets a context of the module's.
    let ctx = module_ctx();
    let prefix = if ctx.is_null() { c"<slock> %s" } else { c"%s" };
    api!(RedisModule_Log(ctx, level.as_ptr(), prefix.as_ptr(), line.as_ptr()));
}
