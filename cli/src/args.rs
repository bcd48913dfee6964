// SPDX-License-Identifier: MIT OR Apache-2.0

//! The command line: commands, options and their help. It does nothing by itself.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;

use crate::failure::NOT_OBTAINED;
use crate::table;

/// Runs commands under a lock of the SLOCK module for Redis and Valkey, and shows who holds what.
#[derive(Parser)]
#[command(name = "slock", version, after_help = AFTER_HELP, disable_help_subcommand = true)]
pub struct Cli {
    #[command(flatten)]
    pub at: At,
    #[command(subcommand)]
    pub command: Command,
}

const AFTER_HELP: &str = "\
Forms of URL, each also with rediss for TLS:
  redis://[USER:PASSWORD@]HOST[:PORT][/DB]
  redis+sentinel://[USER:PASSWORD@]HOST[:PORT],…/PRIMARY[/DB][?sentinel-user=…&sentinel-password=…]
  redis+cluster://[USER:PASSWORD@]HOST[:PORT],…
  unix:///PATH[?db=DB&user=USER&pass=PASSWORD]

Durations: 500ms, 30s, 10m, 2h, 1d, 1m30s; a number alone is seconds.

Exit codes: 0 done; 1 no (not held, faults found); 2 wrong usage; 69 the server cannot be used;
75 not obtained; 76 the lock was lost while the command ran; 126 not executable; 127 no such
program; 128+N ended by signal N (130 by Ctrl-C); doctor: 3 no faults, but not all was checked.";

const RUN_HELP: &str = "\
The environment of the command has SLOCK_KEY (several keys: one a line), SLOCK_TOKEN and SLOCK_FENCE: a
number that grows with each hold. Send it with every write, so that storage can refuse late writes.
SLOCK_USER, SLOCK_PASSWORD and REDISCLI_AUTH are taken out of it.";

const ACQUIRE_HELP: &str = "\
Prints the owner token and the fencing token. Nothing renews the lock: it ends with its ttl, or by
`slock release`. `slock extend` lengthens it, and `slock run --token` takes it over. In a shell:
  lease=$(slock acquire --export KEY) || exit; eval \"$lease\"";

/// Commands of the server that a user needs, for the ACL.
const LS_HELP: &str = "Permissions: +scan +slock.info, and %R~ for the keys.";
const BREAK_HELP: &str = "\
Permissions: +slock.info +slock.munlock, and ~ for the keys; with --held-for or --holder +scan too, with
--holder +slock.pttl too.";

/// Where the locks are.
#[derive(Args)]
#[command(next_help_heading = "Connection")]
pub struct At {
    /// The server, the Sentinels or the cluster; `slock --help` has the forms
    #[arg(
        long,
        global = true,
        env = "SLOCK_URL",
        default_value = "redis://127.0.0.1:6379",
        hide_env_values = true
    )]
    pub url: String,
    /// The user of the server, if the URL names none
    #[arg(long, global = true, value_name = "NAME", env = "SLOCK_USER", hide_env_values = true)]
    pub user: Option<String>,
    /// File with the password; without it the URL's, SLOCK_PASSWORD or REDISCLI_AUTH
    #[arg(long, global = true, value_name = "FILE")]
    pub password_file: Option<PathBuf>,
    /// Text that is put before each key, and is not shown
    #[arg(long, global = true, value_name = "TEXT", env = "SLOCK_PREFIX", default_value = "")]
    pub prefix: String,
    /// With rediss: certificates of the authorities to trust, instead of those of the system (PEM)
    #[arg(long, global = true, value_name = "FILE", env = "SLOCK_TLS_CA")]
    pub tls_ca: Option<PathBuf>,
    /// With rediss: the certificate of this client (PEM)
    #[arg(long, global = true, value_name = "FILE", env = "SLOCK_TLS_CERT", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// With rediss: the private key of this client (PEM)
    #[arg(long, global = true, value_name = "FILE", env = "SLOCK_TLS_KEY", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
}

