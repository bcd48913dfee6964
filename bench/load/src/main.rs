// SPDX-License-Identifier: MIT OR Apache-2.0

//! The load generator of the benchmarks. It connects, gets ready and says so; then it plays as many operations as
//! each line of its input names, and answers with a line of JSON. It knows nothing of locks: the commands are
//! given. Who starts the server and reads what that used is in `bench/load.py`.

mod connection;
mod figures;
mod notify;
mod pairs;
mod ring;
mod ways;
mod words;

use std::io::{Result, Write};

use clap::Parser;

use crate::figures::Figures;
use crate::ways::{Way, Ways};

fn main() -> Result<()> {
    let ways = Ways::parse();
    let mut play: Box<dyn FnMut(u64) -> Result<Figures>> = match ways.way {
        Way::Pairs => {
            let mut pairs = pairs::Pairs::new(ways.port, &ways)?;
            Box::new(move |count| pairs.play(count))
        }
        Way::Ring => {
            let mut ring = ring::Ring::new(ways.port, &ways)?;
            Box::new(move |count| ring.play(count))
        }
        Way::Notify => {
            let mut notify = notify::Notify::new(ways.port, &ways)?;
            Box::new(move |count| notify.play(count))
        }
    };
    let say = |line: &str| {
        let mut out = std::io::stdout().lock();
        writeln!(out, "{line}").and_then(|()| out.flush())
    };
    say("ready")?;
    for line in std::io::stdin().lines() {
        let count = line?.trim().parse().map_err(std::io::Error::other)?;
        say(&play(count)?.tell())?;
    }
    Ok(())
}
