//! The examples, and the page.

use std::process::Command;

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
        // In the root, since the package alone has other features and would be compiled once more.
        run.current_dir("../..").args(["run", "--quiet", "--example", name]);
        let output = run.env("REDIS_URL", server.url()).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && text.contains(says), "{name}: {text}{errors}");
    }
}

/// All its code is compiled by `cargo test --doc`; the first program is an example, and prints what the page says.
#[test]
fn the_first_program_of_the_page_is_an_example() {
    let (page, program) = (include_str!("../../README.md"), include_str!("../../examples/quick_start.rs"));
    let (_, program) = program.split_once("\n\n").unwrap();
    assert!(page.contains(&format!("```rust,no_run\n{program}```\n\nprints `{}`", EXAMPLES[0].1)));
}
