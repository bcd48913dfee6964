// SPDX-License-Identifier: MIT OR Apache-2.0

//! `slock break`: takes locks away from those who hold them, and says what it ended, so that what they write later can be
//! distrusted.

use std::io::{BufRead, IsTerminal, Write};
use std::time::Duration;

use serde_json::{Value as Json, json};
use slock_client::redis::{Cmd, Value, cmd};

use crate::address::Place;
use crate::failure::{Failure, NO, error_of};
use crate::list::{Name, SLICE, Slices, unless_all_fail};
use crate::nodes::{self, Node, full_info, json_of};
use crate::table::{self, clean, duration, milliseconds, owner};

/// The longest `--reason`, which the server's module would refuse if it were longer.
const REASON_MAX_BYTES: usize = 256;

/// What is to end.
pub struct Which<'a> {
    /// The keys; with one of the others a pattern at most.
    pub keys: &'a [String],
    pub holder: Option<&'a str>,
    pub held_for: Option<Duration>,
}

/// One holder of one lock, as the server shows it.
struct Hold {
    node: usize,
    name: Name,
    /// Any bytes.
    token: Vec<u8>,
    shown: Json,
}

/// Ends the holds that it shows, by their fencing tokens: who gets a lock meanwhile keeps it.
pub async fn take_away(
    place: &Place,
    which: &Which<'_>,
    reason: Option<&str>,
    yes: bool,
    as_json: bool,
) -> Result<u8, Failure> {
    if reason.is_some_and(|reason| !(1..=REASON_MAX_BYTES).contains(&reason.len())) {
        return Err(Failure::usage(format!("--reason takes 1 to {REASON_MAX_BYTES} bytes")));
    }
    let (mut nodes, mut holds) = (Vec::new(), Vec::new());
    if which.holder.is_some() || which.held_for.is_some() {
        if which.keys.len() > 1 {
            return Err(Failure::usage("--holder and --held-for take one pattern, not several keys"));
        }
        nodes = nodes::primaries(place).await?;
        for (number, node) in nodes.iter_mut().enumerate() {
            search(place, which, node, number, &mut holds).await?;
        }
    } else {
        for key in which.keys {
            let mut node = nodes::of_key(place, key).await?;
            let (number, before) = (nodes.len(), holds.len());
            add_holds(place, which, &mut node, number, place.full(key).into_bytes(), &mut holds).await?;
            if holds.len() == before && key.contains(['*', '?', '[']) {
                let key = clean(key);
                table::say(&format!("{key} is a name here; it is a pattern with --held-for or --holder"));
            }
            nodes.push(node);
        }
    }
    for hold in &holds {
        let held = duration(milliseconds(&hold.shown["held-ms"]));
        table::say(&format!("{} is held by '{}' for {held}", name_of(&hold.shown), owner(&hold.shown)));
    }
    let locks = table::count(holds.len(), "hold");
    if !holds.is_empty()
        && !yes
        && !is_confirmed(&format!("The owners may go on working without the locks. End {locks}? [y/N] "))?
    {
        return Err(Failure::new(NO, "nothing is ended"));
    }
    let (mut ended, mut failure) = (Vec::new(), None);
    for Hold { node, name, token, shown } in holds {
        let mut release = cmd("SLOCK.MUNLOCK");
        release.arg(1).arg(name).arg(token).arg("FENCE").arg(shown["fence"].as_i64());
        if let Some(reason) = reason {
            release.arg("REASON").arg(reason);
        }
        match nodes[node].answer(release).await {
            Ok(Value::Int(1)) => ended.push(shown),
            Ok(_) => {}
            Err(Failure { line, code }) => {
                let (key, owner) = (name_of(&shown), owner(&shown));
                let line = format!("{key}: the hold of '{owner}' may not have ended: {line}");
                failure = Some(Failure::new(code, line));
                break;
            }
        }
    }
    if !as_json {
        ended.iter().for_each(tell_of);
    }
    let code = if ended.is_empty() { NO } else { 0 };
    if as_json {
        table::print_json(&Json::Array(ended));
    } else if code == NO && failure.is_none() {
        table::put("no hold is ended");
    }
    failure.map_or(Ok(code), Err)
}

