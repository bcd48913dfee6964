// SPDX-License-Identifier: MIT OR Apache-2.0

//! Commands, as the server's command table shows them.

use std::ffi::{CStr, CString, c_char};
use std::ptr;
use std::sync::OnceLock;

use redis_module::commands::{BeginSearch, FindKeys, KeySpec, KeySpecFlags, get_redis_key_spec};
use redis_module::raw;

use super::api::api;
use super::ctx::Ctx;
use super::guard::guard;
use super::log::log_warning;
use super::reply::Reply;
use super::string::Str;

/// A command: what the server's command table says of it, and what runs it.
pub struct Command {
    /// Its name.
    pub name: &'static CStr,
    /// The server's flags for it, such as `write fast deny-oom`; `readonly` comes first.
    pub flags: &'static CStr,
    /// What it does, in one line.
    pub summary: &'static CStr,
    /// How its cost grows.
    pub complexity: &'static CStr,
    /// Its arguments. Keys come first, or the number of keys and the keys.
    pub args: &'static [Arg],
    /// Does it. The arguments begin with the name of the command. An error is a reply too.
    pub run: fn(Ctx<'_>, &[Str<'_>]) -> Result<Reply, Reply>,
}

/// Where the keys of a command are.
enum Keys {
    /// It has none.
    None,
    /// The first argument.
    One,
    /// As many as the first argument says, after it.
    Counted,
}

impl Command {
    fn keys(&self) -> Keys {
        match self.args {
            [Arg { kind: ArgKind::Key, .. }, ..] => Keys::One,
            [_, Arg { kind: ArgKind::Keys, .. }, ..] => Keys::Counted,
            _ => Keys::None,
        }
    }

    fn counts_keys(&self) -> bool {
        matches!(self.keys(), Keys::Counted)
    }

    /// What happens to its keys.
    fn key_flags(&self) -> KeySpecFlags {
        if self.flags.to_bytes().starts_with(b"readonly") {
            KeySpecFlags::READ_ONLY | KeySpecFlags::ACCESS
        } else {
            KeySpecFlags::READ_WRITE | KeySpecFlags::ACCESS | KeySpecFlags::UPDATE
        }
    }

    /// The number of its arguments, its name included; negative for "at least".
    fn arity(&self) -> i32 {
        let required = 1 + self.args.iter().filter(|arg| !arg.optional).count() as i32;
        let may_be_more = self.counts_keys() || self.args.iter().any(|arg| arg.optional);
        if may_be_more { -required } else { required }
    }
}

/// An argument, for `COMMAND DOCS` and the hints that `redis-cli` shows.
pub struct Arg {
    /// Its name.
    pub name: &'static CStr,
    /// What it is.
    pub kind: ArgKind,
    /// The word before it, such as `WAIT`.
    pub word: Option<&'static CStr>,
    /// Whether it may be left out.
    pub optional: bool,
}

/// What an argument is.
pub enum ArgKind {
    /// The name of a key.
    Key,
    /// Several names of keys.
    Keys,
    /// Any string.
    String,
    /// An integer.
    Integer,
    /// The word alone.
    Word,
    /// Several arguments that belong together.
    Block(&'static [Arg]),
}

/// The server passes a callback nothing that tells the command, so each has its own.
type Callback = unsafe extern "C" fn(*mut raw::RedisModuleCtx, *mut *mut raw::RedisModuleString, i32) -> i32;

/// As many commands as a table may have.
pub const COMMANDS_MAX: usize = 24;

/// Set once, at load.
static COMMANDS: OnceLock<&[Command]> = OnceLock::new();

macro_rules! callbacks {
    ($($at:literal)*) => { [$(dispatch::<$at> as Callback),*] };
}

/// Registers every command, or says which one the server refused. All but those for administrators are in the ACL
/// category, on servers that have such a thing.
pub fn register(ctx: Ctx<'_>, commands: &'static [Command], category: &CStr) -> Result<(), String> {
    let commands = *COMMANDS.get_or_init(|| commands);
    let callbacks: [Callback; COMMANDS_MAX] =
        callbacks!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23);
    // SAFETY: entries of the API table are written once, before `init`; the arguments outlast the call.
    if let Some(add) = unsafe { raw::RedisModule_AddACLCategory } {
        // SAFETY: as above.
        unsafe { add(ctx.pointer(), category.as_ptr()) };
    }
    for (command, callback) in commands.iter().zip(callbacks) {
        if !register_one(ctx, command, callback, category) {
            return Err(command.name.to_string_lossy().into_owned());
        }
    }
    Ok(())
}

