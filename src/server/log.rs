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

fn log(level: &CStr, line: &str) {
    let line = CString::new(line.replace('\0', " ")).unwrap_or_default();
    // The server names the module in the line only when it gets a context of the module's.
    let ctx = module_ctx();
    let prefix = if ctx.is_null() { c"<slock> %s" } else { c"%s" };
    api!(RedisModule_Log(ctx, level.as_ptr(), prefix.as_ptr(), line.as_ptr()));
}
