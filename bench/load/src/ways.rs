// SPDX-License-Identifier: MIT OR Apache-2.0

//! What the command line says: what is played, and how.

use clap::{Parser, ValueEnum};

#[derive(Parser)]
#[command(
    about = "Plays commands on a server: a number on a line of the input, figures on a line of the output"
)]
pub struct Ways {
    /// The server's port on this machine
    pub port: u16,
    pub way: Way,
    /// Words between blanks, commands between lone slashes; {key}, {token}, {number}, {random}, {ttl} are filled in
    pub commands: String,
    /// pairs: connections, each with a pipeline
    #[arg(long, default_value_t = 1)]
    pub connections: u64,
    /// pairs: numbers in a pipeline
    #[arg(long, default_value_t = 16)]
    pub pipeline: u64,
    /// pairs: how many numbers later the commands after the first are sent
    #[arg(long, default_value_t = 0)]
    pub held: u64,
    /// pairs: the first number
    #[arg(long, default_value_t = 0)]
    pub from: u64,
    /// ring, notify: holders and all who wait
    #[arg(long, default_value_t = 64)]
    pub contenders: u64,
    /// ring, notify: how many locks are handed on
    #[arg(long, default_value_t = 1)]
    pub locks: u64,
    /// notify: at how many locks at once
    #[arg(long, default_value_t = 1)]
    pub at_once: u64,
}

#[derive(Clone, Copy, ValueEnum)]
pub enum Way {
    /// Commands on keys of their own
    Pairs,
    /// Blocked clients that hand something on
    Ring,
    /// Requests that wait by NOTIFY and hand locks on
    Notify,
}
