//! Tests against servers of their own. `SLOCK_MODULE` names the module, and `redis-server` is on the `PATH`.

mod clients;
mod holds;
mod leaving;
mod limits;
mod observing;
mod programs;
mod server;
