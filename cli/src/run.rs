// SPDX-License-Identifier: MIT OR Apache-2.0

//! `slock run`: takes the lock, runs the command, and sees to it that the command ends with its lease.

use std::convert::Infallible;
use std::error::Error as _;
use std::io;
use std::path::Path;
use std::time::Duration;

use slock_client::{Error, Hold, Mode, Request};
use tokio::time::{Instant, sleep, timeout};

use crate::address::{Place, SECRETS};
use crate::args::Run;
use crate::child::{Child, Event};
use crate::failure::{Failure, LOST, NOT_OBTAINED};
use crate::request::Asked;
use crate::signals::Signals;
use crate::table;

/// How often the server is asked whether it still has the lock, and how often the clock is looked at, which may have
/// been stopped with the machine.
const BETWEEN_LOOKS: Duration = Duration::from_secs(1);
const NO_EXECUTABLE: u8 = 126;
const NO_PROGRAM: u8 = 127;

pub async fn run(place: &Place, options: &Run) -> Result<u8, Failure> {
    let mut signals = Signals::ending().map_err(|error| Failure::usage(error.to_string()))?;
    let locks = place.locks()?;
    let asked = Asked { place, locks: &locks, keys: &options.keys, wanted: &options.wanted };
    refuse_to_wait_for_itself(place, options)?;
    let obtained = match &options.token {
        Some(token) => adopt(&asked, options, token).await,
        None => {
            let program = Path::new(&options.command[0]).file_name().unwrap_or_default().to_string_lossy();
            let request = with_bounds(asked.request(options.ttl, &program), options);
            asked.obtain(request, &mut signals).await
        }
    };
    let code = match obtained {
        Ok(hold) => under(hold, &asked, options, &mut signals).await,
        Err(failure) => Err(failure),
    };
    asked.close(code.as_ref().err()).await;
    code
}

fn with_bounds(request: Request, options: &Run) -> Request {
    let request = request.at_least(options.at_least);
    match options.max_hold {
        Some(most) => request.max_hold(most),
        None => request,
    }
}

/// For the command: what this `slock run` and those around it hold, one key a line, with its place.
const HELD: &str = "SLOCK_HELD";

/// The command of a `slock run` that waited for the lock of that `slock run` would wait for ever.
fn refuse_to_wait_for_itself(place: &Place, options: &Run) -> Result<(), Failure> {
    if options.wanted.asks_once() || options.token.is_some() {
        return Ok(());
    }
    let held = std::env::var(HELD).unwrap_or_default();
    match options.keys.iter().find(|key| held.lines().any(|line| line == place.line(key))) {
        Some(key) => Err(Failure::usage(format!(
            "this runs under `slock run {0}` already, and would wait for itself: run the command without slock, or unset \
             {HELD} if {0} is not held any more",
            table::clean(key)
        ))),
        None => Ok(()),
    }
}

/// Takes over the lock that the token holds, in whichever mode.
async fn adopt(asked: &Asked<'_>, options: &Run, token: &str) -> Result<Hold, Failure> {
    let mut adopted = Err(Error::Closed);
    for mode in [Mode::Write, Mode::Read] {
        let request = asked.locks.request(options.keys.clone(), mode).token(token).ttl(options.ttl);
        let request = request.metadata(""); // what `slock acquire --meta` said stays
        adopted = with_bounds(request, options).adopt().await;
        if !matches!(adopted, Err(Error::NotHeld { .. })) {
            break;
        }
    }
    adopted.map_err(|error| match error {
        Error::NotHeld { .. } => {
            let line = format!("this token does not hold {}", asked.shown_keys());
            asked.with_code(Failure::new(NOT_OBTAINED, line))
        }
        error => Failure::of(&error, &asked.place.shown),
    })
}

/// Runs the command under this hold.
async fn under(hold: Hold, asked: &Asked<'_>, options: &Run, signals: &mut Signals) -> Result<u8, Failure> {
    let mut held: Vec<String> = std::env::var(HELD).into_iter().collect();
    held.extend(options.keys.iter().map(|key| asked.place.line(key)));
    let mut environment = vec![
        (HELD, Some(held.join("\n"))),
        ("SLOCK_KEY", Some(options.keys.join("\n"))),
        ("SLOCK_TOKEN", Some(hold.token().to_owned())),
        ("SLOCK_FENCE", Some(hold.fence().to_string())),
        ("SLOCK_PREFIX", Some(asked.place.prefix().to_owned()).filter(|prefix| !prefix.is_empty())),
    ];
    environment.extend(SECRETS.map(|name| (name, None)));
    let lease = Lease::new(hold, options);
    let started = async {
        signals.listen_to_all()?;
        Child::start(&options.command, environment, !options.detach).await
    };
    let child = match started.await {
        Ok(child) => child,
        Err(error) => {
            let _ = lease.hold.release().await;
            let code = if error.kind() == io::ErrorKind::NotFound { NO_PROGRAM } else { NO_EXECUTABLE };
            let program = table::clean(&options.command[0].to_string_lossy());
            let why = if code == NO_PROGRAM { "no such program".to_owned() } else { error.to_string() };
            return Err(Failure::new(code, format!("{program}: {why}")));
        }
    };
    guard(&lease, child, asked, options, signals).await
}

