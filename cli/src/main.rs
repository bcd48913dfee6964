// SPDX-License-Identifier: MIT OR Apache-2.0

//! The command line of SLOCK.

mod acquire;
mod address;
mod args;
mod breaking;
mod change;
mod child;
mod doctor;
mod failure;
mod init;
mod list;
mod nodes;
mod request;
mod run;
mod sample;
mod signals;
mod table;
mod top;
mod url;

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};

use crate::address::Place;
use crate::args::{Cli, Command};
use crate::failure::Failure;

fn main() {
    init::split();
    slock();
}

#[tokio::main(flavor = "current_thread")]
async fn slock() {
    let cli = Cli::try_parse().unwrap_or_else(|error| refuse(&error));
    let code = act(&cli).await.unwrap_or_else(|failure| {
        let Failure { line, code } = failure.about(cli.command.keys());
        if !line.is_empty() {
            table::say(&line);
        }
        code
    });
    // A look-up of a name that still goes on must not keep the program.
    exit(i32::from(code), matches!(&cli.command, Command::Acquire(options) if options.export));
}

/// Ends the program at once.
fn exit(code: i32, is_export: bool) -> ! {
    if is_export && code != 0 && is_read_by_a_program() {
        // So that `eval` of it fails, too.
        table::put_text(&format!("(exit {code})"));
    }
    std::process::exit(code);
}

/// Not so for a terminal, and for a file of variables.
fn is_read_by_a_program() -> bool {
    let output = std::io::stdout().as_fd().try_clone_to_owned().map(File::from);
    output.and_then(|output| output.metadata()).is_ok_and(|output| output.file_type().is_fifo())
}

/// What clap says of a wrong command line, and what it does not know: `--` was forgotten.
fn refuse(error: &clap::Error) -> ! {
    let _ = error.print();
    let words: Vec<_> = std::env::args_os().skip(1).collect();
    let has = |word: &str| words.iter().any(|other| other == word);
    let is_incomplete =
        matches!(error.kind(), ErrorKind::MissingRequiredArgument | ErrorKind::UnknownArgument);
    if is_incomplete && has("run") && !has("--") {
        table::say("the command comes after `--`: slock run KEY -- COMMAND");
    }
    exit(error.exit_code(), has("--export"));
}

async fn act(cli: &Cli) -> Result<u8, Failure> {
    match &cli.command {
        Command::Completions { shell } => return Ok(print_completions(*shell)),
        Command::Man { command } => return print_man(command.as_deref()),
        _ => {}
    }
    let place = Place::of(&cli.at)?;
    match &cli.command {
        Command::Run(options) => run::run(&place, options).await,
        Command::Ls { pattern, most, output } => {
            list::ls(&place, pattern.as_deref(), most.count, output.json).await
        }
        Command::Info { key, output } => list::info(&place, key, output.json).await,
        Command::Queues { output } => list::queues(&place, output.json).await,
        Command::Old { held_for, output } => list::old(&place, *held_for, output.json).await,
        Command::Acquire(options) => acquire::acquire(&place, options).await,
        Command::Extend { keys, token, ttl, output } => {
            acquire::extend(&place, keys, token, *ttl, output.json).await
        }
        Command::Release { keys, token, output } => acquire::release(&place, keys, token, output.json).await,
        Command::Break { keys, holder, held_for, reason, yes, output } => {
            let which = breaking::Which { keys, holder: holder.as_deref(), held_for: *held_for };
            breaking::take_away(&place, &which, reason.as_deref(), *yes, output.json).await
        }
        Command::Check { key, fence, output } => change::check(&place, key, *fence, output.json).await,
        Command::Wait { key, wait } => change::wait(&place, key, *wait).await,
        Command::Doctor { user, key, output } => {
            doctor::doctor(&place, user.as_deref(), key, output.json).await
        }
        Command::Top { no_color } => top::top(place, *no_color).await,
        Command::Completions { .. } | Command::Man { .. } => Ok(0),
    }
}

fn print_completions(shell: clap_complete::Shell) -> u8 {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "slock", &mut script);
    table::put_text(String::from_utf8_lossy(&script).trim_end());
    0
}

/// Of slock, or of one of its commands.
fn print_man(of: Option<&str>) -> Result<u8, Failure> {
    let mut program = Cli::command();
    program.build();
    let page = match of {
        None => program,
        Some(name) => {
            let found = program.find_subcommand(name).cloned();
            found.ok_or_else(|| Failure::usage(format!("there is no command '{name}'")))?
        }
    };
    let mut text = Vec::new();
    clap_mangen::Man::new(page).render(&mut text).map_err(|error| Failure::usage(error.to_string()))?;
    table::put_text(String::from_utf8_lossy(&text).trim_end());
    Ok(0)
}
