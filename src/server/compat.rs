// SPDX-License-Identifier: MIT OR Apache-2.0

//! What this server can do, found by looking and never by its version number.

use std::ffi::{CString, c_void};
use std::ptr;

use redis_module::raw;

use super::api::api;

/// Calls without which the module cannot work: all that it makes (`tests/test_server_calls.py`), but the one by which
/// it looks, and those that [`lacking`] tells of.
const REQUIRED: &str = "
    ACLCheckChannelPermissions ACLCheckCommandPermissions AvoidReplicaTraffic BlockClient
    Call CallReplyArrayElement CallReplyInteger CallReplyStringPtr CallReplyType CloseKey CreateCommand
    CreateDataType CreateString CreateTimer DeauthenticateAndCloseClient DeleteKey DigestAddStringBuffer
    DigestEndSequence EmitAOF EventLoopAddOneShot Free FreeCallReply FreeModuleUser FreeServerInfo FreeString
    GetAbsExpire GetBlockedClientHandle GetBlockedClientPrivateData GetClientId GetClientUserNameById GetCommand
    GetContextFlags GetDbIdFromIO GetDbIdFromOptCtx GetDetachedThreadSafeContext GetKeyNameFromIO
    GetKeyNameFromOptCtx GetModuleUserFromUserName GetSelectedDb GetServerInfo GetToDbIdFromOptCtx
    GetToKeyNameFromOptCtx InfoAddFieldULongLong InfoAddSection InfoBeginDictField InfoEndDictField IsIOError
    IsKeysPositionRequest KeyAtPosWithFlags KeyType
    LoadConfigs LoadStringBuffer LoadUnsigned Log ModuleTypeGetType ModuleTypeGetValue ModuleTypeSetValue
    NotifyKeyspaceEvent OpenKey PublishMessageShard RegisterBoolConfig RegisterInfoFunc RegisterNumericConfig
    Replicate ReplicateVerbatim ReplyWithArray ReplyWithError ReplyWithLongLong ReplyWithMap ReplyWithNull
    ReplyWithStringBuffer SaveStringBuffer SaveUnsigned SelectDb ServerInfoGetFieldC ServerInfoGetFieldSigned
    SetAbsExpire SetCommandInfo SetDisconnectCallback SetModuleOptions SignalModifiedKey StopTimer StringPtrLen
    StringToLongLong SubscribeToKeyspaceEvents SubscribeToServerEvent UnblockClient WrongArity
";

/// Those of the required calls that this server does not have.
pub fn missing_required() -> impl Iterator<Item = &'static str> {
    REQUIRED.split_whitespace().filter(|call| !has(&format!("RedisModule_{call}")))
}

fn has(call: &str) -> bool {
    let mut entry: *mut c_void = ptr::null_mut();
    let found =
        CString::new(call).map(|call| api!(RedisModule_GetApi(call.as_ptr(), (&raw mut entry).cast())));
    found == Ok(raw::REDISMODULE_OK as i32)
}

/// Valkey 9: slots are handed over by replication. The crate does not know it yet.
const HANDLE_ATOMIC_SLOT_MIGRATION: u32 = 1 << 5;

/// The options that a module can declare on this server.
fn known_options() -> u32 {
    // SAFETY: entries of the API table are written once, at load; the call takes nothing.
    unsafe { raw::RedisModule_GetModuleOptionsAll.map_or(0, |all| all()) as u32 }
}

/// Whether the server keeps a key's expiry with the key, as Valkey 9 does, told by what else is new there.
pub(super) fn embeds_expiries() -> bool {
    is_recent_valkey() && known_options() & HANDLE_ATOMIC_SLOT_MIGRATION != 0
}

/// What the module declares that it can deal with.
pub(super) fn module_options() -> i32 {
    let mut options = raw::REDISMODULE_OPTIONS_HANDLE_IO_ERRORS
        | raw::REDISMODULE_OPTION_NO_IMPLICIT_SIGNAL_MODIFIED
        | raw::REDISMODULE_OPTIONS_HANDLE_REPL_ASYNC_LOAD;
    if is_recent_valkey() {
        options |= known_options() & HANDLE_ATOMIC_SLOT_MIGRATION;
    }
    options as i32
}

/// Whether this is Valkey from 8.1 on, told by a call that came with that release.
fn is_recent_valkey() -> bool {
    has("ValkeyModule_RegisterScriptingEngine")
}

/// What the module does without on this server.
pub fn lacking() -> impl Iterator<Item = &'static str> {
    let has_categories = has("RedisModule_AddACLCategory") && has("RedisModule_SetCommandACLCategories");
    let lacking = [
        (!has_categories, "the ACL category @slock"),
        (!has("RedisModule_DefragAlloc"), "active defragmentation of locks"),
    ];
    lacking.into_iter().filter(|(is_lacking, _)| *is_lacking).map(|(_, what)| what)
}
