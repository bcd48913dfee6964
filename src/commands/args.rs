//! Reading the arguments of a command.
//!
//! Everything is read and checked before anything is done. A wrong argument is answered with an
//! error that names it and says what is allowed, a wrong option with `ERR syntax error`.

use slock_core::WaitPolicy;
use slock_core::limits::{META_MAX_BYTES, NAMES_MAX, TOKEN_MAX_BYTES, is_token};

use crate::server::{Reply, Str};
use crate::state::{self, TTL_MAX_MS};

/// The longest wait, in milliseconds: a year. 0 is a wait without limit.
const WAIT_MAX_MS: i64 = TTL_MAX_MS;

/// An error that ends a command.
pub fn error<T>(text: impl Into<String>) -> Result<T, Reply> {
    Err(Reply::Error(text.into()))
}

/// `ERR syntax error`.
pub fn syntax_error<T>() -> Result<T, Reply> {
    error("ERR syntax error")
}

/// The arguments that have not been read yet.
pub struct Args<'a> {
    rest: &'a [Str<'a>],
}

/// The options of a command that takes a hold.
#[derive(Debug)]
pub struct Options<'a> {
    /// `WAIT ms`.
    pub wait: WaitPolicy,
    /// `META data`.
    pub meta: Option<&'a [u8]>,
    /// `EPHEMERAL`.
    pub is_ephemeral: bool,
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
        let max = state::with(|state| state.settings.max_ttl_ms.get());
        match self.required()?.integer() {
            Some(ttl) if (1..=max).contains(&ttl) => Ok(ttl.unsigned_abs()),
            _ => error(format!("ERR ttl must be an integer from 1 to {max} milliseconds")),
        }
    }

    /// A fence.
    pub fn fence(&mut self) -> Result<u64, Reply> {
        match self.required()?.integer() {
            Some(fence) if fence >= 1 => Ok(fence.unsigned_abs()),
            _ => error(format!("ERR fence must be an integer from 1 to {}", i64::MAX)),
        }
    }

    /// `[WAIT ms]`, and where `for_hold` also `[META data] [EPHEMERAL]`, in any order, each at most
    /// once, and nothing else.
    pub fn options(&mut self, for_hold: bool) -> Result<Options<'a>, Reply> {
        let (mut wait, mut meta, mut is_ephemeral) = (None, None, false);
        while let Some(word) = self.next() {
            let word = word.bytes();
            if word.eq_ignore_ascii_case(b"WAIT") && wait.is_none() {
                wait = Some(self.wait()?);
            } else if word.eq_ignore_ascii_case(b"META") && for_hold && meta.is_none() {
                meta = Some(self.meta()?);
            } else if word.eq_ignore_ascii_case(b"EPHEMERAL") && for_hold && !is_ephemeral {
                is_ephemeral = true;
            } else {
                return syntax_error();
            }
        }
        Ok(Options { wait: wait.unwrap_or(WaitPolicy::NoWait), meta, is_ephemeral })
    }

    /// Nothing may be left.
    pub fn end(&self) -> Result<(), Reply> {
        if self.rest.is_empty() { Ok(()) } else { syntax_error() }
    }

    fn wait(&mut self) -> Result<WaitPolicy, Reply> {
        let Some(word) = self.next() else { return syntax_error() };
        match word.integer() {
            Some(0) => Ok(WaitPolicy::Forever),
            Some(ms) if (1..=WAIT_MAX_MS).contains(&ms) => Ok(WaitPolicy::Timeout(ms.unsigned_abs())),
            _ => error(format!("ERR WAIT must be an integer from 0 to {WAIT_MAX_MS} milliseconds")),
        }
    }

    fn meta(&mut self) -> Result<&'a [u8], Reply> {
        let Some(word) = self.next() else { return syntax_error() };
        let meta = word.bytes();
        if meta.len() <= META_MAX_BYTES {
            Ok(meta)
        } else {
            error(format!("ERR META must be at most {META_MAX_BYTES} bytes long"))
        }
    }

    /// `[FULL [COUNT n]]`: how many to list at most, or `None` for no lists.
    pub fn full_count(&mut self) -> Result<Option<usize>, Reply> {
        const DEFAULT: usize = 100;
        let Some(word) = self.next() else { return Ok(None) };
        if !word.bytes().eq_ignore_ascii_case(b"FULL") {
            return syntax_error();
        }
        let Some(word) = self.next() else { return Ok(Some(DEFAULT)) };
        let count = self.next();
        let (true, Some(count)) = (word.bytes().eq_ignore_ascii_case(b"COUNT"), count) else {
            return syntax_error();
        };
        self.end()?;
        match count.integer().and_then(|count| usize::try_from(count).ok()) {
            Some(0) => Ok(Some(usize::MAX)),
            Some(count) => Ok(Some(count)),
            None => error(format!("ERR COUNT must be an integer from 0 to {}", i64::MAX)),
        }
    }
}
