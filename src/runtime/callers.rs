//! Who asks for what may have to wait: the user and the command, whose permissions are looked at again at the grant.

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

impl WaitingCommand<'_> {
    /// Who asks, by this command.
    pub fn caller(self, ctx: Ctx<'_>) -> Caller {
        Caller {
            user: ctx.user_name().map(|user| user.as_str().bytes().into()),
            command: self.name.bytes().into(),
            counts_keys: self.counts_keys,
        }
    }
}

/// What the caller that was looked at last is called as the server's strings: mostly the next one is the same.
#[derive(Default)]
pub struct LastCaller(Option<Words>);

struct Words {
    caller: Caller,
    /// Of a user; `None` for who may do everything.
    user: Option<OwnedString>,
    command: OwnedString,
    /// For the token and the ttl, which permissions do not depend on.
    any: OwnedString,
}

impl Words {
    fn of(caller: &Caller) -> Self {
        Self {
            caller: caller.clone(),
            user: caller.user.as_deref().map(OwnedString::new),
            command: OwnedString::new(&caller.command),
            any: OwnedString::new(b"1"),
        }
    }
}

impl LastCaller {
    /// Whether this user may still run the command on these keys.
    pub fn may_run(&mut self, caller: &Caller, names: &[&[u8]]) -> bool {
        let known = self.0.take().filter(|words| words.caller == *caller);
        let words = self.0.insert(known.unwrap_or_else(|| Words::of(caller)));
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
