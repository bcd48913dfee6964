// SPDX-License-Identifier: MIT OR Apache-2.0

//! Clients that hand something on, each with a connection: one has it and all others wait for it, blocked.
//!
//! The first command is to wait, the second to pass it on; who has passed it on waits again. `{key}` is what is
//! handed on, `{token}` who. The server serves those who wait in their order, so it is known who is next.

use std::io::Result;
use std::time::Instant;

use crate::connection::Connection;
use crate::figures::Figures;
use crate::ways::Ways;
use crate::words::{Command, commands};

const PING: &[u8] = b"*1\r\n$4\r\nPING\r\n";

pub struct Ring {
    /// By what is handed on: those who take part, the holder first, and who has it now.
    circles: Vec<(Vec<Connection>, usize)>,
    wait: Command,
    pass: Command,
}

impl Ring {
    pub fn new(port: u16, ways: &Ways) -> Result<Self> {
        let [wait, pass] = commands(&ways.commands).try_into().ok().expect("two commands: wait / pass");
        let mut control = Connection::open(port)?;
        let mut circles = Vec::new();
        for key in 0..ways.locks {
            // A list needs something to hand on; a lock that nobody holds is not passed on.
            let mut bytes = Vec::new();
            pass.encode(key, 0, &mut bytes);
            control.send(&bytes)?;
            control.read()?;
            let mut circle = Vec::new();
            for number in 0..ways.contenders / ways.locks {
                let mut connection = Connection::open(port)?;
                // Both are read at once: when PING is answered, this one stands in the queue.
                let mut bytes = PING.to_vec();
                wait.encode(key, key + number * ways.locks, &mut bytes);
                connection.send(&bytes)?;
                connection.done()?;
                circle.push(connection);
            }
            circle[0].done()?;
            circles.push((circle, 0));
        }
        Ok(Self { circles, wait, pass })
    }

    /// Plays so many hand-offs, of everything that is handed on at once.
    pub fn play(&mut self, count: u64) -> Result<Figures> {
        let locks = self.circles.len() as u64;
        let mut figures = Figures::begin(count.next_multiple_of(locks));
        let mut bytes = Vec::new();
        for _ in 0..count.div_ceil(locks) {
            let since = Instant::now();
            for (key, (circle, holder)) in (0..).zip(&mut self.circles) {
                bytes.clear();
                self.pass.encode(key, key + *holder as u64 * locks, &mut bytes);
                circle[*holder].send(&bytes)?;
            }
            for (key, (circle, holder)) in (0..).zip(&mut self.circles) {
                let before = *holder;
                *holder = (before + 1) % circle.len();
                circle[*holder].done()?;
                figures.step(since);
                circle[before].done()?;
                bytes.clear();
                self.wait.encode(key, key + before as u64 * locks, &mut bytes);
                circle[before].send(&bytes)?;
            }
        }
        Ok(figures)
    }
}
