//! Requests with the options of an operation.

use serde_json::Value;
use slock_client::{LocksOf, Request, Site};

use crate::fields::Fields;

pub fn request<S: Site>(locks: &LocksOf<S>, operation: &Value) -> Request<S> {
    let mut request = locks.request(operation.texts("keys"), operation.mode());
    if let Some(ttl) = operation.duration("ttl_ms") {
        request = request.ttl(ttl);
    }
    if let Some(wait) = operation.duration("wait_ms") {
        request = request.wait(wait);
    }
    if let Some(limit) = operation.number("limit") {
        request = request.limit(limit.try_into().expect("a small number"));
    }
    if let Some(metadata) = operation.text("metadata") {
        request = request.metadata(metadata);
    }
    if let Some(renew) = operation["renew"].as_bool() {
        request = request.renew(renew);
    }
    if let Some(longest_lease) = operation.duration("longest_lease_ms") {
        request = request.longest_lease(longest_lease);
    }
    if let Some(token) = operation.text("token") {
        request = request.token(token);
    }
    if let Some(label) = operation.text("label") {
        request = request.label(label);
    }
    if let Some(least) = operation.number("min_replicas") {
        request = request.min_replicas(least.try_into().expect("a small number"));
    }
    if let Some(timeout) = operation.duration("replica_timeout_ms") {
        request = request.replica_timeout(timeout);
    }
    request
}
