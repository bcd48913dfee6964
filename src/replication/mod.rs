//! How changes reach replicas and the log, and how they are applied there.

mod apply;
pub mod wire;

pub use apply::run as apply;
