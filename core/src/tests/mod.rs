//! The core against tables of cases, golden bytes, scenarios, and naive models of itself.
//!
//! | file | shows |
//! |---|---|
//! | [`locking`] | one lock, step by step, in tables of numbered cases |
//! | [`model`] | the core without a queue equals a plain list of holders and a clock; effects rebuild it |
//! | [`effects`] | effects on locks they were not decided for |
//! | [`encoding`] | golden bytes; whatever is not canonical is refused |
//! | [`queue`] | what the queue promises, a scenario for each promise: order, twins, limits, cost |
//! | [`queue_upgrade`] | upgrades and downgrades |
//! | [`queue_time`] | deadlines, waits that run out, the grace after a start |
//! | [`queue_outside`] | what befalls a key outside of the desk |
//! | [`queue_many`] | requests for several names at once |
//! | [`queue_parting`] | clients that go, before and after their grant |
//! | [`binding`] | which connection a hold ends with |
//! | [`queue_properties`] | the queue equals a plain list of requests; what always holds, always holds |
//! | [`deadlock`] | refused exactly when a brute-force search finds a cycle |
//!
//! The rest is support: [`space`] keeps locks in memory and on a second copy that is told of effects
//! only, [`scene`] makes scenarios short, [`history`] draws random histories, [`naive_server`] is the
//! naive model of the whole, [`heap`] counts bytes, [`random`] draws numbers from a seed.

mod binding;
mod deadlock;
mod effects;
mod encoding;
mod heap;
mod history;
mod locking;
mod model;
mod naive_server;
mod queue;
mod queue_many;
mod queue_outside;
mod queue_parting;
mod queue_properties;
mod queue_time;
mod queue_upgrade;
mod random;
mod scene;
mod space;
