// SPDX-License-Identifier: MIT OR Apache-2.0

//! `slock doctor`: checks servers for what costs people their locks, and says what to set. It changes nothing:
//! its commands read, or find no hold of the token that it makes up. Why each matters is in docs/operating.md.

use std::time::{Duration, Instant};

use serde_json::{Value as Json, json};
use slock_client::redis::{Arg, Cmd, cmd};

use crate::address::{Kind, Place};
use crate::failure::{Failure, NO, error_of};
use crate::nodes::{self, Node, info_of, json_of};
use crate::table;

const SETTINGS: [&str; 12] = [
    "maxmemory-policy",
    "appendonly",
    "appendfsync",
    "save",
    "stop-writes-on-bgsave-error",
    "min-replicas-to-write",
    "timeout",
    "tcp-keepalive",
    "maxclients",
    "slock.allow-apply",
    "slock.max-waiters",
    "slock.restart-grace-ms",
];
/// What the replies to these commands are needed for.
const SOURCES: [(&str, &[&str]); 3] = [
    ("INFO", &["disk", "replication", "min-replicas", "connections", "cluster"]),
    ("MODULE LIST", &["module", "version"]),
    (
        "CONFIG GET",
        &[
            "eviction",
            "persistence",
            "fsync",
            "grace",
            "snapshots",
            "min-replicas",
            "timeout",
            "keepalive",
            "apply",
            "waiters",
            "connections",
        ],
    ),
];
/// No faults, but not all was checked.
const NOT_ALL: u8 = 3;
/// Clocks that differ by more end holds too early or too late after a failover.
const MOST_SKEW_MS: f64 = 250.0;
const CLOCK_SAMPLES: usize = 3;
/// The interval between probes with which a lost machine is noticed within minutes: the default of servers.
const LONGEST_KEEPALIVE: u64 = 300;

