//! Reading the arguments of a command.
//!
//! Everything is read and checked before anything is done. A wrong argument is answered with an
//! error that names it and says what is allowed.

use std::num::NonZeroU32;

use slock_core::limits::{META_MAX_BYTES, NAMES_MAX, NUMBER_MAX, TOKEN_MAX_BYTES, is_fence, is_token};
use slock_core::{Extension, WaitPolicy};

use crate::server::{Reply, Str};
use crate::state::{STATE, TTL_MAX_MS};

/// The longest channel and the longest tag of `NOTIFY`, in bytes.
const CHANNEL_MAX_BYTES: usize = 255;
const TAG_MAX_BYTES: usize = 64;

/// The longest wait, in milliseconds: a year. 0 is a wait without limit.
const WAIT_MAX_MS: i64 = TTL_MAX_MS;

/// The longest refusal of `REFUSE`, in milliseconds: an hour.
const REFUSE_MAX_MS: i64 = 3_600_000;

/// An error that ends a command.
pub fn error<T>(text: impl Into<String>) -> Result<T, Reply> {
    Err(Reply::Error(text.into()))
}

/// What was given, as errors show it: at most 64 bytes.
fn shown(bytes: &[u8]) -> String {
    const BYTES_SHOWN: usize = 64;
    let cut = &bytes[..bytes.len().min(BYTES_SHOWN)];
    format!("'{}{}'", cut.escape_ascii(), if cut.len() < bytes.len() { "..." } else { "" })
}

/// The arguments that have not been read yet.
pub struct Args<'a> {
    rest: &'a [Str<'a>],
}

/// Which options a command that may have to wait takes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum OptionSet {
    /// `WAIT`, `NOTIFY`, `FENCE`.
    Upgrade,
    /// `WAIT`, `NOTIFY`, `META`, `EPHEMERAL`, `XX`.
    Write,
    /// The same and `LIMIT`.
    Read,
}

