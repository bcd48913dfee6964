//! `slock run`: takes the lock, runs the command, and sees to it that the command ends with its lease.

use std::convert::Infallible;
use std::error::Error as _;
use std::io::{self, IsTerminal};
use std::path::Path;
use std::time::Duration;

use slock_client::{Error, Hold, Locks, Mode, Request};
use tokio::time::{sleep, timeout};

use crate::address::Place;
use crate::args::Run;
use crate::child::{Child, Event};
use crate::failure::{Failure, LOST, NOT_OBTAINED};
use crate::signals::Signals;
use crate::table;

/// The clock may have been stopped with the machine: the lease is looked at as often as this.
const BETWEEN_LOOKS: Duration = Duration::from_secs(1);
/// What could not be released until then ends by its ttl.
const CLOSE_WITHIN: Duration = Duration::from_secs(4);
/// A wait of this length is told to whoever looks on.
const TELL_AFTER: Duration = Duration::from_secs(1);
const NO_EXECUTABLE: u8 = 126;
const NO_PROGRAM: u8 = 127;

pub async fn run(place: &Place, options: &Run) -> Result<u8, Failure> {
    let mut signals = Signals::ending().map_err(|error| Failure::usage(error.to_string()))?;
    let locks = Locks::new(place.server()?);
    let asks_once = options.no_wait || options.wait == Some(Duration::ZERO);
    let request = request(&locks, options);
    let asked =
        async { if asks_once { request.try_acquire().await } else { request.acquire().await.map(Some) } };
    let code = tokio::select! {
        biased;
        // What was asked is withdrawn, and what was granted is released, before `close` comes back.
        signal = signals.next() => Ok(ended_by(signal)),
        hold = asked => match hold {
            Ok(Some(hold)) => under(hold, options, &mut signals).await,
            Ok(None) | Err(Error::TimedOut { .. }) => Err(not_obtained(&locks, options).await),
            Err(error) => Err(Failure::of(&error, &place.shown)),
        },
        never = tell_of_the_wait(&locks, options, asks_once) => match never {},
    };
    let _ = timeout(CLOSE_WITHIN, locks.close()).await;
    code
}

fn ended_by(signal: i32) -> u8 {
    u8::try_from(128 + signal).unwrap_or(u8::MAX)
}

fn request(locks: &Locks, options: &Run) -> Request {
    let mode = if options.read || options.limit.is_some() { Mode::Read } else { Mode::Write };
    let request = locks.request(options.keys.clone(), mode).ttl(options.ttl);
    let request = request.metadata(options.meta.clone().unwrap_or_else(|| who_we_are(options)));
    let request = match options.limit {
        Some(limit) => request.limit(limit),
        None => request,
    };
    match options.wait {
        Some(wait) => request.wait(wait),
        None => request,
    }
}

/// Without the arguments: they may hold secrets.
fn who_we_are(options: &Run) -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let program =
        Path::new(&options.command[0]).file_name().unwrap_or_default().to_string_lossy().into_owned();
    let text = format!("{host} {} {program}", std::process::id());
    text.chars().take(200).collect()
}

/// Says once who is waited for, to a person at a terminal. It must not end before the wait.
async fn tell_of_the_wait(locks: &Locks, options: &Run, asks_once: bool) -> Infallible {
    if !asks_once && io::stderr().is_terminal() {
        sleep(TELL_AFTER).await;
        let who = who_has(locks, &options.keys).await;
        let keys = table::clean(&options.keys.join(", "));
        table::say(&match who.as_slice() {
            [(_, Some(state))] if options.keys.len() == 1 => format!("waiting for {keys}, {state}"),
            [] | [_] if options.keys.len() == 1 => format!("waiting for {keys}"),
            several => format!("waiting for {keys}: {}", in_words(several)),
        });
    }
    std::future::pending().await
}

async fn not_obtained(locks: &Locks, options: &Run) -> Failure {
    let how = match options.wait {
        Some(wait) if !wait.is_zero() => format!(" within {}", table::duration(wait)),
        _ => String::new(),
    };
    let who = who_has(locks, &options.keys).await;
    let why = if who.is_empty() { "it is free by now".to_owned() } else { in_words(&who) };
    Failure::new(NOT_OBTAINED, format!("not obtained{how}: {why}"))
}

fn in_words(who: &[(String, Option<String>)]) -> String {
    let text = |(key, state): &(String, Option<String>)| match state {
        Some(state) => format!("{key} is {state}"),
        None => format!("who has {key} may not be seen"),
    };
    who.iter().map(text).collect::<Vec<_>>().join("; ")
}