/// What a server tells of itself.
#[derive(Default)]
struct Facts {
    address: String,
    is_replica: bool,
    is_away: bool,
    /// Null if the user may not ask.
    settings: Json,
    /// Null if the user may not ask.
    info: Json,
    /// The version of the module; nothing without it.
    module: Option<i64>,
    /// How far its clock is ahead of ours, and how sure that is, in milliseconds.
    clock: Option<(f64, f64)>,
    /// What the user may not do of all that a library does.
    denied: Vec<String>,
    /// The checks that could not be made, and why.
    unchecked: Vec<(Vec<&'static str>, String)>,
}

impl Facts {
    fn is_unchecked(&self, check: &str) -> bool {
        self.unchecked.iter().any(|(checks, _)| checks.contains(&check))
    }
}

struct Fault {
    server: String,
    check: &'static str,
    found: String,
    set: String,
}

pub async fn doctor(place: &Place, user: Option<&str>, key: &str, as_json: bool) -> Result<u8, Failure> {
    let mut nodes = nodes::all(place).await?;
    let mut facts = Vec::new();
    let mut number = 0;
    while number < nodes.len() {
        let is_alone = nodes.len() == 1;
        let node = &mut nodes[number];
        match facts_of(node).await {
            Ok(mut found) => {
                if number == 0 && (found.module.is_some() || found.is_unchecked("module")) {
                    may_lock(node, user, key, &mut found).await?;
                }
                if let Kind::Single = place.kind
                    && number == 0
                {
                    let replicas = nodes::replicas_in(place, &found.info);
                    facts.push(found);
                    nodes.extend(replicas);
                } else {
                    facts.push(found);
                }
            }
            // One server that is away is a fault of the others' locks; the only one is an error.
            Err(failure) if is_alone => return Err(failure),
            Err(failure) => {
                let (address, is_replica) = (node.address.clone(), node.is_replica);
                let unchecked = vec![(vec!["everything else"], failure.line)];
                facts.push(Facts { address, is_replica, is_away: true, unchecked, ..Facts::default() });
            }
        }
        number += 1;
    }
    let faults = judge(&facts, user.is_none());
    let unchecked =
        || facts.iter().flat_map(|facts| facts.unchecked.iter().map(|unchecked| (&facts.address, unchecked)));
    if as_json {
        let fault = |fault: &Fault| json!({"server": fault.server, "check": fault.check, "found": fault.found, "set": fault.set});
        let mut all: Vec<Json> = faults.iter().map(fault).collect();
        for (server, (checks, why)) in unchecked() {
            let one = |check: &&str| json!({"server": server, "check": check, "not-checked": why});
            all.extend(checks.iter().map(one));
        }
        table::print_json(&Json::Array(all));
    } else {
        for fault in &faults {
            table::put(&format!("{} [{}] {}", fault.server, fault.check, fault.found));
            table::put(&format!("    {}", fault.set));
        }
        for (server, (checks, why)) in unchecked() {
            table::put(&format!("{server} not checked: {}: {why}", checks.join(", ")));
        }
        let count = table::count(faults.len(), "fault");
        let rest = if unchecked().next().is_some() { ", and not all was checked" } else { "" };
        table::put(&format!("{count} on {}{rest}", table::count(facts.len(), "server")));
    }
    Ok(match (faults.is_empty(), unchecked().next()) {
        (false, _) => NO,
        (true, Some(_)) => NOT_ALL,
        (true, None) => 0,
    })
}

async fn facts_of(node: &mut Node) -> Result<Facts, Failure> {
    let mut facts = Facts { address: node.address.clone(), is_replica: node.is_replica, ..Facts::default() };
    let commands =
        [cmd("INFO"), cmd("MODULE").arg("LIST").clone(), cmd("CONFIG").arg("GET").arg(&SETTINGS).clone()];
    let answers = node.answers(&commands).await.map_err(|error| node.failure(&error))?;
    for (answer, (command, checks)) in answers.iter().zip(SOURCES) {
        if let Some(error) = error_of(answer) {
            facts.unchecked.push((checks.to_vec(), format!("{command}: {}", node.failure(&error).line)));
        }
    }
    let reply = |number: usize| Some(&answers[number]).filter(|answer| error_of(answer).is_none());
    facts.info = reply(0).map_or(Json::Null, info_of);
    facts.is_replica |= facts.info["role"] == "slave";
    let modules = json_of(&answers[1]);
    let slock = modules.as_array().into_iter().flatten().find(|module| module["name"] == "slock");
    facts.module = slock.and_then(|module| module["ver"].as_i64());
    facts.settings = reply(2).map_or(Json::Null, json_of);
    if facts.info["cluster_enabled"] == "1" {
        match node.answer(cmd("CLUSTER").arg("INFO").clone()).await {
            Ok(cluster) => facts.info["cluster_state"] = info_of(&cluster)["cluster_state"].clone(),
            Err(failure) => {
                facts.unchecked.push((vec!["cluster"], format!("CLUSTER INFO: {}", failure.line)))
            }
        }
    }
    match clock_of(node).await {
        Ok(clock) => facts.clock = Some(clock),
        Err(failure) => facts.unchecked.push((vec!["clock"], format!("TIME: {}", failure.line))),
    }
    Ok(facts)
}

/// Of several samples the one with the quickest answer.
async fn clock_of(node: &mut Node) -> Result<(f64, f64), Failure> {
    let mut best = (0.0, f64::INFINITY);
    for _ in 0..CLOCK_SAMPLES {
        let (sent, sent_wall) = (Instant::now(), std::time::SystemTime::now());
        let answer = json_of(&node.answer(cmd("TIME")).await?);
        let half_a_trip = sent.elapsed().as_secs_f64() * 500.0;
        let number =
            |index: usize| answer[index].as_str().and_then(|text| text.parse::<f64>().ok()).unwrap_or(0.0);
        let there = number(0) * 1000.0 + number(1) / 1000.0;
        let here =
            sent_wall.duration_since(std::time::UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs_f64() * 1000.0;
        if half_a_trip < best.1 {
            best = (there - here - half_a_trip, half_a_trip);
        }
    }
    Ok(best)
}

/// Asks for what a library does, with a token that holds nothing, so that it changes nothing; for another user
/// by ACL DRYRUN.
async fn may_lock(node: &mut Node, user: Option<&str>, key: &str, facts: &mut Facts) -> Result<(), Failure> {
    let token = format!("slock-doctor-{}-{:?}", std::process::id(), Instant::now());
    let name = match user {
        Some(user) => user.to_owned(),
        // A certificate may choose another user than the one who logs in.
        None => match node.answer(cmd("ACL").arg("WHOAMI").clone()).await {
            Ok(me) => json_of(&me).as_str().unwrap_or_else(|| node.user()).to_owned(),
            Err(_) => node.user().to_owned(),
        },
    };
    let with = |command: &str, rest: &[&str]| cmd(command).arg(key).arg(&token).arg(rest).clone();
    let commands = [
        ("+slock.lock", with("SLOCK.LOCK", &["1000", "XX"])),
        ("+slock.rlock", with("SLOCK.RLOCK", &["1000", "XX"])),
        ("+slock.unlock", with("SLOCK.UNLOCK", &[])),
        ("+slock.runlock", with("SLOCK.RUNLOCK", &[])),
        ("+slock.munlock", cmd("SLOCK.MUNLOCK").arg(1).arg(key).arg(&token).clone()),
        ("+slock.extend", with("SLOCK.EXTEND", &["1000"])),
        ("+slock.cancel", with("SLOCK.CANCEL", &[])),
        ("+ping", cmd("PING")),
        ("+ssubscribe", cmd("SSUBSCRIBE").arg(format!("{{{key}}}.waits:doctor")).clone()),
    ];
    for (permission, command) in commands {
        // To subscribe would change what the connection is for.
        let by_dry_run = user.is_some() || permission == "+ssubscribe";
        let command = if by_dry_run { dry_run(&name, &command) } else { command };
        let answers = node.answers(&[command]).await.map_err(|error| node.failure(&error))?;
        let error = answers.first().and_then(error_of);
        let (denied, text) = match &error {
            Some(error) if by_dry_run => {
                let why = format!("{permission}: ACL DRYRUN: {}", node.failure(error).line);
                facts.unchecked.push((vec!["permissions"], why));
                if user.is_some() {
                    break;
                }
                continue;
            }
            Some(error) => (error.code() == Some("NOPERM"), error.detail().unwrap_or("").to_owned()),
            None if by_dry_run => {
                let text = answers.first().map(json_of).unwrap_or_default();
                (text != "OK", text.as_str().unwrap_or("").to_owned())
            }
            None => (false, String::new()),
        };
        if denied {
            let text = text.to_lowercase();
            let right = match permission {
                "+ssubscribe" if text.contains("channel") => "&{*}.waits:*",
                _ if text.contains("key") && !text.contains("command") => {
                    facts.denied = vec![format!("~{key}")];
                    break;
                }
                permission => permission,
            };
            facts.denied.push(right.to_owned());
        }
    }
    if !facts.denied.is_empty() {
        facts.denied.insert(0, name);
    }
    Ok(())
}

fn dry_run(user: &str, command: &Cmd) -> Cmd {
    let mut dry = cmd("ACL").arg("DRYRUN").arg(user).clone();
    for word in command.args_iter() {
        if let Arg::Simple(word) = word {
            dry.arg(word);
        }
    }
    dry
}

/// All faults, server by server.
fn judge(facts: &[Facts], is_own_user: bool) -> Vec<Fault> {
    let mut faults = Vec::new();
    let primary_clock = facts.first().and_then(|facts| facts.clock);
    let own = env!("CARGO_PKG_VERSION").split('.').fold(0, |sum, part| sum * 100 + part.parse().unwrap_or(0));
    let latest = facts.iter().filter_map(|facts| facts.module).chain([own]).max().unwrap_or(own);
    for (index, facts) in facts.iter().enumerate() {
        let mut fault = |check, found: String, set: &str| {
            faults.push(Fault { server: facts.address.clone(), check, found, set: set.to_owned() });
        };
        if facts.is_away {
            let set = "start it, or take it out of the configuration of the others";
            fault("away", "it cannot be asked: after a failover it could not serve".to_owned(), set);
            continue;
        }
        let setting = |name: &str| facts.settings[name].as_str();
        let info = |name: &str| facts.info[name].as_str().unwrap_or("");
        let number = |text: &str| text.parse::<u64>().unwrap_or(0);

        match facts.module {
            None if !facts.is_unchecked("module") => fault(
                "module",
                "the server has not loaded the module".to_owned(),
                "set: loadmodule /path/to/libslock.so (of the Debian package /usr/lib/redis/modules/slock.so) in its \
                 configuration file; then restart it",
            ),
            Some(version) if version < latest => fault(
                "version",
                format!(
                    "its module has version {}, but the latest in use is {}",
                    dotted(version),
                    dotted(latest)
                ),
                "install the same libslock.so (of the Debian package /usr/lib/redis/modules/slock.so) everywhere, on \
                 replicas first, and restart",
            ),
            _ => {}
        }
        if let Some(policy) = setting("maxmemory-policy").filter(|&policy| policy != "noeviction") {
            let found =
                format!("maxmemory-policy is {policy}: when memory is full, locks that are held are evicted");
            fault("eviction", found, "set: maxmemory-policy noeviction");
        }
        if setting("appendonly") == Some("no") {
            let found = match setting("save") {
                Some("") => "nothing is written to disk: a restart forgets all locks",
                _ => "there is no append-only file: a restart forgets the locks since the last snapshot",
            };
            fault("persistence", found.to_owned(), "set: appendonly yes");
        } else if setting("appendfsync") == Some("no") {
            let found = "appendfsync is no: a power cut forgets the locks of the last half minute".to_owned();
            fault("fsync", found, "set: appendfsync everysec");
        } else if setting("appendfsync") == Some("everysec") && setting("slock.restart-grace-ms") == Some("0")
        {
            let found = "appendfsync is everysec and slock.restart-grace-ms is 0: after a power cut a lock of the last two \
                         seconds is given to another while its owner relies on it";
            let set = "set: slock.restart-grace-ms 30000 or the longest ttl in use; or appendfsync always";
            fault("grace", found.to_owned(), set);
        }
        let fails = |name: &str| info(name) == "err";
        let has_snapshots = setting("save").is_some_and(|save| !save.is_empty());
        if has_snapshots
            && setting("stop-writes-on-bgsave-error") == Some("yes")
            && setting("appendonly") == Some("yes")
        {
            let found =
                "a snapshot that fails would stop all locking, although there is the append-only file";
            fault("snapshots", found.to_owned(), "set: stop-writes-on-bgsave-error no");
        }
        if fails("aof_last_write_status") {
            let found = "the last write to the append-only file failed: no lock is granted";
            fault("disk", found.to_owned(), "make room on its disk");
        }
        let wanted =
            setting("min-replicas-to-write").map(number).filter(|_| !facts.is_unchecked("min-replicas"));
        if let Some(wanted) = wanted.filter(|_| !facts.is_replica) {
            let (replicas, good) = (number(info("connected_slaves")), number(info("min_slaves_good_slaves")));
            if replicas > 0 && wanted == 0 {
                let found = "min-replicas-to-write is 0: cut off from its replicas it goes on granting locks";
                fault("min-replicas", found.to_owned(), "set: min-replicas-to-write 1");
            } else if wanted > good {
                let found = format!(
                    "min-replicas-to-write is {wanted}, and {good} replicas are up: no lock is granted"
                );
                fault("min-replicas", found, "connect its replicas, or set: min-replicas-to-write 0");
            }
        }
        if index == 0 && facts.is_replica {
            let set = format!("name its primary by --url: {}:{}", info("master_host"), info("master_port"));
            fault("replication", "it is a replica, and grants no lock".to_owned(), &set);
        }
        if facts.is_replica && info("master_link_status") == "down" {
            let found = "it is cut off from its primary: a failover to it would lose locks";
            fault(
                "replication",
                found.to_owned(),
                "look for the reason in its log: network, masterauth, repl-timeout",
            );
        }
        if let Some(timeout) = setting("timeout").filter(|&timeout| timeout != "0") {
            let found = format!(
                "timeout is {timeout}: idle connections are closed, and EPHEMERAL holds end with them"
            );
            fault("timeout", found, "set: timeout 0");
        }
        if let Some(keepalive) = setting("tcp-keepalive").map(number)
            && (keepalive == 0 || keepalive > LONGEST_KEEPALIVE)
        {
            let found = format!(
                "tcp-keepalive is {keepalive}: a machine that lost power stays in the queue for long"
            );
            fault("keepalive", found, "set: tcp-keepalive 30");
        }
        if setting("slock.allow-apply") == Some("yes") {
            let found = "slock.allow-apply is yes: clients may make and end holds of others by SLOCK.APPLY";
            fault("apply", found.to_owned(), "set: slock.allow-apply no");
        }
        if setting("slock.max-waiters") == Some("0") {
            let found = "slock.max-waiters is 0: nobody can wait".to_owned();
            fault("waiters", found, "set: slock.max-waiters 100000");
        }
        let (clients, most) = (number(info("connected_clients")), setting("maxclients").map_or(0, number));
        if most > 0 && clients * 10 > most * 9 {
            let found =
                format!("{clients} of {most} connections are in use: owners that reconnect are refused");
            fault("connections", found, "set: a higher maxclients, and ulimit -n");
        }
        if info("cluster_state") == "fail" {
            fault("cluster", "the cluster is down".to_owned(), "see CLUSTER INFO and CLUSTER NODES");
        }
        if let (Some((ahead, unsure)), Some((primary, primary_unsure))) = (facts.clock, primary_clock)
            && (ahead - primary).abs() > MOST_SKEW_MS + unsure + primary_unsure
        {
            let way = if ahead > primary { "ahead of" } else { "behind" };
            let skew = table::duration(Duration::from_secs_f64((ahead - primary).abs() / 1000.0));
            let found = format!(
                "its clock is {skew} {way} the first server's: after a failover holds end too early or late"
            );
            fault("clock", found, "let NTP (chrony, systemd-timesyncd) run on its machine");
        }
        if let Some((user, rights)) = facts.denied.split_first() {
            let rights = rights.join(" ");
            let found = format!("the user {user} lacks what a library needs: {rights}");
            let first = if rights.starts_with('~') { "name a key that it uses by --key; else " } else { "" };
            let last = if is_own_user { "; or name the user of the programs by --for" } else { "" };
            fault("permissions", found, &format!("{first}run: ACL SETUSER {user} {rights}{last}"));
        }
    }
    faults
}

/// 10203 is 1.2.3.
fn dotted(version: i64) -> String {
    format!("{}.{}.{}", version / 10000, version / 100 % 100, version % 100)
}
