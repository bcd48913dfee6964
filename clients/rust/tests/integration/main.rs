//! Tests against servers of their own. `SLOCK_MODULE` names the module, and `redis-server` is on the `PATH`.

mod adopting;
mod arguments;
mod cancelling;
mod causes;
mod closing;
mod cluster;
mod errors;
mod holds;
mod hooks;
mod late_commands;
mod limits;
mod lost_replies;
mod proxy;
mod quorum;
mod runtimes;
mod server;
mod status;
#[cfg(feature = "tls-native-tls")]
mod tls;
mod waiting;
mod watchdog;
