// SPDX-License-Identifier: MIT OR Apache-2.0

//! The command that `slock run` starts: its process group, the terminal, signals, and how it ends. It knows
//! nothing of locks.
//!
//! The command gets a process group of its own, so that all of it can be ended together, and nothing else: the
//! group of slock may hold a pipeline or the script that called it. A group of its own would be in the
//! background of the terminal, where reading stops it. So where slock is in the foreground, it gives the
//! terminal to the command as a shell does, and takes it back when the command stops (Ctrl-Z) or ends. Then
//! Ctrl-C and Ctrl-Z reach the command alone: slock passes them on to its own group.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus};
use std::time::Duration;

use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitOptions, getpgrp, getpid, kill_current_process_group,
    kill_process, kill_process_group, test_kill_process_group, waitid, waitpid,
};
use tokio::sync::{mpsc, oneshot};

const BETWEEN_LOOKS: Duration = Duration::from_millis(20);

/// What happened to the command.
pub enum Event {
    Stopped { by: i32 },
    Ended,
}

pub struct Child {
    /// The process, and its group, which has the same number.
    group: Pid,
    events: mpsc::UnboundedReceiver<Event>,
    terminal: Option<Terminal>,
    /// slock got SIGTSTP and has passed it on.
    is_told_to_stop: bool,
}

/// How the command ended.
pub struct Ended {
    status: ExitStatus,
    /// The terminal was its own, so that nobody else saw the Ctrl-C that ended it.
    had_terminal: bool,
}

impl Child {
    /// Starts the command, on a thread that waits for it. (Linux ends the child with the thread that started
    /// it, so that thread must live as long.) Variables without a value are taken out of its environment.
    pub async fn start(
        command: &[OsString],
        environment: Vec<(&'static str, Option<String>)>,
        ends_with_slock: bool,
    ) -> io::Result<Self> {
        let terminal = File::open("/dev/tty").ok().map(Terminal);
        let in_foreground = terminal.as_ref().filter(|terminal| terminal.is_of(getpgrp()));
        let given = in_foreground.map(Terminal::fd);
        let mut program = Command::new(&command[0]);
        program.args(&command[1..]).process_group(0);
        for (name, value) in environment {
            match value {
                Some(value) => program.env(name, value),
                None => program.env_remove(name),
            };
        }
        let slock = std::process::id();
        // SAFETY: a plain system call. Where its parent ignored the end of children, nobody could tell how one ended.
        unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
        // SAFETY: between fork and exec it only makes system calls that are safe for signal handlers.
        unsafe {
            program.pre_exec(move || {
                if ends_with_slock {
                    end_with_parent(slock)?;
                }
                if let Some(terminal) = given {
                    set_foreground(terminal, libc::getpid());
                }
                Ok(())
            });
        }
        let (tell_start, started) = oneshot::channel();
        let (tell, events) = mpsc::unbounded_channel();
        std::thread::spawn(move || {
            let spawned = program.spawn().map(|child| Pid::from_child(&child));
            let group = spawned.as_ref().ok().copied();
            let _ = tell_start.send(spawned);
            if let Some(group) = group {
                watch(group, &tell);
            }
        });
        let started = started.await.map_err(io::Error::other)?;
        if let (Err(_), Some(terminal), true) = (&started, &terminal, given.is_some()) {
            terminal.give_to(getpgrp());
        }
        Ok(Self { group: started?, events, terminal, is_told_to_stop: false })
    }

    /// What happens next to the command.
    pub async fn event(&mut self) -> Event {
        self.events.recv().await.unwrap_or(Event::Ended)
    }

    /// To all of the command.
    pub fn signal(&self, signal: i32) {
        if let Some(signal) = Signal::from_named_raw(signal) {
            let _ = kill_process_group(self.group, signal);
        }
    }

    /// slock got SIGTSTP: it stops after the command, because a lock is renewed as long as the command runs.
    pub fn stop(&mut self) {
        self.is_told_to_stop = true;
        self.signal(libc::SIGTSTP);
    }

    /// A signal that is to end it, also when it is stopped.
    pub fn end_by(&self, signal: i32) {
        self.signal(signal);
        self.signal(libc::SIGCONT);
    }

    /// The command has stopped. If slock was told to stop, it stops now, alone: the others of its group were told, too.
    /// Where job control stopped the command (Ctrl-Z, or a background job that wants the terminal), slock stops with
    /// all of its group, so that the shell sees the job stopped. Any other stop is the command's own affair. Gives
    /// whether to go on at once: slock goes on, or there is no shell that could have stopped it.
    pub fn stop_with_it(&mut self, by: i32) -> bool {
        let is_told = std::mem::take(&mut self.is_told_to_stop);
        let had_terminal = self.has_terminal(self.group);
        let is_by_terminal = [libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU].contains(&by);
        if !(is_told || had_terminal || self.terminal.is_some() && is_by_terminal) {
            return false;
        }
        if let Some(terminal) = self.terminal.as_ref().filter(|_| had_terminal) {
            terminal.give_to(getpgrp());
        }
        stop(is_told);
        is_told || self.has_terminal(getpgrp())
    }

    /// slock goes on (`fg`, `bg`), so the command does, with the terminal if slock has it.
    pub fn go_on(&mut self) {
        self.is_told_to_stop = false;
        if let Some(terminal) = self.terminal.as_ref().filter(|terminal| terminal.is_of(getpgrp())) {
            terminal.give_to(self.group);
        }
        self.signal(libc::SIGCONT);
    }

    fn has_terminal(&self, group: Pid) -> bool {
        self.terminal.as_ref().is_some_and(|terminal| terminal.is_of(group))
    }

    /// Takes the end of the command, after [`Event::Ended`]. Until then no other process has its number.
    pub fn ended(&self) -> io::Result<Ended> {
        let waited = waitpid(Some(self.group), WaitOptions::empty())?;
        let (_, status) = waited.ok_or(io::ErrorKind::NotFound)?;
        let had_terminal = self.has_terminal(self.group);
        if let Some(terminal) = self.terminal.as_ref().filter(|_| had_terminal) {
            terminal.give_to(getpgrp());
        }
        Ok(Ended { status: ExitStatus::from_raw(status.as_raw()), had_terminal })
    }

    /// Comes back when the command has ended, and what it started too, as far as that is in its group. May be
    /// called again.
    pub async fn all_ended(&mut self) {
        while !matches!(self.event().await, Event::Ended) {}
        let _ = self.ended();
        while test_kill_process_group(self.group).is_ok() {
            tokio::time::sleep(BETWEEN_LOOKS).await;
        }
    }
}

impl Ended {
    /// Its status, as a shell would tell it.
    pub fn code(&self) -> u8 {
        let code = self.status.code().or(self.status.signal().map(|signal| 128 + signal));
        code.and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX)
    }

