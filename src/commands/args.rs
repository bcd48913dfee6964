// SPDX-License-Identifier: MIT OR Apache-2.0

//! Reading the arguments of a command.
//!
//! Everything is read and checked before anything is done. A wrong argument is answered with an
//! error that names it and says what is allowed.

use std::num::NonZeroU32;
use std::ops::RangeInclusive;

use slock_core::WaitPolicy;
use slock_core::limits::{
    META_MAX_BYTES, NAME_MAX_BYTES, NAMES_MAX, NUMBER_MAX, TOKEN_MAX_BYTES, is_name, is_token,
};

use crate::errors::shown;
use crate::server::{Reply, Str};
use crate::state::{STATE, TTL_MAX_MS};

/// The longest channel and the longest tag of `NOTIFY`, in bytes.
const CHANNEL_MAX_BYTES: usize = 255;
const TAG_MAX_BYTES: usize = 64;

/// The longest wait, in milliseconds: a year. 0 is a wait without limit.
const WAIT_MAX_MS: i64 = TTL_MAX_MS;

/// The longest text of `REASON`, in bytes.
const REASON_MAX_BYTES: usize = 256;

/// The longest refusal of `REFUSE`, in milliseconds: an hour.
const REFUSE_MAX_MS: i64 = 3_600_000;

/// An error that ends a command.
pub fn error<T>(text: impl Into<String>) -> Result<T, Reply> {
    Err(Reply::Error(text.into()))
}

/// The arguments that have not been read yet.
pub struct Args<'a> {
    rest: &'a [Str<'a>],
}

/// The options of a command. Those that it does not take are as if they were not given.
#[derive(Default)]
pub struct Options<'a> {
    /// `WAIT ms`.
    wait: Option<WaitPolicy>,
    /// `NOTIFY channel tag`.
    pub notify: Option<(Str<'a>, &'a [u8])>,
    /// `META data`.
    pub meta: Option<&'a [u8]>,
    /// `LIMIT n`.
    pub limit: Option<NonZeroU32>,
    /// `EPHEMERAL`.
    pub is_ephemeral: bool,
    /// `XX`.
    is_refresh: bool,
    /// `FENCE n`.
    pub fence: Option<u64>,
    /// `GT`.
    pub is_at_least: bool,
    /// `REFUSE ms`.
    pub refuse_ms: Option<u64>,
    /// `REASON text`.
    pub reason: Option<&'a [u8]>,
    /// `COUNT n`: how many to list at most.
    pub count: Option<usize>,
    /// `CURSOR c`: where a list goes on, 0 at its beginning.
    pub cursor: u64,
    /// `FULL`.
    is_full: bool,
}

impl Options<'_> {
    /// Whether to wait. What only refreshes neither waits nor takes a hold that could be bound.
    pub fn wait_policy(&self) -> Result<WaitPolicy, Reply> {
        match self.wait {
            None if self.notify.is_some() => error("ERR option NOTIFY needs WAIT"),
            Some(_) if self.is_refresh => error("ERR option XX does not go with WAIT"),
            _ if self.is_refresh && self.is_ephemeral => error("ERR option XX does not go with EPHEMERAL"),
            None if self.is_refresh => Ok(WaitPolicy::OnlyRefresh),
            wait => Ok(wait.unwrap_or(WaitPolicy::NoWait)),
        }
    }

    /// How many to list at most, if lists are wanted.
    pub fn full_count(&self, default: usize) -> Result<Option<usize>, Reply> {
        match self.count {
            Some(_) if !self.is_full => error("ERR option COUNT needs FULL"),
            _ => Ok(self.is_full.then_some(self.count.unwrap_or(default))),
        }
    }
}

