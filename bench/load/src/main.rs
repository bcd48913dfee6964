//! The load generator of the benchmarks. It connects, gets ready and says so; then it plays as many operations as
//! each line of its input names, and answers with a line of JSON. It knows nothing of locks: the commands are
//! given. Who starts the server and reads what that used is in `bench/load.py`.

mod connection;
mod notify;
mod pairs;
mod ring;
mod words;

use std::io::{Result, Write};
use std::time::{Duration, Instant};

use clap::{Parser, ValueEnum};

#[derive(Parser)]
#[command(
    about = "Plays commands on a server: a number on a line of the input, figures on a line of the output"
)]
struct Ways {
    /// The server's port on this machine
    port: u16,
    way: Way,
    /// Words between blanks, commands between lone slashes; {key}, {token}, {number}, {random}, {ttl} are filled in
    commands: String,
    /// pairs: connections, each with a pipeline
    #[arg(long, default_value_t = 1)]
    connections: u64,
    /// pairs: numbers in a pipeline
    #[arg(long, default_value_t = 16)]
    pipeline: u64,
    /// pairs: how many numbers later the commands after the first are sent
    #[arg(long, default_value_t = 0)]
    held: u64,
    /// pairs: the first number
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// ring, notify: holders and all who wait
    #[arg(long, default_value_t = 64)]
    contenders: u64,
    /// ring, notify: how many locks are handed on
    #[arg(long, default_value_t = 1)]
    locks: u64,
    /// notify: at how many locks at once
    #[arg(long, default_value_t = 1)]
    at_once: u64,
}

#[derive(Clone, Copy, ValueEnum)]
enum Way {
    /// Commands on keys of their own
    Pairs,
    /// Blocked clients that hand something on
    Ring,
    /// Requests that wait by NOTIFY and hand locks on
    Notify,
}

/// What a round took.
pub struct Figures {
    count: u64,
    start: Instant,
    steps: Vec<Duration>,
}

impl Figures {
    fn begin(count: u64) -> Self {
        Self { count, start: Instant::now(), steps: Vec::with_capacity(count as usize) }
    }

    /// A pipeline has been answered, or something has been handed on.
    fn step(&mut self, since: Instant) {
        self.steps.push(since.elapsed());
    }

    fn tell(mut self) -> String {
        let seconds = self.start.elapsed().as_secs_f64();
        self.steps.sort_unstable();
        let percentile = |percent: usize| {
            let at = (self.steps.len() * percent / 100).min(self.steps.len().saturating_sub(1));
            self.steps.get(at).map_or(0.0, |step| step.as_secs_f64() * 1e6)
        };
        let (count, p50, p99) = (self.count, percentile(50), percentile(99));
        format!(
            "{{\"count\": {count}, \"seconds\": {seconds:.6}, \"p50_us\": {p50:.1}, \"p99_us\": {p99:.1}}}"
        )
    }
}

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