#[derive(Subcommand)]
pub enum Command {
    /// Run a command under a lock, renewed while it runs, and exit with its status
    #[command(override_usage = "slock run [OPTIONS] <KEY>... -- <COMMAND> [ARGS]...", after_help = RUN_HELP)]
    Run(Run),
    /// Take a lock for several steps of a job, and print its tokens
    #[command(after_help = ACQUIRE_HELP)]
    Acquire(Acquire),
    /// Let a lock live for a ttl from now; this never shortens it
    Extend {
        /// The lock; of several all are extended or none
        #[arg(required = true, value_name = "KEY")]
        keys: Vec<String>,
        /// The owner token
        #[arg(value_parser = NonEmptyStringValueParser::new())]
        token: String,
        /// How long the lock lives from now on, if nothing extends it again
        #[arg(long, value_name = "TIME", value_parser = table::parse_duration)]
        ttl: Duration,
        #[command(flatten)]
        output: Output,
    },
    /// Release a lock by its owner token
    Release {
        /// The lock, or several
        #[arg(required = true, value_name = "KEY")]
        keys: Vec<String>,
        /// The owner token
        #[arg(value_parser = NonEmptyStringValueParser::new())]
        token: String,
        #[command(flatten)]
        output: Output,
    },
    /// List the locks that are held
    #[command(after_help = LS_HELP)]
    Ls {
        /// Only names like this, as in SCAN: job:*
        pattern: Option<String>,
        #[command(flatten)]
        most: Most,
        #[command(flatten)]
        output: Output,
    },
    /// Show who holds a lock and who waits for it
    Info {
        key: String,
        #[command(flatten)]
        output: Output,
    },
    /// List the locks that are waited for, the longest wait first
    Queues {
        #[command(flatten)]
        output: Output,
    },
    /// List locks that are held too long, whether or not anybody waits
    #[command(after_help = LS_HELP)]
    Old {
        /// Minimum time held
        #[arg(long, value_name = "TIME", value_parser = table::parse_duration, default_value = "10m")]
        held_for: Duration,
        #[command(flatten)]
        output: Output,
    },
    /// Take locks away from those who hold them now, and list what it ended
    #[command(after_help = BREAK_HELP)]
    Break {
        /// The locks; with --holder or --held-for one pattern, as in SCAN: job:*
        #[arg(value_name = "KEY", required_unless_present_any = ["holder", "held_for"])]
        keys: Vec<String>,
        /// Only what this owner token holds, of all keys or of those like the pattern
        #[arg(long, value_name = "TOKEN", allow_hyphen_values = true)]
        holder: Option<String>,
        /// Only what is held for at least this long, of all keys or of those like the pattern
        #[arg(long, value_name = "TIME", value_parser = table::parse_duration)]
        held_for: Option<Duration>,
        /// Why, for the server's log: at most 256 bytes
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
        /// Do not ask
        #[arg(long)]
        yes: bool,
        #[command(flatten)]
        output: Output,
    },
    /// Tell whether a live holder of the key has this fence
    Check {
        key: String,
        fence: i64,
        #[command(flatten)]
        output: Output,
    },
    /// Wait until nobody holds the lock, without taking it
    Wait {
        key: String,
        /// Give up after this, with status 75
        #[arg(long, value_name = "TIME", value_parser = table::parse_duration)]
        wait: Option<Duration>,
    },
    /// Watch locks and queues live
    Top {
        /// Without colours, as with NO_COLOR in the environment
        #[arg(long)]
        no_color: bool,
    },
    /// Check servers for what costs people their locks, and say what to set
    Doctor {
        /// Check the permissions of this user, rather than of the one of the URL
        #[arg(long = "for", id = "for", value_name = "USER")]
        user: Option<String>,
        /// Check the permissions with this key
        #[arg(long, default_value = "slock-doctor")]
        key: String,
        #[command(flatten)]
        output: Output,
    },
    /// Print the completions of a shell
    Completions { shell: Shell },
    /// Print the man page, of slock or of one command
    Man { command: Option<String> },
}