    /// A key of the terminal ended the command: the rest of slock's group is to know, as if it had had the
    /// terminal.
    pub fn tell_group(&self) {
        let keys = [(libc::SIGINT, Signal::INT), (libc::SIGQUIT, Signal::QUIT)];
        for (number, signal) in keys {
            if self.had_terminal && self.status.signal() == Some(number) {
                let _ = kill_current_process_group(signal);
            }
        }
    }
}

/// Stops this process alone, or all of its group, as if it had no handler for SIGTSTP.
fn stop(is_alone: bool) {
    // SAFETY: plain data, for which zeros are valid: SIG_DFL without flags.
    let (default, mut before): (libc::sigaction, libc::sigaction) = unsafe { std::mem::zeroed() };
    // SAFETY: a plain system call.
    unsafe { libc::sigaction(libc::SIGTSTP, &raw const default, &raw mut before) };
    if is_alone {
        let _ = kill_process(getpid(), Signal::TSTP);
    } else {
        let _ = kill_current_process_group(Signal::TSTP);
    }
    // Another thread may get the signal, so that this one stops a moment later.
    std::thread::sleep(BETWEEN_LOOKS);
    // SAFETY: restores the handler that was there.
    unsafe { libc::sigaction(libc::SIGTSTP, &raw const before, std::ptr::null_mut()) };
}

/// The end is seen and not taken: as long as that is so, no other process gets the number.
fn watch(group: Pid, tell: &mpsc::UnboundedSender<Event>) {
    let seen = WaitIdOptions::EXITED | WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT;
    loop {
        let event = match waitid(WaitId::Pid(group), seen) {
            Ok(Some(status)) if status.stopped() => {
                let _ = waitid(WaitId::Pid(group), WaitIdOptions::STOPPED | WaitIdOptions::NOHANG);
                Event::Stopped { by: status.stopping_signal().unwrap_or(0) }
            }
            Err(rustix::io::Errno::INTR) | Ok(None) => continue,
            Ok(Some(_)) | Err(_) => Event::Ended,
        };
        let is_end = matches!(event, Event::Ended);
        if tell.send(event).is_err() || is_end {
            return;
        }
    }
}

/// The kernel kills the child when its parent ends. If that has happened already, it does not start at all.
#[cfg(target_os = "linux")]
fn end_with_parent(parent: u32) -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    let is_there = rustix::process::getppid().is_some_and(|pid| pid.as_raw_pid().cast_unsigned() == parent);
    if is_there { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::ESRCH)) }
}

#[cfg(not(target_os = "linux"))]
fn end_with_parent(_: u32) -> io::Result<()> {
    Ok(())
}

/// The terminal from which slock was started.
struct Terminal(File);

impl Terminal {
    fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    fn is_of(&self, group: Pid) -> bool {
        rustix::termios::tcgetpgrp(&self.0) == Ok(group)
    }

    fn give_to(&self, group: Pid) {
        set_foreground(self.fd(), group.as_raw_pid());
    }
}

/// Safe for signal handlers. Whoever is in the background would be stopped by the attempt, unless it ignores
/// SIGTTOU.
fn set_foreground(terminal: RawFd, group: libc::pid_t) {
    // SAFETY: system calls on plain numbers; a bad one is refused. The disposition is as before afterwards.
    unsafe {
        let before = libc::signal(libc::SIGTTOU, libc::SIG_IGN);
        libc::tcsetpgrp(terminal, group);
        libc::signal(libc::SIGTTOU, before);
    }
}