async fn guard(
    lease: &Lease,
    mut child: Child,
    asked: &Asked<'_>,
    options: &Run,
    signals: &mut Signals,
) -> Result<u8, Failure> {
    let mut looks = std::pin::pin!(lease.look(options.ttl));
    let lost = loop {
        tokio::select! {
            biased;
            event = child.event() => match event {
                Event::Ended => break None,
                // slock may have stood still with it for long: nothing goes on without its lock.
                Event::Stopped { by } => {
                    if child.stop_with_it(by) && lease.time_left().is_ok() {
                        child.go_on();
                    }
                }
            },
            why = lease.until_it_ends() => break Some(why),
            signal = signals.next() => match signal {
                libc::SIGCONT => child.go_on(),
                libc::SIGTSTP => child.stop(),
                libc::SIGUSR1 | libc::SIGUSR2 => child.signal(signal),
                ending => child.end_by(ending),
            },
            never = &mut looks => match never {},
        }
    };
    let Some(why) = lost else { return finish(lease, &child, asked, options).await };
    table::say(&format!("{why}; the command gets SIGTERM"));
    child.end_by(libc::SIGTERM);
    // While the lock is still held, SIGKILL comes before it ends.
    let patience = match lease.hold.check() {
        Ok(()) => options.kill_after.min(lease.hold.remaining() * 9 / 10),
        Err(_) => options.kill_after,
    };
    if timeout(patience, child.all_ended()).await.is_err() {
        table::say(&format!("it did not end within {}: SIGKILL", table::duration(patience)));
        child.signal(libc::SIGKILL);
        let _ = timeout(BETWEEN_LOOKS, child.all_ended()).await;
    }
    let _ = timeout(BETWEEN_LOOKS, lease.hold.release()).await;
    Ok(LOST)
}

/// The command has ended by itself.
async fn finish(lease: &Lease, child: &Child, asked: &Asked<'_>, options: &Run) -> Result<u8, Failure> {
    let ended =
        child.ended().map_err(|error| Failure::new(LOST, format!("the command's status: {error}")))?;
    let key = asked.shown_keys();
    let code = ended.code();
    let stays = options.at_least.saturating_sub(lease.began.elapsed());
    let released = lease.hold.release().await;
    ended.tell_group();
    match released {
        Ok(()) if stays.is_zero() => {
            asked.tell(&format!("the command ended with status {code}; {key} is released"));
        }
        Ok(()) => {
            let stays = table::duration(stays);
            asked.tell(&format!("the command ended with status {code}; {key} stays held for {stays} more"));
        }
        Err(Error::Lost { .. }) => {
            return Err(Failure::new(LOST, format!("{key} was lost before the command ended")));
        }
        Err(error) => {
            table::say(&format!("{key} was not released, and ends by its ttl: {}", in_full(&error)));
        }
    }
    Ok(code)
}

/// With its cause, which the library does not repeat in the text.
fn in_full(error: &Error) -> String {
    match error.source() {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

/// The hold, and when its command has to be told that it ends.
struct Lease {
    hold: Hold,
    began: Instant,
    max_hold: Option<Duration>,
    /// The command gets SIGTERM when this much is left, so before anybody else can have the lock.
    margin: Duration,
}

impl Lease {
    fn new(hold: Hold, options: &Run) -> Self {
        let whole = options.max_hold.unwrap_or(options.ttl).min(options.ttl);
        // At least a tenth, so that it gets SIGTERM in time; at most half, so that an outage may be as long.
        let margin = options.kill_after.clamp(whole / 10, whole / 2);
        Self { hold, began: Instant::now(), max_hold: options.max_hold, margin }
    }

    /// Asks the server again and again whether it has the lock, which renews it: so a lock that was taken away is noticed
    /// at once.
    async fn look(&self, ttl: Duration) -> Infallible {
        loop {
            sleep(BETWEEN_LOOKS).await;
            // What is wrong with the hold the hold says; an error that passes is for its next renewal.
            let _ = self.hold.extend(ttl).await;
        }
    }

    /// Comes back when so little is left that the command has to end, or nothing, and says why.
    async fn until_it_ends(&self) -> String {
        loop {
            match self.time_left() {
                Err(why) => return why,
                Ok(rest) => tokio::select! {
                    _ = self.hold.lost() => {}
                    () = sleep(rest.min(BETWEEN_LOOKS)) => {}
                },
            }
        }
    }

    /// How long until only the margin is left; or why the command has to end.
    fn time_left(&self) -> Result<Duration, String> {
        self.hold.check().map_err(|error| in_full(&error))?;
        let left = self.hold.remaining();
        match left.checked_sub(self.margin) {
            Some(rest) if !rest.is_zero() => Ok(rest),
            _ => {
                let key = table::clean(&self.hold.keys().join(", "));
                // The grant was a little before `began`.
                let most = self.began.elapsed() + left + BETWEEN_LOOKS / 10;
                let left = table::duration(left);
                Err(match self.max_hold.is_some_and(|max_hold| max_hold < most) {
                    true => format!("--max-hold ends the lock {key} in {left}"),
                    false => format!("the lease of {key} ends in {left}, and no renewal succeeds"),
                })
            }
        }
    }
}