/// Puts a command into the table. False if the server refuses.
fn register_one(ctx: Ctx<'_>, spec: &Command, callback: Callback, category: &CStr) -> bool {
    let ok = raw::REDISMODULE_OK as i32;
    let (first, last, step) = if let Keys::One = spec.keys() { (1, 1, 1) } else { (0, 0, 0) };
    let name = spec.name.as_ptr();
    // The key specs tell ACL and clients where the keys are, but a cluster node that routes a command
    // looks at fixed positions, or asks the module.
    let asks_for_keys = if spec.counts_keys() { " getkeys-api" } else { "" };
    let flags = CString::new(format!("{}{asks_for_keys}", spec.flags.to_string_lossy())).unwrap_or_default();
    let created = api!(RedisModule_CreateCommand(
        ctx.pointer(),
        name,
        Some(callback),
        flags.as_ptr(),
        first,
        last,
        step
    ));
    if created != ok {
        return false;
    }
    let command = api!(RedisModule_GetCommand(ctx.pointer(), name));
    describe(command, spec);
    // SAFETY: entries of the API table are written once, before `init`.
    let (add, assign) =
        unsafe { (raw::RedisModule_AddACLCategory, raw::RedisModule_SetCommandACLCategories) };
    if let (Some(_), Some(assign)) = (add, assign) {
        let categories = acl_categories(spec, category);
        // SAFETY: `command` is the one just made, and the text outlasts the call.
        unsafe { assign(command, categories.as_ptr()) };
    }
    true
}

/// The categories that a core command with these flags would be in, and the module's own. What is for
/// administrators is not in the module's own: a user of locks may not use that.
fn acl_categories(spec: &Command, own: &CStr) -> CString {
    let flags = spec.flags.to_string_lossy();
    let mut categories: Vec<&str> = Vec::new();
    for flag in flags.split(' ') {
        match flag {
            "write" => categories.push("write"),
            "readonly" => categories.push("read"),
            "fast" => categories.push("fast"),
            "blocking" => categories.push("blocking"),
            "admin" => categories.extend(["admin", "dangerous"]),
            _ => {}
        }
    }
    if !categories.contains(&"fast") {
        categories.push("slow");
    }
    let own = own.to_string_lossy();
    if !categories.contains(&"admin") {
        categories.push(&own);
    }
    CString::new(categories.join(" ")).unwrap_or_default()
}

unsafe extern "C" fn dispatch<const AT: usize>(
    ctx: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    argc: i32,
) -> i32 {
    let Some(command) = COMMANDS.get().and_then(|commands| commands.get(AT)) else {
        return raw::REDISMODULE_ERR as i32;
    };
    // SAFETY: the server lends the context and the arguments until this callback returns.
    let (ctx, args) = unsafe { (Ctx::from_raw(ctx), Str::arguments(argv, argc)) };
    if command.counts_keys() && api!(RedisModule_IsKeysPositionRequest(ctx.pointer())) != 0 {
        guard(command.name, || tell_keys(ctx, args, command.key_flags()));
        return raw::REDISMODULE_OK as i32;
    }
    let reply = guard(command.name, || (command.run)(ctx, args))
        .unwrap_or_else(|| Err(Reply::Error("ERR internal error, see the server's log".into())));
    ctx.send(reply.unwrap_or_else(|error| error));
    raw::REDISMODULE_OK as i32
}