/// The options of a command that may have to wait.
pub struct Options<'a> {
    /// `WAIT ms`, `XX`.
    pub wait: WaitPolicy,
    /// `NOTIFY channel tag`.
    pub notify: Option<(Str<'a>, &'a [u8])>,
    /// `META data`.
    pub meta: Option<&'a [u8]>,
    /// `LIMIT n`.
    pub limit: Option<NonZeroU32>,
    /// `EPHEMERAL`.
    pub is_ephemeral: bool,
    /// `FENCE n`.
    pub fence: Option<u64>,
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
        let mut names: Vec<&[u8]> = keys.iter().map(|key| key.bytes()).collect();
        names.sort_unstable();
        if names.windows(2).any(|pair| pair[0] == pair[1]) {
            return error("ERR a key is named twice");
        }
        Ok(keys)
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
    pub fn ttl_ms(&mut self) -> Result<u64, Reply> {
        let max = STATE.settings.max_ttl_ms.get();
        match self.required()?.integer() {
            Some(ttl) if (1..=max).contains(&ttl) => Ok(ttl.unsigned_abs()),
            _ => error(format!("ERR ttl must be an integer from 1 to {max} milliseconds (slock.max-ttl-ms)")),
        }
    }

    /// A fence.
    pub fn fence(&mut self) -> Result<u64, Reply> {
        fence("fence", self.required()?)
    }

    /// The options that are left, in any order, each at most once, and nothing else.
    pub fn options(&mut self, set: OptionSet) -> Result<Options<'a>, Reply> {
        let (mut wait, mut notify, mut meta, mut limit, mut fence) = (None, None, None, None, None);
        let (mut is_ephemeral, mut is_refresh) = (false, false);
        while let Some(word) = self.next() {
            let word = word.bytes();
            let is = |name: &str| word.eq_ignore_ascii_case(name.as_bytes());
            if is("WAIT") {
                once("WAIT", wait.is_some())?;
                wait = Some(self.wait()?);
            } else if is("NOTIFY") {
                once("NOTIFY", notify.is_some())?;
                notify = Some(self.notify()?);
            } else if is("META") && set != OptionSet::Upgrade {
                once("META", meta.is_some())?;
                meta = Some(self.meta()?);
            } else if is("LIMIT") && set == OptionSet::Read {
                once("LIMIT", limit.is_some())?;
                limit = Some(self.limit()?);
            } else if is("EPHEMERAL") && set != OptionSet::Upgrade {
                once("EPHEMERAL", is_ephemeral)?;
                is_ephemeral = true;
            } else if is("XX") && set != OptionSet::Upgrade {
                once("XX", is_refresh)?;
                is_refresh = true;
            } else if is("FENCE") && set == OptionSet::Upgrade {
                once("FENCE", fence.is_some())?;
                fence = Some(self.fence_value()?);
            } else {
                return unknown_option(word);
            }
        }
        if notify.is_some() && wait.is_none() {
            return error("ERR option NOTIFY needs WAIT");
        }
        // What only refreshes neither waits nor takes a hold that could be bound.
        let wait = match wait {
            Some(_) if is_refresh => return error("ERR option XX does not go with WAIT"),
            _ if is_refresh && is_ephemeral => return error("ERR option XX does not go with EPHEMERAL"),
            None if is_refresh => WaitPolicy::OnlyRefresh,
            wait => wait.unwrap_or(WaitPolicy::NoWait),
        };
        Ok(Options { wait, notify, meta, limit, is_ephemeral, fence })
    }

    /// `[FENCE n]`, and nothing else.
    pub fn fence_option(&mut self) -> Result<Option<u64>, Reply> {
        let mut fence = None;
        while let Some(word) = self.next() {
            if !word.bytes().eq_ignore_ascii_case(b"FENCE") {
                return unknown_option(word.bytes());
            }
            once("FENCE", fence.is_some())?;
            fence = Some(self.fence_value()?);
        }
        Ok(fence)
    }

    /// `ttl-ms [GT] [FENCE n]`, and nothing else: how deadlines move, and of which hold.
    pub fn extension(&mut self) -> Result<(Extension, Option<u64>), Reply> {
        let (ttl_ms, mut is_at_least, mut fence) = (self.ttl_ms()?, false, None);
        while let Some(word) = self.next() {
            let word = word.bytes();
            if word.eq_ignore_ascii_case(b"GT") {
                once("GT", is_at_least)?;
                is_at_least = true;
            } else if word.eq_ignore_ascii_case(b"FENCE") {
                once("FENCE", fence.is_some())?;
                fence = Some(self.fence_value()?);
            } else {
                return unknown_option(word);
            }
        }
        Ok((if is_at_least { Extension::AtLeastTo(ttl_ms) } else { Extension::To(ttl_ms) }, fence))
    }

    /// `[REFUSE ms]`, and nothing else.
    pub fn refuse_option(&mut self) -> Result<Option<u64>, Reply> {
        let mut refuse = None;
        while let Some(word) = self.next() {
            if !word.bytes().eq_ignore_ascii_case(b"REFUSE") {
                return unknown_option(word.bytes());
            }
            once("REFUSE", refuse.is_some())?;
            refuse = Some(match self.value("REFUSE")?.integer() {
                Some(ms) if (1..=REFUSE_MAX_MS).contains(&ms) => ms.unsigned_abs(),
                _ => {
                    return error(format!(
                        "ERR REFUSE must be an integer from 1 to {REFUSE_MAX_MS} milliseconds"
                    ));
                }
            });
        }
        Ok(refuse)
    }

    /// Nothing may be left.
    pub fn end(&self) -> Result<(), Reply> {
        match self.rest.first() {
            None => Ok(()),
            Some(word) => error(format!("ERR unexpected argument {}", shown(word.bytes()))),
        }
    }

    /// The value of an option.
    fn value(&mut self, option: &str) -> Result<Str<'a>, Reply> {
        self.next().ok_or_else(|| Reply::Error(format!("ERR option {option} needs a value")))
    }

    fn fence_value(&mut self) -> Result<u64, Reply> {
        fence("FENCE", self.value("FENCE")?)
    }

    fn wait(&mut self) -> Result<WaitPolicy, Reply> {
        match self.value("WAIT")?.integer() {
            Some(0) => Ok(WaitPolicy::Forever),
            Some(ms) if (1..=WAIT_MAX_MS).contains(&ms) => Ok(WaitPolicy::Timeout(ms.unsigned_abs())),
            _ => error(format!("ERR WAIT must be an integer from 0 to {WAIT_MAX_MS} milliseconds")),
        }
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

    fn limit(&mut self) -> Result<NonZeroU32, Reply> {
        let limit = self.value("LIMIT")?.integer().and_then(|limit| i32::try_from(limit).ok());
        match limit.and_then(|limit| u32::try_from(limit).ok()).and_then(NonZeroU32::new) {
            Some(limit) => Ok(limit),
            None => error(format!("ERR LIMIT must be an integer from 1 to {}", i32::MAX)),
        }
    }

    fn count(&mut self) -> Result<usize, Reply> {
        match self.value("COUNT")?.integer().and_then(|count| usize::try_from(count).ok()) {
            Some(0) => Ok(usize::MAX),
            Some(count) => Ok(count),
            None => error(format!("ERR COUNT must be an integer from 0 to {}", i64::MAX)),
        }
    }

    /// `[COUNT n]`: how many to list at most.
    pub fn list_count(&mut self, default: usize) -> Result<usize, Reply> {
        let mut count = None;
        while let Some(word) = self.next() {
            if !word.bytes().eq_ignore_ascii_case(b"COUNT") {
                return unknown_option(word.bytes());
            }
            once("COUNT", count.is_some())?;
            count = Some(self.count()?);
        }
        Ok(count.unwrap_or(default))
    }

    /// `[FULL [COUNT n]]`, in any order: how many to list at most, or `None` for no lists.
    pub fn full_count(&mut self, default: usize) -> Result<Option<usize>, Reply> {
        let (mut is_full, mut count) = (false, None);
        while let Some(word) = self.next() {
            let word = word.bytes();
            if word.eq_ignore_ascii_case(b"FULL") {
                once("FULL", is_full)?;
                is_full = true;
            } else if word.eq_ignore_ascii_case(b"COUNT") {
                once("COUNT", count.is_some())?;
                count = Some(self.count()?);
            } else {
                return unknown_option(word);
            }
        }
        match (is_full, count) {
            (false, Some(_)) => error("ERR option COUNT needs FULL"),
            (false, None) => Ok(None),
            (true, count) => Ok(Some(count.unwrap_or(default))),
        }
    }
}

fn fence(name: &str, value: Str<'_>) -> Result<u64, Reply> {
    match value.integer().and_then(|fence| u64::try_from(fence).ok()).filter(|fence| is_fence(*fence)) {
        Some(fence) => Ok(fence),
        None => error(format!("ERR {name} must be an integer from 1 to {NUMBER_MAX}")),
    }
}

fn once(option: &str, was_given: bool) -> Result<(), Reply> {
    if was_given { error(format!("ERR option {option} is given twice")) } else { Ok(()) }
}

fn unknown_option<T>(word: &[u8]) -> Result<T, Reply> {
    error(format!("ERR unknown option {}", shown(word)))
}