/// The keys that are not free, and who has them, as far as that may be seen.
async fn who_has(locks: &Locks, keys: &[String]) -> Vec<(String, Option<String>)> {
    let mut who = Vec::new();
    for key in keys {
        let info = match locks.info(key).await {
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

/// Runs the command under this hold.
async fn under(hold: Hold, options: &Run, signals: &mut Signals) -> Result<u8, Failure> {
    let environment = vec![
        ("SLOCK_KEY", options.keys.join("\n")),
        ("SLOCK_TOKEN", hold.token().to_owned()),
        ("SLOCK_FENCE", hold.fence().to_string()),
    ];
    let started = async {
        signals.listen_to_all()?;
        Child::start(&options.command, environment, !options.detach).await
    };
    let child = match started.await {
        Ok(child) => child,
        Err(error) => {
            let _ = hold.release().await;
            let code = if error.kind() == io::ErrorKind::NotFound { NO_PROGRAM } else { NO_EXECUTABLE };
            let program = table::clean(&options.command[0].to_string_lossy());
            let why = if code == NO_PROGRAM { "no such program".to_owned() } else { error.to_string() };
            return Err(Failure::new(code, format!("{program}: {why}")));
        }
    };
    guard(hold, child, options, signals).await
}

async fn guard(hold: Hold, mut child: Child, options: &Run, signals: &mut Signals) -> Result<u8, Failure> {
    // The command is asked to end when this much of the ttl is left, so before anybody else can have the lock.
    let margin = options.ttl / 10;
    let lost = loop {
        tokio::select! {
            biased;
            event = child.event() => match event {
                Event::Ended => break None,
                // slock may have stood still with it for long: nothing goes on without its lock.
                Event::Stopped { by } => {
                    if child.stop_with_it(by) && ends_within(&hold, margin).is_ok() {
                        child.go_on();
                    }
                }
            },
            why = until_it_ends(&hold, margin) => break Some(why),
            signal = signals.next() => match signal {
                libc::SIGCONT => child.go_on(),
                libc::SIGUSR1 | libc::SIGUSR2 => child.signal(signal),
                ending => child.end_by(ending),
            },
        }
    };
    let Some(why) = lost else { return finish(hold, &child).await };
    table::say(&format!("{why}; the command gets SIGTERM"));
    child.end_by(libc::SIGTERM);
    if timeout(options.kill_after, child.all_ended()).await.is_err() {
        table::say(&format!("it did not end within {}: SIGKILL", table::duration(options.kill_after)));
        child.signal(libc::SIGKILL);
        let _ = timeout(BETWEEN_LOOKS, child.all_ended()).await;
    }
    let _ = timeout(BETWEEN_LOOKS, hold.release()).await;
    Ok(LOST)
}

/// The command has ended by itself.
async fn finish(hold: Hold, child: &Child) -> Result<u8, Failure> {
    let ended =
        child.ended().map_err(|error| Failure::new(LOST, format!("the command's status: {error}")))?;
    let key = table::clean(&hold.keys().join(", "));
    let released = hold.release().await;
    ended.tell_group();
    match released {
        Ok(()) => {}
        Err(Error::Lost { .. }) => {
            return Err(Failure::new(LOST, format!("{key} was lost before the command ended")));
        }
        Err(error) => table::say(&format!("{key} was not released, and ends by its ttl: {error}")),
    }
    Ok(ended.code())
}

/// Comes back when so little is left that the command has to end, or nothing, and says why.
async fn until_it_ends(hold: &Hold, margin: Duration) -> String {
    loop {
        match ends_within(hold, margin) {
            Err(why) => return why,
            Ok(rest) => tokio::select! {
                _ = hold.lost() => {}
                () = sleep(rest.min(BETWEEN_LOOKS)) => {}
            },
        }
    }
}

/// How long until only the margin is left; or why the command has to end.
fn ends_within(hold: &Hold, margin: Duration) -> Result<Duration, String> {
    hold.check().map_err(|error| match error {
        error @ Error::Lost { .. } => match error.source() {
            Some(cause) => format!("{error}: {cause}"),
            None => error.to_string(),
        },
        error => error.to_string(),
    })?;
    let left = hold.remaining();
    match left.checked_sub(margin) {
        Some(rest) if !rest.is_zero() => Ok(rest),
        _ => Err(format!(
            "the lease of {} ends in {}, and no renewal is answered",
            table::clean(&hold.keys().join(", ")),
            table::duration(left)
        )),
    }
}