impl<'a> Args<'a> {
    /// The arguments of a command, after its name. The server has counted them by the command's arity.
    pub fn new(args: &'a [Str<'a>]) -> Self {
        Self { rest: args.get(1..).unwrap_or_default() }
    }

    /// The next argument.
    pub fn next(&mut self) -> Option<Str<'a>> {
        let (first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*first)
    }

    /// The next argument of those that the arity promises.
    fn required(&mut self) -> Result<Str<'a>, Reply> {
        self.next().ok_or(Reply::WrongArity)
    }

    /// A key, as the one-element slice that the keyspace wants.
    pub fn key(&mut self) -> Result<&'a [Str<'a>], Reply> {
        let key = self.rest.get(..1).ok_or(Reply::WrongArity)?;
        self.rest = &self.rest[1..];
        Ok(key)
    }

    /// `numkeys key [key ...]`, with at least `more` arguments after them.
    pub fn keys(&mut self, more: usize) -> Result<&'a [Str<'a>], Reply> {
        let count = self.required()?.integer().and_then(|count| usize::try_from(count).ok());
        let Some(count) = count.filter(|count| (1..=NAMES_MAX).contains(count)) else {
            return error(format!("ERR numkeys must be an integer from 1 to {NAMES_MAX}"));
        };
        if self.rest.len() < count + more {
            return error("ERR numkeys is greater than the number of keys given");
        }
        let (keys, rest) = self.rest.split_at(count);
        self.rest = rest;
        if count > 1 {
            let mut names: Vec<&[u8]> = keys.iter().map(|key| key.bytes()).collect();
            names.sort_unstable();
            if names.windows(2).any(|pair| pair[0] == pair[1]) {
                return error("ERR a key is named twice");
            }
        }
        Ok(keys)
    }

    /// Checks that a request may ask for locks of these names.
    pub fn check_names(keys: &[Str<'_>]) -> Result<(), Reply> {
        if keys.iter().all(|key| is_name(key.bytes())) {
            Ok(())
        } else {
            error(format!("ERR the key of a lock must be 1 to {NAME_MAX_BYTES} bytes long"))
        }
    }

    /// A token.
    pub fn token(&mut self) -> Result<&'a [u8], Reply> {
        let token = self.required()?.bytes();
        if is_token(token) {
            Ok(token)
        } else {
            error(format!("ERR token must be 1 to {TOKEN_MAX_BYTES} bytes long"))
        }
    }

    /// A ttl in milliseconds.
    #[inline(always)]
    pub fn ttl_ms(&mut self) -> Result<u64, Reply> {
        let max = STATE.settings.max_ttl_ms.get();
        integer("ttl", self.required()?, 1..=max, " milliseconds (slock.max-ttl-ms)")
    }

    /// A fence.
    pub fn fence(&mut self) -> Result<u64, Reply> {
        fence("fence", self.required()?)
    }

    /// The options that are left: of those that begin with these words, in any order, each at most once, and nothing
    /// else.
    #[inline(always)]
    pub fn options(&mut self, taken: &[&'static str]) -> Result<Options<'a>, Reply> {
        let mut options = Options::default();
        // Mostly there are none.
        if !self.rest.is_empty() {
            self.read_options(&mut options, taken)?;
        }
        Ok(options)
    }

    fn read_options(&mut self, options: &mut Options<'a>, taken: &[&'static str]) -> Result<(), Reply> {
        // A bit for each of those that are taken.
        let mut given = 0_u32;
        while let Some(argument) = self.next() {
            let text = argument.bytes();
            // Mostly in capital letters. To compare without regard to case takes five times as long.
            let fits = |word: &&str| text == word.as_bytes() || text.eq_ignore_ascii_case(word.as_bytes());
            let Some(at) = taken.iter().position(fits) else {
                return error(format!("ERR unknown option '{}'", shown(text)));
            };
            let word = taken[at];
            if given & 1 << at != 0 {
                return error(format!("ERR option {word} is given twice"));
            }
            given |= 1 << at;
            match word {
                "WAIT" => options.wait = Some(self.wait()?),
                "NOTIFY" => options.notify = Some(self.notify()?),
                "META" => options.meta = Some(self.meta()?),
                "LIMIT" => options.limit = Some(self.limit()?),
                "EPHEMERAL" => options.is_ephemeral = true,
                "XX" => options.is_refresh = true,
                "FENCE" => options.fence = Some(fence("FENCE", self.value("FENCE")?)?),
                "GT" => options.is_at_least = true,
                "REFUSE" => {
                    options.refuse_ms =
                        Some(integer("REFUSE", self.value("REFUSE")?, 1..=REFUSE_MAX_MS, " milliseconds")?);
                }
                "REASON" => options.reason = Some(self.reason()?),
                "COUNT" => options.count = Some(self.count()?),
                "CURSOR" => options.cursor = integer("CURSOR", self.value("CURSOR")?, 0..=i64::MAX, "")?,
                "FULL" => options.is_full = true,
                _ => return error(format!("ERR unknown option '{}'", shown(text))),
            }
        }
        Ok(())
    }

    /// Nothing may be left.
    pub fn end(&self) -> Result<(), Reply> {
        match self.rest.first() {
            None => Ok(()),
            Some(word) => error(format!("ERR unexpected argument '{}'", shown(word.bytes()))),
        }
    }

    /// The value of an option.
    fn value(&mut self, option: &str) -> Result<Str<'a>, Reply> {
        self.next().ok_or_else(|| Reply::Error(format!("ERR option {option} needs a value")))
    }

    fn wait(&mut self) -> Result<WaitPolicy, Reply> {
        let ms = integer("WAIT", self.value("WAIT")?, 0..=WAIT_MAX_MS, " milliseconds")?;
        Ok(if ms == 0 { WaitPolicy::Forever } else { WaitPolicy::Timeout(ms) })
    }

    fn notify(&mut self) -> Result<(Str<'a>, &'a [u8]), Reply> {
        let (Some(channel), Some(tag)) = (self.next(), self.next()) else {
            return error("ERR option NOTIFY needs a channel and a tag");
        };
        if !(1..=CHANNEL_MAX_BYTES).contains(&channel.bytes().len()) {
            return error(format!("ERR the channel of NOTIFY must be 1 to {CHANNEL_MAX_BYTES} bytes long"));
        }
        if !(1..=TAG_MAX_BYTES).contains(&tag.bytes().len()) {
            return error(format!("ERR the tag of NOTIFY must be 1 to {TAG_MAX_BYTES} bytes long"));
        }
        Ok((channel, tag.bytes()))
    }

    fn meta(&mut self) -> Result<&'a [u8], Reply> {
        let meta = self.value("META")?.bytes();
        if meta.len() <= META_MAX_BYTES {
            Ok(meta)
        } else {
            error(format!("ERR META must be at most {META_MAX_BYTES} bytes long"))
        }
    }

    fn reason(&mut self) -> Result<&'a [u8], Reply> {
        let reason = self.value("REASON")?.bytes();
        if (1..=REASON_MAX_BYTES).contains(&reason.len()) {
            Ok(reason)
        } else {
            error(format!("ERR REASON must be 1 to {REASON_MAX_BYTES} bytes long"))
        }
    }

    fn limit(&mut self) -> Result<NonZeroU32, Reply> {
        let limit = integer("LIMIT", self.value("LIMIT")?, 1..=i64::from(i32::MAX), "")?;
        Ok(u32::try_from(limit).ok().and_then(NonZeroU32::new).unwrap_or(NonZeroU32::MAX))
    }

    fn count(&mut self) -> Result<usize, Reply> {
        let count = integer("COUNT", self.value("COUNT")?, 0..=i64::MAX, "")?;
        Ok(usize::try_from(count).ok().filter(|count| *count > 0).unwrap_or(usize::MAX))
    }
}

fn fence(what: &str, value: Str<'_>) -> Result<u64, Reply> {
    integer(what, value, 1..=NUMBER_MAX.cast_signed(), "")
}

/// An integer within bounds, which an error names, and the unit.
fn integer(what: &str, value: Str<'_>, bounds: RangeInclusive<i64>, unit: &str) -> Result<u64, Reply> {
    match value.integer() {
        Some(number) if bounds.contains(&number) => Ok(number.unsigned_abs()),
        _ => {
            let (min, max) = bounds.into_inner();
            error(format!("ERR {what} must be an integer from {min} to {max}{unit}"))
        }
    }
}
