// SPDX-License-Identifier: MIT OR Apache-2.0

//! What is wrong with a `--url`, part by part. The texts quote no part that could be a password.

use crate::failure::Failure;

const SINGLE: &str = "redis://[USER:PASSWORD@]HOST[:PORT][/DB]";
const SENTINEL: &str = "redis+sentinel://[USER:PASSWORD@]HOST[:PORT],…/PRIMARY[/DB]";
const CLUSTER: &str = "redis+cluster://[USER:PASSWORD@]HOST[:PORT],…";
const SOCKET: &str = "unix:///PATH[?db=DB&user=USER&pass=PASSWORD]";

/// Names the first part that is wrong, and how to write it.
pub fn check(url: &str) -> Result<(), Failure> {
    let wrong = |part: &str, form: &str| {
        Failure::usage(format!("the URL is not understood: {part}; write it as {form} (--url or SLOCK_URL)"))
    };
    let Some((scheme, rest)) = url.split_once("://") else {
        return Err(wrong("it has no ://", SINGLE));
    };
    let form = match scheme {
        "unix" | "redis+unix" if rest.starts_with('/') => {
            return check_end(rest, SOCKET).map_err(|part| wrong(part, SOCKET));
        }
        "unix" | "redis+unix" => return Err(wrong("the path of the socket does not begin with /", SOCKET)),
        "redis" | "rediss" | "valkey" | "valkeys" => SINGLE,
        "redis+sentinel" | "rediss+sentinel" => SENTINEL,
        "redis+cluster" | "rediss+cluster" => CLUSTER,
        _ => {
            return Err(wrong(
                "its scheme is none of redis, rediss, redis+sentinel, redis+cluster and unix",
                SINGLE,
            ));
        }
    };
    let (authority, after) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    // Then what seems to be the rest of the URL begins in the middle of the password.
    let is_login = !authority.contains('@') && after.contains('@');
    let login = "the user or the password has / ? or # in it, which is written %2F, %3F or %23 there";
    let wrong = |part| wrong(if is_login { login } else { part }, form);
    let hosts = authority.rsplit_once('@').map_or(authority, |(_, hosts)| hosts);
    if form == SINGLE && hosts.contains(',') {
        return Err(wrong("it names several hosts, which only redis+sentinel and redis+cluster have"));
    }
    for host in hosts.split(',') {
        let (name, port) = match host.rsplit_once(':') {
            Some((name, port)) if !port.ends_with(']') => (name, Some(port)),
            _ => (host, None),
        };
        if name.is_empty() {
            return Err(wrong("a host is missing"));
        }
        if port.is_some_and(|port| port.parse::<u16>().is_err()) {
            return Err(wrong("a port is no number from 0 to 65535"));
        }
    }
    let path = after.split(['?', '#']).next().unwrap_or("").trim_matches('/');
    let (primary, database) = match form {
        SENTINEL => path.split_once('/').unwrap_or((path, "")),
        _ => ("", path),
    };
    if form == SENTINEL && primary.is_empty() {
        return Err(wrong("the name of the primary is missing"));
    }
    if form == CLUSTER && !database.is_empty() {
        return Err(wrong("it names a database, and a cluster has only one"));
    }
    if !database.is_empty() && database.parse::<u32>().is_err() {
        return Err(wrong("the database is no number"));
    }
    check_end(after, form).map_err(wrong)
}

/// What follows the path: parameters, each with a value.
fn check_end(after: &str, form: &str) -> Result<(), &'static str> {
    match after.split_once('#') {
        Some((_, "insecure")) => {
            return Err("there is no #insecure: --tls-ca names the authorities to trust instead");
        }
        Some(_) => return Err("it has a #, which is written %23"),
        None => {}
    }
    let known: &[&str] = match form {
        SOCKET => &["db", "user", "pass", "protocol"],
        SENTINEL => &["sentinel-user", "sentinel-password"],
        CLUSTER => &[],
        _ => &["protocol"],
    };
    let parameters = after.split_once('?').map_or("", |(_, parameters)| parameters);
    for parameter in parameters.split('&').filter(|parameter| !parameter.is_empty()) {
        match parameter.split('=').next().unwrap_or("") {
            "ssl" | "tls" => return Err("no parameter turns on TLS: its scheme does, as rediss://…"),
            name if known.contains(&name) => {}
            _ => return Err("it has a parameter that is not known"),
        }
    }
    Ok(())
}
