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

/// Whether the user may still run the command on these keys.
pub fn may_run(caller: &Caller, names: &[&[u8]]) -> bool {
    let Some(user) = &caller.user else { return true };
    User::named(OwnedString::new(user).as_str()).is_some_and(|user| {
        let command = OwnedString::new(&caller.command);
        let count = caller.counts_keys.then(|| OwnedString::new(names.len().to_string().as_bytes()));
        let keys = names.iter().map(|name| OwnedString::new(name));
        let arguments: SmallVec<[OwnedString; 2]> = count.into_iter().chain(keys).collect();
        // For the token and the ttl, which permissions do not depend on.
        let more = OwnedString::new(b"1");
        let mut words: SmallVec<[Str<'_>; 5]> = SmallVec::from_slice(&[command.as_str()]);
        words.extend(arguments.iter().map(OwnedString::as_str));
        words.extend([more.as_str(), more.as_str()]);
        user.may_run(&words)
    })
}
