// SPDX-License-Identifier: MIT OR Apache-2.0

//! Clients that hand locks on and wait by NOTIFY, all over one connection, which also hears the messages.
//!
//! The first command is to ask, the second to release. A message ends with the number of who is granted.
//! Who has released asks again together with the next release of the same lock.

use std::collections::VecDeque;
use std::io::{Error, Result};
use std::time::Instant;

use crate::connection::{Connection, Reply};
use crate::figures::Figures;
use crate::ways::Ways;
use crate::words::{Command, commands};

pub const CHANNEL: &str = "bench";
const AT_ONCE: u64 = 1000;

pub struct Notify {
    connection: Connection,
    ask: Command,
    release: Command,
    locks: u64,
    /// Who holds a lock and has not been told to release it, the longest first.
    holders: VecDeque<u64>,
    /// By lock: who released it last and has not asked again.
    released: Vec<Option<u64>>,
    at_once: u64,
}

impl Notify {
    pub fn new(port: u16, ways: &Ways) -> Result<Self> {
        let [ask, release] = commands(&ways.commands).try_into().ok().expect("two commands: ask / release");
        let mut connection = Connection::open(port)?;
        let mut bytes = Vec::new();
        for command in commands(&format!("HELLO 3 / SSUBSCRIBE {CHANNEL}")) {
            command.encode(0, 0, &mut bytes);
        }
        connection.send(&bytes)?;
        connection.done()?;
        connection.read()?;
        let locks = ways.locks;
        for first in (0..ways.contenders).step_by(AT_ONCE as usize) {
            let numbers = first..(first + AT_ONCE).min(ways.contenders);
            bytes.clear();
            numbers.clone().for_each(|number| ask.encode(number % locks, number, &mut bytes));
            connection.send(&bytes)?;
            for number in numbers {
                if (connection.read()? == Reply::Done) != (number < locks) {
                    return Err(Error::other(format!("{number} was granted too early, or not at once")));
                }
            }
        }
        let (holders, released) = ((0..locks).collect(), vec![None; locks as usize]);
        Ok(Self { connection, ask, release, locks, holders, released, at_once: ways.at_once.min(locks) })
    }

    /// Plays so many hand-offs, at so many locks at once as was asked for; the locks take turns.
    pub fn play(&mut self, count: u64) -> Result<Figures> {
        let mut figures = Figures::begin(count);
        // When each release was sent whose message has not come; all locks are alike, and served in this order.
        let mut under_way = VecDeque::new();
        let mut to_send = count;
        let mut bytes = Vec::new();
        while to_send > 0 || !under_way.is_empty() {
            while to_send > 0 && (under_way.len() as u64) < self.at_once {
                let holder = self.holders.pop_front().expect("as many holders as locks");
                let lock = holder % self.locks;
                if let Some(before) = self.released[lock as usize].replace(holder) {
                    self.ask.encode(lock, before, &mut bytes);
                }
                self.release.encode(lock, holder, &mut bytes);
                under_way.push_back(Instant::now());
                to_send -= 1;
            }
            self.connection.send(&bytes)?;
            bytes.clear();
            loop {
                if let Reply::Message(message) = self.connection.read()? {
                    self.holders.push_back(number_of(message)?);
                    figures.step(under_way.pop_front().expect("a message for each release"));
                    if !self.connection.has_more() {
                        break;
                    }
                }
            }
        }
        Ok(figures)
    }
}

/// The number with which a message ends.
fn number_of(message: &[u8]) -> Result<u64> {
    let text = String::from_utf8_lossy(message);
    let digits = text.trim_end().rsplit(|c: char| !c.is_ascii_digit()).next().unwrap_or_default();
    digits.parse().map_err(|_| Error::other(format!("a message without a number: {text:?}")))
}
