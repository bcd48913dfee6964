//! How things are shown: tables for people, JSON for programs, durations.

use std::io::Write;
use std::time::Duration;

use serde_json::Value;

/// Columns as wide as what is in them, the last one without padding.
pub fn print(headings: &[&str], rows: &[Vec<String>]) {
    let heading: Vec<String> = headings.iter().map(|&heading| heading.to_owned()).collect();
    let lines = || std::iter::once(&heading).chain(rows);
    let width = |column: usize| lines().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..headings.len()).map(width).collect();
    for line in lines() {
        let cells: Vec<String> =
            line.iter().zip(&widths).map(|(cell, &width)| format!("{cell:<width$}")).collect();
        put(cells.join("  ").trim_end());
    }
}

pub fn print_json(value: &Value) {
    put(&format!("{value:#}"));
}

/// A line of output. When nobody reads any more (`slock ls | head`), the program ends as by SIGPIPE.
pub fn put(line: &str) {
    if writeln!(std::io::stdout(), "{line}").is_err() {
        std::process::exit(128 + libc::SIGPIPE);
    }
}

/// A line for people, beside the output. Whether anybody reads it must not matter.
pub fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "slock: {line}");
}

/// What others chose, names and META, must not command the terminal.
pub fn clean(text: &str) -> String {
    let escape = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.to_string() };
    text.chars().map(escape).collect()
}

/// Who it is: what was said with the request, or else the token.
pub fn owner(holder: &Value) -> String {
    let text = |name: &str| holder[name].as_str().filter(|text| !text.is_empty());
    clean(text("meta").or(text("token")).unwrap_or("-"))
}

pub fn milliseconds(value: &Value) -> Duration {
    Duration::from_millis(value.as_u64().unwrap_or(0))
}

/// `1 fault`, `2 faults`.
pub fn count(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

/// The two largest units: `4.2s`, `3m 12s`, `2h 5m`.
pub fn duration(duration: Duration) -> String {
    let (milliseconds, seconds) = (duration.as_millis(), duration.as_secs());
    match seconds {
        0 => format!("{milliseconds}ms"),
        1..10 => format!("{}.{}s", seconds, milliseconds % 1000 / 100),
        10..60 => format!("{seconds}s"),
        60..3600 => format!("{}m {}s", seconds / 60, seconds % 60),
        3600..86400 => format!("{}h {}m", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{}d {}h", seconds / 86400, seconds % 86400 / 3600),
    }
}

/// `500ms`, `30s`, `10m`, `2h`, `1d`, `1m30s`; a number alone is seconds.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("'{text}' is no duration: write 500ms, 30s, 10m, 2h, 1d or 1m30s");
    let mut total = Duration::ZERO;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let (number, after) = rest.split_at(digits);
        let letters = after.find(|c: char| c.is_ascii_digit()).unwrap_or(after.len());
        let (unit, after) = after.split_at(letters);
        let unit: u64 = match unit {
            "ms" => 1,
            "s" | "" => 1000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => return Err(wrong()),
        };
        let number: u64 = number.parse().map_err(|_| wrong())?;
        let part = number.checked_mul(unit).ok_or_else(wrong)?;
        total = total.checked_add(Duration::from_millis(part)).ok_or_else(wrong)?;
        rest = after;
    }
    if text.is_empty() { Err(wrong()) } else { Ok(total) }
}
