// SPDX-License-Identifier: MIT OR Apache-2.0

//! Calling the server.

/// Calls a function of the module API by its name. The caller vouches for its pointers: they
/// are live objects of the server's, wrapped by the types of this layer, or buffers that outlast the call.
macro_rules! api {
    ($name:ident($($arg:expr),* $(,)?)) => {{
        // SAFETY: the server filled this entry at load (`missing_required` knows all calls that are made so, and
        // refuses to load otherwise; the few that it needs itself, and `RM_StringPtrLen`, all servers have). For the
        // arguments see above.
        unsafe { (redis_module::raw::$name.unwrap_unchecked())($($arg),*) }
    }};
}
pub(super) use api;
