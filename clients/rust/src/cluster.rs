//! Which node of a cluster serves a slot, as a node tells it.
//!
//! The cluster client of the redis crate sends commands again on its own, and has no connection for a wait. So
//! the library reads the map of slots itself.

use std::ops::RangeInclusive;
use std::time::Instant;

use redis::{ConnectionAddr, Value, cmd};

use crate::answers::Failure;
use crate::connection::REPLY_TIMEOUT;
use crate::node::Node;

/// Slots that one primary serves.
pub(crate) struct Range {
    pub(crate) slots: RangeInclusive<usize>,
    pub(crate) host: String,
    pub(crate) port: u16,
}

pub(crate) async fn ranges(node: &Node) -> Result<Vec<Range>, Failure> {
    let until = Instant::now() + REPLY_TIMEOUT;
    let reply = node.send(std::slice::from_ref(cmd("CLUSTER").arg("SLOTS")), until).await?;
    let Value::Array(rows) = reply else { return Ok(Vec::new()) };
    Ok(rows.iter().filter_map(|row| range(row, node)).collect())
}

/// First and last slot, then the primary and its replicas, each with host, port and more.
fn range(row: &Value, asked: &Node) -> Option<Range> {
    let Value::Array(row) = row else { return None };
    let [Value::Int(first), Value::Int(last), Value::Array(primary), ..] = &row[..] else { return None };
    let [host, Value::Int(port), ..] = &primary[..] else { return None };
    let host = redis::from_redis_value_ref::<Option<String>>(host).ok()?.unwrap_or_default();
    Some(Range {
        slots: usize::try_from(*first).ok()?..=usize::try_from(*last).ok()?,
        host: known_host(&host, asked).to_owned(),
        port: u16::try_from(*port).ok()?,
    })
}

/// Host and port of the node that a redirection names.
pub(crate) fn host_and_port<'a>(address: &'a str, asked: &'a Node) -> Option<(&'a str, u16)> {
    let (host, port) = address.rsplit_once(':')?;
    Some((known_host(host, asked), port.parse().ok()?))
}

/// A node that does not know its own name leaves it out: it is the one that was asked.
fn known_host<'a>(named: &'a str, asked: &'a Node) -> &'a str {
    match (named, asked.client().get_connection_info().addr()) {
        ("" | "?", ConnectionAddr::Tcp(host, _) | ConnectionAddr::TcpTls { host, .. }) => host,
        _ => named,
    }
}

/// The same kind of address, with TLS as there.
pub(crate) fn address_at(like: &ConnectionAddr, to_host: &str, to_port: u16) -> ConnectionAddr {
    let mut address = like.clone();
    if let ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } = &mut address {
        (*host, *port) = (to_host.to_owned(), to_port);
    }
    address
}