fn tell_of(hold: &Json) {
    let text = |name: &str| clean(hold[name].as_str().unwrap_or(""));
    table::put(&format!(
        "{}: ended the hold of '{}' since {}: {}, fencing token {}, owner token {}",
        name_of(hold),
        owner(hold),
        text("since"),
        text("mode"),
        hold["fence"],
        text("token")
    ));
}

fn name_of(hold: &Json) -> String {
    clean(hold["key"].as_str().unwrap_or(""))
}

/// Adds the holds of all locks of a server that are to end. A first look at each lock is a short one.
async fn search(
    place: &Place,
    which: &Which<'_>,
    node: &mut Node,
    number: usize,
    holds: &mut Vec<Hold>,
) -> Result<(), Failure> {
    let mut slices = Slices::new(place, which.keys.first().map(String::as_str));
    while let Some(names) = slices.next_names(node, SLICE).await? {
        let look = |name: &Name| match which.holder {
            Some(token) => cmd("SLOCK.PTTL").arg(name.as_slice()).arg(token).clone(),
            None => full_info(name.as_slice(), 1),
        };
        let looks: Vec<Cmd> = names.iter().map(look).collect();
        let answers = node.answers(&looks).await.map_err(|error| node.failure(&error))?;
        unless_all_fail(node, &answers)?;
        for (name, answer) in names.into_iter().zip(answers) {
            let oldest = milliseconds(&json_of(&answer)["holders"][0]["held-ms"]);
            let is_wanted = match (which.holder, which.held_for) {
                (Some(_), _) => matches!(answer, Value::Int(left) if left >= 0),
                (None, least) => error_of(&answer).is_none() && oldest >= least.unwrap_or_default(),
            };
            if is_wanted {
                add_holds(place, which, node, number, name, holds).await?;
            }
        }
    }
    Ok(())
}

/// Adds the holds of one lock that are to end.
async fn add_holds(
    place: &Place,
    which: &Which<'_>,
    node: &mut Node,
    number: usize,
    name: Name,
    holds: &mut Vec<Hold>,
) -> Result<(), Failure> {
    let info = node.answer(full_info(name.as_slice(), 0)).await?;
    let Some(Value::Array(holders)) = field(&info, "holders") else { return Ok(()) };
    let mode = json_of(&info)["mode"].clone();
    for holder in holders {
        let Some(Value::BulkString(token)) = field(holder, "token") else { continue };
        let mut shown = json_of(holder);
        let held = milliseconds(&shown["held-ms"]);
        if which.holder.is_some_and(|wanted| wanted.as_bytes() != token.as_slice())
            || which.held_for.is_some_and(|least| held < least)
        {
            continue;
        }
        shown["key"] = json!(String::from_utf8_lossy(place.key(&name).unwrap_or(&name)));
        shown["node"] = json!(node.address);
        shown["mode"] = mode.clone();
        shown["since"] = json!(table::moment(held));
        holds.push(Hold { node: number, name: name.clone(), token: token.clone(), shown });
    }
    Ok(())
}

fn is_confirmed(question: &str) -> Result<bool, Failure> {
    if !std::io::stdin().is_terminal() {
        return Err(Failure::usage("there is no terminal to ask at: --yes breaks without asking"));
    }
    eprint!("{question}");
    let _ = std::io::stderr().flush();
    let mut line = String::new();
    let read = std::io::stdin().lock().read_line(&mut line);
    Ok(read.is_ok() && matches!(line.trim(), "y" | "Y" | "yes"))
}

/// As the server sent it: a token may be any bytes.
fn field<'a>(map: &'a Value, name: &str) -> Option<&'a Value> {
    let Value::Map(pairs) = map else { return None };
    pairs.iter().find(|(key, _)| json_of(key) == name).map(|(_, value)| value)
}
