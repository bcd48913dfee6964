// SPDX-License-Identifier: MIT OR Apache-2.0

//! Commands on keys of their own, in pipelines: take and release, or only take.

use std::io::{Error, Result};
use std::time::Instant;

use crate::connection::Connection;
use crate::figures::Figures;
use crate::ways::Ways;
use crate::words::{Command, commands};

/// The commands of a number follow each other; of several, those after the first come `held` numbers later.
pub struct Pairs {
    connections: Vec<Connection>,
    commands: Vec<Command>,
    pipeline: u64,
    held: u64,
    next: u64,
}

impl Pairs {
    pub fn new(port: u16, ways: &Ways) -> Result<Self> {
        if ways.held > 0 && ways.held < ways.pipeline * ways.connections {
            return Err(Error::other("fewer are held than are under way at once"));
        }
        let connections = (0..ways.connections).map(|_| Connection::open(port)).collect::<Result<_>>()?;
        let commands = commands(&ways.commands);
        Ok(Self { connections, commands, pipeline: ways.pipeline, held: ways.held, next: ways.from })
    }

    /// Plays so many numbers, each with all its commands.
    pub fn play(&mut self, count: u64) -> Result<Figures> {
        let (first, end) = (self.next, self.next + count);
        self.next = end;
        let mut figures = Figures::begin(count);
        let mut at = first;
        while at < end + self.held {
            let mut sent = Vec::new();
            for connection in &mut self.connections {
                let numbers = at..(at + self.pipeline).min(end + self.held);
                at = numbers.end;
                let (mut bytes, mut replies) = (Vec::new(), 0);
                for number in numbers {
                    if number < end {
                        self.commands[0].encode(number, number, &mut bytes);
                        replies += 1;
                    }
                    if number >= first + self.held {
                        let number = number - self.held;
                        self.commands[1..]
                            .iter()
                            .for_each(|command| command.encode(number, number, &mut bytes));
                        replies += self.commands.len() - 1;
                    }
                }
                sent.push((connection, bytes, replies, Instant::now()));
            }
            // All is sent before any reply is read: the server does not sleep in between.
            for (connection, bytes, _, since) in &mut sent {
                *since = Instant::now();
                connection.send(bytes)?;
            }
            for (connection, _, replies, since) in sent {
                (0..replies).try_for_each(|_| connection.done())?;
                figures.step(since);
            }
        }
        Ok(figures)
    }
}
