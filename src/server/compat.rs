//! What this server can do, found by looking and never by its version number.

use redis_module::raw;

macro_rules! is_missing {
    ($($name:ident),* $(,)?) => {
        // SAFETY: entries of the API table are written once, before this is called.
        [$((unsafe { { raw::$name }.is_none() }, stringify!($name))),*]
    };
}

fn missing<const N: usize>(entries: [(bool, &'static str); N]) -> Vec<&'static str> {
    let names = entries.into_iter().filter(|(missing, _)| *missing).map(|(_, name)| name);
    names.map(|name| name.trim_start_matches("RedisModule_")).collect()
}

/// Calls without which the module cannot work.
pub fn missing_required() -> Vec<&'static str> {
    missing(is_missing![
        RedisModule_ACLCheckChannelPermissions,
        RedisModule_ACLCheckCommandPermissions,
        RedisModule_ACLCheckKeyPermissions,
        RedisModule_AvoidReplicaTraffic,
        RedisModule_BlockClient,
        RedisModule_Call,
        RedisModule_CallReplyArrayElement,
        RedisModule_CallReplyInteger,
        RedisModule_CallReplyStringPtr,
        RedisModule_CallReplyType,
        RedisModule_CloseKey,
        RedisModule_CreateCommand,
        RedisModule_CreateDataType,
        RedisModule_CreateString,
        RedisModule_CreateTimer,
        RedisModule_DeauthenticateAndCloseClient,
        RedisModule_DeleteKey,
        RedisModule_DigestAddStringBuffer,
        RedisModule_DigestEndSequence,
        RedisModule_EmitAOF,
        RedisModule_EventLoopAddOneShot,
        RedisModule_Free,
        RedisModule_FreeCallReply,
        RedisModule_FreeModuleUser,
        RedisModule_FreeServerInfo,
        RedisModule_FreeString,
        RedisModule_GetAbsExpire,
        RedisModule_GetApi,
        RedisModule_GetBlockedClientHandle,
        RedisModule_GetBlockedClientPrivateData,
        RedisModule_GetClientId,
        RedisModule_GetClientUserNameById,
        RedisModule_GetCommand,
        RedisModule_GetContextFlags,
        RedisModule_GetDbIdFromIO,
        RedisModule_GetDbIdFromOptCtx,
        RedisModule_GetDetachedThreadSafeContext,
        RedisModule_GetKeyNameFromIO,
        RedisModule_GetKeyNameFromOptCtx,
        RedisModule_GetModuleUserFromUserName,
        RedisModule_GetSelectedDb,
        RedisModule_GetServerInfo,
        RedisModule_InfoAddFieldULongLong,
        RedisModule_InfoAddSection,
        RedisModule_InfoBeginDictField,
        RedisModule_InfoEndDictField,
        RedisModule_IsIOError,
        RedisModule_IsKeysPositionRequest,
        RedisModule_KeyAtPosWithFlags,
        RedisModule_KeyType,
        RedisModule_LoadConfigs,
        RedisModule_LoadStringBuffer,
        RedisModule_LoadUnsigned,
        RedisModule_Log,
        RedisModule_ModuleTypeGetType,
        RedisModule_ModuleTypeGetValue,
        RedisModule_ModuleTypeSetValue,
        RedisModule_NotifyKeyspaceEvent,
        RedisModule_OpenKey,
        RedisModule_PublishMessageShard,
        RedisModule_RegisterBoolConfig,
        RedisModule_RegisterInfoFunc,
        RedisModule_RegisterNumericConfig,
        RedisModule_Replicate,
        RedisModule_ReplicateVerbatim,
        RedisModule_ReplyWithArray,
        RedisModule_ReplyWithError,
        RedisModule_ReplyWithLongLong,
        RedisModule_ReplyWithMap,
        RedisModule_ReplyWithNull,
        RedisModule_ReplyWithStringBuffer,
        RedisModule_SaveStringBuffer,
        RedisModule_SaveUnsigned,
        RedisModule_SelectDb,
        RedisModule_ServerInfoGetFieldC,
        RedisModule_ServerInfoGetFieldSigned,
        RedisModule_SetAbsExpire,
        RedisModule_SetCommandInfo,
        RedisModule_SetDisconnectCallback,
        RedisModule_SetModuleOptions,
        RedisModule_SignalModifiedKey,
        RedisModule_StopTimer,
        RedisModule_StringPtrLen,
        RedisModule_StringToLongLong,
        RedisModule_SubscribeToKeyspaceEvents,
        RedisModule_SubscribeToServerEvent,
        RedisModule_UnblockClient,
        RedisModule_WrongArity,
    ])
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
pub(super) fn is_recent_valkey() -> bool {
    let mut entry: *mut std::ffi::c_void = std::ptr::null_mut();
    let name = c"ValkeyModule_RegisterScriptingEngine";
    let found = super::api!(RedisModule_GetApi(name.as_ptr(), (&raw mut entry).cast()));
    found == raw::REDISMODULE_OK as i32
}

/// What the module does without on this server, each with what that means.
pub fn lacking() -> Vec<&'static str> {
    let names = missing(is_missing![
        RedisModule_AddACLCategory,
        RedisModule_SetCommandACLCategories,
        RedisModule_DefragAlloc,
    ]);
    let meaning = |name: &str| match name {
        "AddACLCategory" | "SetCommandACLCategories" => "the ACL category @slock",
        _ => "active defragmentation of locks",
    };
    let mut lacking: Vec<&'static str> = names.into_iter().map(meaning).collect();
    lacking.dedup();
    if is_recent_valkey() {
        lacking.push("safe notifications of EXPIRE (a waiter learns of a changed expiry at the old one)");
    }
    lacking
}
