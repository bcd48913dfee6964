// SPDX-License-Identifier: MIT OR Apache-2.0

//! Signals that reach slock: passed on to the command, or the end of a wait.

use std::io;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

/// Ends a wait, and is passed on to a command.
const ENDING: [i32; 4] = [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM];
/// Passed on to a command only.
const OTHERS: [i32; 4] = [libc::SIGUSR1, libc::SIGUSR2, libc::SIGTSTP, libc::SIGCONT];

pub struct Signals {
    tell: mpsc::UnboundedSender<i32>,
    arrived: mpsc::UnboundedReceiver<i32>,
}

impl Signals {
    /// Those that end a program. What whoever started slock ignores (`nohup`) stays ignored, here and in the
    /// command.
    pub fn ending() -> io::Result<Self> {
        let (tell, arrived) = mpsc::unbounded_channel();
        let signals = Self { tell, arrived };
        signals.listen(&ENDING)?;
        Ok(signals)
    }

    /// Also those that mean something to a command only.
    pub fn listen_to_all(&self) -> io::Result<()> {
        self.listen(&OTHERS)
    }

    fn listen(&self, numbers: &[i32]) -> io::Result<()> {
        for &number in numbers.iter().filter(|&&number| !is_ignored(number)) {
            let mut stream = signal(SignalKind::from_raw(number))?;
            let tell = self.tell.clone();
            tokio::spawn(async move { while stream.recv().await.is_some() && tell.send(number).is_ok() {} });
        }
        Ok(())
    }

    /// The next one.
    pub async fn next(&mut self) -> i32 {
        match self.arrived.recv().await {
            Some(number) => number,
            None => std::future::pending().await,
        }
    }
}

fn is_ignored(number: i32) -> bool {
    // SAFETY: only asks; the structure is plain data, for which zeros are valid.
    unsafe {
        let mut now: libc::sigaction = std::mem::zeroed();
        libc::sigaction(number, std::ptr::null(), &raw mut now) == 0 && now.sa_sigaction == libc::SIG_IGN
    }
}
