// SPDX-License-Identifier: MIT OR Apache-2.0

//! How things are shown: tables for people, JSON for programs, durations.

use std::io::Write;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::Value;

/// How much is shown of a text that others chose, in characters.
const LONGEST_TEXT: usize = 100;
/// The longest line on standard error, in characters.
const LONGEST_LINE: usize = 4000;

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

/// JSON in which every character is one that a terminal shows as it is.
pub fn print_json(value: &Value) {
    let mut text = String::new();
    for c in format!("{value:#}").chars() {
        // Line breaks are only between the values.
        if c == '\n' || is_visible(c) {
            text.push(c);
        } else {
            text.extend(c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")));
        }
    }
    put_text(&text);
}

/// A line of output.
pub fn put(line: &str) {
    put_text(&visible(line));
}

/// Text that has nothing in it of what others chose. When nobody reads any more (`slock ls | head`), the program ends
/// as by SIGPIPE.
pub fn put_text(text: &str) {
    if writeln!(std::io::stdout(), "{text}").is_err() {
        std::process::exit(128 + libc::SIGPIPE);
    }
}

/// A line for people, beside the output. Whether anybody reads it must not matter.
pub fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "slock: {}", cut(line, LONGEST_LINE));
}

/// What others chose, such as names and META: it must neither command the terminal nor fill it.
pub fn clean(text: &str) -> String {
    cut(text, LONGEST_TEXT)
}

fn cut(text: &str, most: usize) -> String {
    let shown = visible(&text.chars().take(most + 1).collect::<String>());
    if shown.chars().count() <= most {
        return shown;
    }
    shown.chars().take(most - 1).chain(['…']).collect()
}

/// Characters that a terminal does not show, or that change how it shows others, as \u{…}. Of what it gives it changes
/// nothing more.
fn visible(text: &str) -> String {
    let escape = |c: char| if is_visible(c) { c.to_string() } else { c.escape_default().to_string() };
    text.chars().map(escape).collect()
}

/// As the standard library has it for `{:?}`, which escapes controls, formats, separators and what is not assigned.
/// Combining characters are shown, so the one in question is not the first.
fn is_visible(c: char) -> bool {
    matches!(c, ' '..='~') || !c.is_ascii() && format!("a{c}").escape_debug().eq(['a', c])
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

/// The moment so long ago, in UTC: `2026-01-31T09:05:00Z`.
pub fn moment(ago: Duration) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let seconds = now.saturating_sub(ago).as_secs();
    let (mut days, seconds) = (seconds / 86400, seconds % 86400);
    let is_leap = |year: u64| year.is_multiple_of(4) && !year.is_multiple_of(100) || year.is_multiple_of(400);
    let mut year = 1970;
    while days >= 365 + u64::from(is_leap(year)) {
        days -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let mut month = 0;
    let lengths = [31, 28 + u64::from(is_leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    while days >= lengths[month] {
        days -= lengths[month];
        month += 1;
    }
    let (hour, minute) = (seconds / 3600, seconds / 60 % 60);
    format!("{year}-{:02}-{:02}T{hour:02}:{minute:02}:{:02}Z", month + 1, days + 1, seconds % 60)
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

/// Not of nothing.
pub fn parse_some_duration(text: &str) -> Result<Duration, String> {
    match parse_duration(text)? {
        Duration::ZERO => Err("it must be more than 0".to_owned()),
        some => Ok(some),
    }
}