/// Tells the server where the keys of `numkeys key [key ...]` are; nothing of a command that cannot be
/// right.
fn tell_keys(ctx: Ctx<'_>, args: &[Str<'_>], flags: KeySpecFlags) {
    const FIRST: usize = 2;
    let count = args.get(1).and_then(|count| count.integer()).and_then(|count| usize::try_from(count).ok());
    for at in FIRST..FIRST + count.filter(|count| *count <= args.len().saturating_sub(FIRST)).unwrap_or(0) {
        api!(RedisModule_KeyAtPosWithFlags(ctx.pointer(), at as i32, flags.bits() as i32));
    }
}

fn describe(command: *mut raw::RedisModuleCommand, spec: &Command) {
    let since = CString::new(env!("CARGO_PKG_VERSION")).unwrap_or_default();
    let mut version = raw::RedisModuleCommandInfoVersion {
        version: 1,
        sizeof_historyentry: size_of::<raw::RedisModuleCommandHistoryEntry>(),
        sizeof_keyspec: size_of::<raw::RedisModuleCommandKeySpec>(),
        sizeof_arg: size_of::<raw::RedisModuleCommandArg>(),
    };
    let mut key_specs = key_specs(spec);
    // The server copies all this; here it lives until the end of the function.
    let mut blocks = Vec::new();
    let mut args = c_args(spec.args, &mut blocks);
    let info = raw::RedisModuleCommandInfo {
        version: &raw mut version,
        summary: spec.summary.as_ptr(),
        complexity: spec.complexity.as_ptr(),
        since: since.as_ptr(),
        history: ptr::null_mut(),
        tips: ptr::null(),
        arity: spec.arity(),
        key_specs: key_specs.as_mut_ptr(),
        args: args.as_mut_ptr(),
    };
    if api!(RedisModule_SetCommandInfo(command, &info)) != raw::REDISMODULE_OK as i32 {
        log_warning(&format!("the server does not take the description of {:?}", spec.name));
    }
}

/// The list that the server wants.
fn key_specs(command: &Command) -> Vec<raw::RedisModuleCommandKeySpec> {
    let find_keys = match command.keys() {
        Keys::None => return get_redis_key_spec(Vec::new()),
        Keys::One => FindKeys::new_range(0, 1, 0),
        Keys::Counted => FindKeys::new_keys_num(0, 1, 1),
    };
    let first = BeginSearch::new_index(1);
    get_redis_key_spec(vec![KeySpec::new(None, command.key_flags(), first, find_keys)])
}

/// The list that the server wants, ended by an entry of zeroes. Lists within go to `blocks`, which
/// must live as long.
fn c_args(
    args: &'static [Arg],
    blocks: &mut Vec<Vec<raw::RedisModuleCommandArg>>,
) -> Vec<raw::RedisModuleCommandArg> {
    let mut list: Vec<raw::RedisModuleCommandArg> = Vec::with_capacity(args.len() + 1);
    for arg in args {
        // SAFETY: all zeroes is a valid value of this plain C struct: no flags, no texts, no lists.
        let mut entry: raw::RedisModuleCommandArg = unsafe { std::mem::zeroed() };
        entry.name = arg.name.as_ptr();
        entry.key_spec_index = -1;
        entry.token = arg.word.map_or(ptr::null::<c_char>(), CStr::as_ptr);
        if arg.optional {
            entry.flags |= raw::REDISMODULE_CMD_ARG_OPTIONAL as i32;
        }
        entry.type_ = match arg.kind {
            ArgKind::Key | ArgKind::Keys => {
                entry.key_spec_index = 0;
                if matches!(arg.kind, ArgKind::Keys) {
                    entry.flags |= raw::REDISMODULE_CMD_ARG_MULTIPLE as i32;
                }
                raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_KEY
            }
            ArgKind::String => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_STRING,
            ArgKind::Integer => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_INTEGER,
            ArgKind::Word => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_PURE_TOKEN,
            ArgKind::Block(inner) => {
                let mut inner = c_args(inner, blocks);
                entry.subargs = inner.as_mut_ptr();
                blocks.push(inner);
                raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_BLOCK
            }
        };
        list.push(entry);
    }
    // SAFETY: as above; an entry without a name ends the list.
    list.push(unsafe { std::mem::zeroed() });
    list
}
