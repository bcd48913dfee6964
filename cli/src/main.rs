//! The command line of SLOCK.

mod address;
mod args;
mod change;
mod child;
mod doctor;
mod failure;
mod list;
mod nodes;
mod run;
mod signals;
mod table;

use std::process::ExitCode;

use clap::Parser;

use crate::address::Place;
use crate::args::{Cli, Command};
use crate::failure::Failure;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match act(&Cli::parse()).await {
        Ok(code) => ExitCode::from(code),
        Err(Failure { line, code }) => {
            eprintln!("slock: {line}");
            ExitCode::from(code)
        }
    }
}

async fn act(cli: &Cli) -> Result<u8, Failure> {
    let place = Place::of(&cli.at)?;
    match &cli.command {
        Command::Run(options) => run::run(&place, options).await,
        Command::Ls { pattern, most, output } => {
            list::ls(&place, pattern.as_deref(), most.count, output.json).await
        }
        Command::Info { key, output } => list::info(&place, key, output.json).await,
        Command::Queues { output } => list::queues(&place, output.json).await,
        Command::Old { held_for, output } => list::old(&place, *held_for, output.json).await,
        Command::Release { key, token, output } => change::release(&place, key, token, output.json).await,
        Command::Break { key, yes, output } => change::take_away(&place, key, *yes, output.json).await,
        Command::Check { key, fence, output } => change::check(&place, key, *fence, output.json).await,
        Command::Wait { key, wait } => change::wait(&place, key, *wait).await,
        Command::Doctor { user, key, output } => {
            doctor::doctor(&place, user.as_deref(), key, output.json).await
        }
        _ => todo!(),
    }
}
