//! The core against tables of cases, golden bytes, scenarios, and naive models of itself.
//! `tests/README.md` says which file shows what.

mod bounds;
mod channels;
mod crowds;
mod deadlock;
mod deeds;
mod effects;
mod ephemeral;
mod explore;
mod format;
mod heap;
mod history;
mod judge;
mod late;
mod limit;
mod limits;
mod locking;
mod memory_store;
mod naive_server;
mod parts;
mod properties;
mod queue;
mod queue_cancel;
mod queue_many;
mod queue_outside;
mod queue_time;
mod queue_upgrade;
mod random;
mod scene;
mod side_by_side;
mod small_worlds;
mod wire;
mod work;
