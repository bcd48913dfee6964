//! The examples, and the page.

use std::process::Command;
use std::time::Duration;

use slock_client::{Hold, Locks, Mode};

use crate::server::Server;

/// The example, beside what it prints.
const EXAMPLES: [(&str, &str); 6] = [
    ("quick_start", "nobody else writes the report"),
    ("two_workers", "2000 of 2000 additions"),
    ("fenced_write", "the late write was refused"),
    ("block_with_timeout", "another has the lock"),
    ("leader_election", "steps down\ncandidate "),
    ("open_telemetry", "working under fencing token "),
];

#[tokio::test]
async fn examples() {
    let server = Server::start().await;
    for (name, says) in EXAMPLES {
        let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
        let mut run = Command::new(cargo);
        // As `cargo test` has built it: the package alone has other features, and what is run another profile.
        run.current_dir("../..").args(["run", "--quiet", "--profile", "test", "--example", name]);
        // Crates with C code are compiled again if these change, and all that depends on them.
        let of_package =
            |name: &String| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
        std::env::vars().map(|(name, _)| name).filter(of_package).for_each(|name| _ = run.env_remove(name));
        let output = run.env("REDIS_URL", server.url()).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && text.contains(says), "{name}: {text}{errors}");
    }
}

/// What the table of the page says.
#[expect(dead_code, unused_must_use)]
fn table(locks: Locks, hold: Hold, minute: Duration, wait: Duration, token: String) {
    locks.write("once").try_acquire();
    locks.read("job").acquire();
    hold.upgrade(wait);
    hold.downgrade();
    locks.read("downloads").limit(2);
    locks.write(&["from", "to"]);
    locks.write("nightly").at_least(minute).try_acquire();
    hold.detach();
    locks.adopt("upload", token, Mode::Write);
    locks.info("to");
    locks.queues();
}

/// Its blocks are compiled by `cargo test --doc`. The first program is an example, and prints what the page says.
#[test]
fn the_code_of_the_page() {
    let (page, program) = (include_str!("../../README.md"), include_str!("../../examples/quick_start.rs"));
    let (_, program) = program.split_once("\n\n").unwrap();
    assert!(page.contains(&format!("```rust,no_run\n{program}```\n\nprints `{}`", EXAMPLES[0].1)));
    for code in page.lines().filter(|line| line.starts_with("| ")).flat_map(|row| row.split('`')) {
        let is_code = code.starts_with("locks.") || code.starts_with("hold.");
        assert!(!is_code || include_str!("programs.rs").contains(&format!("    {code};\n")), "{code}");
    }
}
