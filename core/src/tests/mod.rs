//! The core against tables of cases, golden bytes, scenarios, and naive models of itself.
//!
//! | file | shows |
//! |---|---|
//! | [`locking`] | one lock, step by step, in tables of numbered cases |
//! | [`one_lock`] | the core without a queue equals a plain list of holders and a clock; effects rebuild it |
//! | [`effects`] | effects on locks they were not decided for |
//! | [`crowds`] | locks with thousands of readers, most of them expired |
//! | [`limit`] | readers beside at most so many others |
//! | [`late`] | commands that come late: fences, deadlines that only move on, owners who have given up |
//! | [`limits`] | nothing is given that a stored lock could not carry |
//! | [`format`] | golden bytes; whatever is not canonical is refused |
//! | [`queue`] | what the queue promises, a scenario for each promise: order, twins, limits |
//! | [`queue_upgrade`] | upgrades and downgrades |
//! | [`queue_time`] | deadlines, waits that run out, the grace after a start, a wall clock that is set |
//! | [`queue_outside`] | what befalls a key outside of the manager |
//! | [`queue_many`] | requests for several names at once |
//! | [`channels`] | requests that are answered on a channel |
//! | [`queue_cancel`] | clients that go, before and after their grant |
//! | [`ephemeral`] | which connection a hold ends with |
//! | [`searches`] | searches for cycles that arise by what happens outside, and while others go on |
//! | [`bounds`] | that what one token, one request or one search costs has a bound |
//! | [`work`] | what a turn costs, in names looked at |
//! | [`properties`] | the whole equals a naive model; what always holds, always holds |
//! | [`deadlock`] | refused exactly when a brute-force search finds a cycle |
//!
//! The rest is support: [`memory_store`] keeps locks in memory and on a second copy that hears of effects
//! only, [`scene`] makes scenarios short, [`history`] draws random histories, [`naive_server`] is the
//! naive model of the whole, [`heap`] counts bytes, [`random`] draws numbers from a seed.

mod bounds;
mod channels;
mod crowds;
mod deadlock;
mod effects;
mod ephemeral;
mod format;
mod heap;
mod history;
mod late;
mod limit;
mod limits;
mod locking;
mod memory_store;
mod naive_server;
mod one_lock;
mod properties;
mod queue;
mod queue_cancel;
mod queue_many;
mod queue_outside;
mod queue_time;
mod queue_upgrade;
mod random;
mod scene;
mod searches;
mod work;