impl Command {
    /// The locks that it is about.
    pub fn keys(&self) -> &[String] {
        match self {
            Self::Run(run) => &run.keys,
            Self::Acquire(acquire) => &acquire.keys,
            Self::Extend { keys, .. } | Self::Release { keys, .. } | Self::Break { keys, .. } => keys,
            Self::Info { key, .. } | Self::Check { key, .. } | Self::Wait { key, .. } => {
                std::slice::from_ref(key)
            }
            _ => &[],
        }
    }
}

/// Which lock is wanted, and how it is waited for.
#[derive(Args)]
pub struct Wanted {
    /// Share the lock with other readers
    #[arg(long)]
    pub read: bool,
    /// Share it with at most N-1 others: a semaphore
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: Option<u32>,
    /// Maximum wait; without it, wait until the lock is granted
    #[arg(long, value_name = "TIME", value_parser = table::parse_duration)]
    pub wait: Option<Duration>,
    /// Do not wait
    #[arg(long, conflicts_with = "wait")]
    pub no_wait: bool,
    /// Text that others see of the lock; without it, host, process and program
    #[arg(long, value_name = "TEXT")]
    pub meta: Option<String>,
    /// Exit code if the lock is not obtained; 0 also leaves out the line that says so
    #[arg(short = 'E', long, value_name = "CODE", default_value_t = NOT_OBTAINED)]
    pub conflict_exit_code: u8,
    /// Say on standard error when the lock is granted and released
    #[arg(long)]
    pub verbose: bool,
}

impl Wanted {
    /// Whether the request is sent once.
    pub fn asks_once(&self) -> bool {
        self.no_wait || self.wait == Some(Duration::ZERO)
    }
}

#[derive(Args)]
pub struct Run {
    #[command(flatten)]
    pub wanted: Wanted,
    /// How long the lock outlives a slock that was killed or cut off
    #[arg(long, value_name = "TIME", value_parser = table::parse_duration, default_value = "30s")]
    pub ttl: Duration,
    /// Take over the lock that `slock acquire` left to this owner token
    #[arg(
        long,
        value_name = "TOKEN",
        allow_hyphen_values = true,
        value_parser = NonEmptyStringValueParser::new(),
        conflicts_with_all = ["wait", "no_wait", "meta"]
    )]
    pub token: Option<String>,
    /// Minimum time held: if the command ends earlier, the lock stays until then
    #[arg(long, value_name = "TIME", value_parser = table::parse_duration, default_value = "0")]
    pub at_least: Duration,
    /// Maximum time held: the command gets SIGTERM before that
    #[arg(long, value_name = "TIME", value_parser = table::parse_some_duration)]
    pub max_hold: Option<Duration>,
    /// Time between SIGTERM and SIGKILL if the lock is lost or is about to end
    #[arg(long, value_name = "TIME", value_parser = table::parse_duration, default_value = "10s")]
    pub kill_after: Duration,
    /// Let the command live on when slock itself is killed
    #[arg(long)]
    pub detach: bool,
    /// The lock; several are taken all or none
    #[arg(required = true, value_name = "KEY")]
    pub keys: Vec<String>,
    /// The command and its arguments
    #[arg(required = true, last = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

#[derive(Args)]
pub struct Acquire {
    #[command(flatten)]
    pub wanted: Wanted,
    /// How long the lock lives, if nothing extends it
    #[arg(long, value_name = "TIME", value_parser = table::parse_duration, default_value = "10m")]
    pub ttl: Duration,
    /// Print SLOCK_TOKEN=… and SLOCK_FENCE=…, for eval and for the variable files of CI systems
    #[arg(long, conflicts_with = "json")]
    pub export: bool,
    #[command(flatten)]
    pub output: Output,
    /// The lock; several are taken all or none
    #[arg(required = true, value_name = "KEY")]
    pub keys: Vec<String>,
}

#[derive(Args)]
pub struct Output {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct Most {
    /// List at most this many; 0 lists all
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub count: usize,
}
