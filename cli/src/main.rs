//! The command line of SLOCK.

mod address;
mod args;
mod child;
mod failure;
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
        _ => todo!(),
    }
}
