// SPDX-License-Identifier: MIT OR Apache-2.0

//! What `slock run` and `slock acquire` have in common: which lock is wanted, the wait for it, and what is said of that.

use std::convert::Infallible;
use std::time::Duration;

use slock_client::{Error, Hold, Locks, Mode, Request};
use tokio::time::{Instant, sleep, timeout};

use crate::address::Place;
use crate::args::Wanted;
use crate::failure::{Failure, NOT_OBTAINED, UNAVAILABLE};
use crate::signals::Signals;
use crate::table;

/// A wait of this length is told on standard error, and then again and again.
const TELL_AFTER: Duration = Duration::from_secs(1);
const TELL_AGAIN: Duration = Duration::from_secs(60);

/// What could not be withdrawn or released until then ends by its ttl.
const CLOSE_WITHIN: Duration = Duration::from_secs(4);
/// The same for a server that has been waited for in vain.
const CLOSE_SILENT_WITHIN: Duration = Duration::from_millis(200);

/// The lock that is wanted, and where.
pub struct Asked<'a> {
    pub place: &'a Place,
    pub locks: &'a Locks,
    pub keys: &'a [String],
    pub wanted: &'a Wanted,
}

impl Asked<'_> {
    /// The request. The program is a part of what others see of it.
    pub fn request(&self, ttl: Duration, program: &str) -> Request {
        let wanted = self.wanted;
        let mode = if wanted.read || wanted.limit.is_some() { Mode::Read } else { Mode::Write };
        let request = self.locks.request(self.keys.to_vec(), mode).ttl(ttl);
        let request = request.metadata(wanted.meta.clone().unwrap_or_else(|| who_we_are(program)));
        let request = match wanted.limit {
            Some(limit) => request.limit(limit),
            None => request,
        };
        match wanted.wait {
            Some(wait) => request.wait(wait),
            None => request,
        }
    }

    /// Waits for the lock. A signal ends the wait: what was asked is withdrawn, and what was granted is released, before
    /// the `Locks` is closed.
    pub async fn obtain(&self, request: Request, signals: &mut Signals) -> Result<Hold, Failure> {
        let began = Instant::now();
        let asks_once = self.wanted.asks_once();
        let asked =
            async { if asks_once { request.try_acquire().await } else { request.acquire().await.map(Some) } };
        let hold = tokio::select! {
            biased;
            signal = signals.next() => Err(self.ended_by(signal, began)),
            hold = asked => match hold {
                Ok(Some(hold)) => Ok(hold),
                Ok(None) | Err(Error::TimedOut { .. }) => Err(self.not_obtained().await),
                Err(error) => Err(Failure::of(&error, &self.place.shown)),
            },
            never = self.tell_of_the_wait() => match never {},
        };
        if let Ok(hold) = &hold {
            self.tell(&format!(
                "{} is held for {} after {}, with the fencing token {}",
                self.shown_keys(),
                hold.mode(),
                table::duration(began.elapsed()),
                hold.fence()
            ));
        }
        hold.map_err(|failure| self.with_code(failure))
    }

    pub async fn close(&self, failure: Option<&Failure>) {
        let is_silent = failure.is_some_and(|failure| failure.code == UNAVAILABLE);
        let _ = timeout(if is_silent { CLOSE_SILENT_WITHIN } else { CLOSE_WITHIN }, self.locks.close()).await;
    }

    /// With the exit code that was asked for, if the lock was not obtained. If that is 0, only `--verbose` says so: cron
    /// mails each line.
    pub fn with_code(&self, failure: Failure) -> Failure {
        let Failure { line, code: NOT_OBTAINED } = failure else { return failure };
        let code = self.wanted.conflict_exit_code;
        let is_told = code != 0 || self.wanted.verbose;
        Failure { line: if is_told { line } else { String::new() }, code }
    }

    /// With `--verbose`.
    pub fn tell(&self, line: &str) {
        if self.wanted.verbose {
            table::say(line);
        }
    }

    pub fn shown_keys(&self) -> String {
        table::clean(&self.keys.join(", "))
    }

    fn ended_by(&self, signal: i32, began: Instant) -> Failure {
        let name = match signal {
            libc::SIGHUP => "SIGHUP",
            libc::SIGINT => "SIGINT",
            libc::SIGQUIT => "SIGQUIT",
            _ => "SIGTERM",
        };
        let waited = table::duration(began.elapsed());
        let line = format!("{name} ended the wait for {} after {waited}", self.shown_keys());
        Failure::new(u8::try_from(128 + signal).unwrap_or(u8::MAX), line)
    }

    /// Says who is waited for. It must not end before the wait.
    async fn tell_of_the_wait(&self) -> Infallible {
        if self.wanted.asks_once() {
            return std::future::pending().await;
        }
        sleep(TELL_AFTER).await;
        loop {
            let who = self.who_has().await;
            let keys = self.shown_keys();
            table::say(&match who.as_slice() {
                [(_, Some(state))] if self.keys.len() == 1 => format!("waiting for {keys}, {state}"),
                [_] if self.keys.len() == 1 => format!("waiting for {keys}"),
                [] => format!("waiting for {keys}, held by nobody: `slock doctor` may say why"),
                several => format!("waiting for {keys}: {}", in_words(several)),
            });
            sleep(TELL_AGAIN).await;
        }
    }

    async fn not_obtained(&self) -> Failure {
        let how = match self.wanted.wait {
            Some(wait) if !wait.is_zero() => format!(" within {}", table::duration(wait)),
            _ => String::new(),
        };
        let who = self.who_has().await;
        let why = if who.is_empty() { "it is free by now".to_owned() } else { in_words(&who) };
        Failure::new(NOT_OBTAINED, format!("not obtained{how}: {why}"))
    }

    /// The keys that are not free, and who has them, as far as that may be seen.
    async fn who_has(&self) -> Vec<(String, Option<String>)> {
        let mut who = Vec::new();
        for key in self.keys {
            let info = match self.locks.info(key).await {
                Ok(Some(info)) => info,
                Ok(None) => continue,
                Err(_) => {
                    who.push((table::clean(key), None));
                    continue;
                }
            };
            let holder = info.holders.first().map(|holder| {
                let who = table::clean(holder.metadata.as_ref().unwrap_or(&holder.token));
                let others = match info.holders.len() {
                    1 => String::new(),
                    several => format!(" and {} more", several - 1),
                };
                let mode = info.mode.map_or("nothing".to_owned(), |mode| mode.to_string());
                format!("held for {mode} by '{who}'{others} for {}", table::duration(holder.held))
            });
            let waiters = match info.waiters {
                0 => None,
                1 => Some("1 waits".to_owned()),
                several => Some(format!("{several} wait")),
            };
            let parts: Vec<String> = holder.into_iter().chain(waiters).collect();
            who.push((table::clean(key), Some(parts.join(", "))));
        }
        who
    }
}

fn in_words(who: &[(String, Option<String>)]) -> String {
    let text = |(key, state): &(String, Option<String>)| match state {
        Some(state) => format!("{key} is {state}"),
        None => format!("who has {key} may not be seen"),
    };
    who.iter().map(text).collect::<Vec<_>>().join("; ")
}

/// Without the arguments of the program: they may hold secrets.
fn who_we_are(program: &str) -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let text = format!("{host} {} {program}", std::process::id());
    text.chars().take(200).collect()
}
