//! Who asks for what may have to wait: the user and the command, whose permissions are looked at again at the grant.

use std::cell::RefCell;

use slock_core::Caller;
use smallvec::SmallVec;

use crate::server::{Ctx, OwnedString, Str, User};

/// The command of a client that may have to wait.
#[derive(Clone, Copy)]
pub struct WaitingCommand<'a> {
    /// Its name, as it was sent.
    pub name: Str<'a>,
    /// Whether the number of keys stands before them.
    pub counts_keys: bool,
}

/// The caller that asked or was looked at last, and what the server calls it: mostly the next one is the same.
#[derive(Default)]
pub struct LastCaller(RefCell<Option<Words>>);

struct Words {
    caller: Caller,
    /// Of a user; `None` for who may do everything.
    user: Option<OwnedString>,
    command: OwnedString,
    /// For the token and the ttl, which permissions do not depend on.
    any: OwnedString,
}

impl Words {
    fn of(caller: Caller) -> Self {
        Self {
            user: caller.user.as_deref().map(OwnedString::new),
            command: OwnedString::new(&caller.command),
            any: OwnedString::new(b"1"),
            caller,
        }
    }
}

impl LastCaller {
    /// Who asks by this command.
    pub fn of_command(&self, ctx: Ctx<'_>, command: WaitingCommand<'_>) -> Caller {
        let user = ctx.user_name();
        let user = user.as_ref().map(|user| user.as_str().bytes());
        let name = command.name.bytes();
        let mut last = self.0.borrow_mut();
        if let Some(Words { caller, .. }) = &*last
            && caller.user.as_deref() == user
            && *caller.command == *name
            && caller.counts_keys == command.counts_keys
        {
            return caller.clone();
        }
        let counts_keys = command.counts_keys;
        let caller = Caller { user: user.map(Into::into), command: name.into(), counts_keys };
        *last = Some(Words::of(caller.clone()));
        caller
    }

    /// Whether the user may still run the command on these keys.
    pub fn may_run(&self, caller: &Caller, names: &[&[u8]]) -> bool {
        let mut last = self.0.borrow_mut();
        let known = last.take().filter(|words| words.caller == *caller);
        let words = last.insert(known.unwrap_or_else(|| Words::of(caller.clone())));
        let Some(user) = &words.user else { return true };
        let Some(user) = User::named(user.as_str()) else { return false };
        let count = caller.counts_keys.then(|| OwnedString::new(names.len().to_string().as_bytes()));
        let keys = names.iter().map(|name| OwnedString::new(name));
        let arguments: SmallVec<[OwnedString; 2]> = count.into_iter().chain(keys).collect();
        let mut command: SmallVec<[Str<'_>; 5]> = SmallVec::from_slice(&[words.command.as_str()]);
        command.extend(arguments.iter().map(OwnedString::as_str));
        command.extend([words.any.as_str(), words.any.as_str()]);
        user.may_run(&command)
    }
}
