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

/// Slots that one primary serves, and where it is.
pub(crate) type Range = (RangeInclusive<usize>, ConnectionAddr);

pub(crate) async fn ranges(node: &Node) -> Result<Vec<Range>, Failure> {
    let until = Instant::now() + REPLY_TIMEOUT;
    let reply = node.send(std::slice::from_ref(cmd("CLUSTER").arg("SLOTS")), until).await?;
    let Value::Array(rows) = reply else { return Ok(Vec::new()) };
    Ok(rows.iter().filter_map(|row| range(row, node.address())).collect())
}

/// First and last slot, then the primary and its replicas, each with host, port and more.
fn range(row: &Value, asked: &ConnectionAddr) -> Option<Range> {
    let Value::Array(row) = row else { return None };
    let [Value::Int(first), Value::Int(last), Value::Array(primary), ..] = &row[..] else { return None };
    let [host, Value::Int(port), ..] = &primary[..] else { return None };
    let host = redis::from_redis_value_ref::<Option<String>>(host).ok()?.unwrap_or_default();
    let slots = usize::try_from(*first).ok()?..=usize::try_from(*last).ok()?;
    Some((slots, address_at(asked, &host, u16::try_from(*port).ok()?)))
}

/// The node that a redirection names.
pub(crate) fn redirected_to(named: &str, asked: &ConnectionAddr) -> Option<ConnectionAddr> {
    let (host, port) = named.rsplit_once(':')?;
    Some(address_at(asked, host, port.parse().ok()?))
}

/// The same kind of address, with TLS as there.
pub(crate) fn address_at(like: &ConnectionAddr, to_host: &str, to_port: u16) -> ConnectionAddr {
    let mut address = like.clone();
    if let ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } = &mut address {
        // A node that does not know its own name leaves it out: it is the one that was asked.
        if !matches!(to_host, "" | "?") {
            to_host.clone_into(host);
        }
        *port = to_port;
    }
    address
}
