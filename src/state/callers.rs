//! Who asked for what waits: users and their commands, to look at their permissions again at the grant.

use std::collections::BTreeMap;

use slock_core::CallerId;
use smallvec::SmallVec;

use crate::server::{Ctx, OwnedString, Str, User};

/// The command of a client that is about to wait.
#[derive(Clone, Copy)]
pub struct WaitingCommand<'a> {
    /// Its name, as it was sent.
    pub name: Str<'a>,
    /// Whether the number of keys stands before them.
    pub counts_keys: bool,
}

/// A user and a command.
struct Caller {
    /// `None` for one that may do everything.
    user: Option<OwnedString>,
    command: OwnedString,
    counts_keys: bool,
}

/// The names of a user, if there is one, and of a command.
type CallerName = (Option<Box<[u8]>>, Box<[u8]>);

/// Each user with each command once, whatever the number of requests. Forgotten when nobody waits.
#[derive(Default)]
pub struct Callers {
    callers: Vec<Caller>,
    numbers: BTreeMap<CallerName, CallerId>,
}

impl Callers {
    /// The number of the user and command of this context.
    pub fn number_of(&mut self, ctx: Ctx<'_>, command: WaitingCommand<'_>) -> CallerId {
        let user = ctx.user_name();
        let user_bytes = user.as_ref().map(|user| user.as_str().bytes().into());
        let key = (user_bytes, command.name.bytes().to_ascii_lowercase().into());
        *self.numbers.entry(key).or_insert_with(|| {
            let (name, counts_keys) = (OwnedString::new(command.name.bytes()), command.counts_keys);
            self.callers.push(Caller { user, command: name, counts_keys });
            u32::try_from(self.callers.len() - 1).unwrap_or(u32::MAX)
        })
    }

    /// Whether the user may still run the command on these keys.
    pub fn may_run(&self, number: CallerId, names: &[&[u8]]) -> bool {
        let Some(Caller { user, command, counts_keys }) = self.callers.get(number as usize) else {
            return false;
        };
        let Some(user) = user else { return true };
        User::named(user.as_str()).is_some_and(|user| {
            let count = counts_keys.then(|| OwnedString::new(names.len().to_string().as_bytes()));
            let keys = names.iter().map(|name| OwnedString::new(name));
            // For the token and the ttl, which permissions do not depend on.
            let more = [OwnedString::new(b"1"), OwnedString::new(b"1")];
            let arguments: SmallVec<[OwnedString; 4]> = count.into_iter().chain(keys).chain(more).collect();
            let mut words: SmallVec<[Str<'_>; 5]> = SmallVec::from_slice(&[command.as_str()]);
            words.extend(arguments.iter().map(OwnedString::as_str));
            user.may_run(&words)
        })
    }

    /// Nobody waits any more.
    pub fn clear(&mut self) {
        self.callers.clear();
        self.numbers.clear();
    }
}
