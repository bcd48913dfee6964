// SPDX-License-Identifier: MIT OR Apache-2.0

//! Dropping what is large on a thread of its own, as the server's lazy free does.
//!
//! To drop a lock of 200,000 readers takes tens of milliseconds.

use std::any::Any;
use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};
use std::thread;

type Garbage = Box<dyn Any + Send>;

static TO_DROP: OnceLock<Option<Sender<Garbage>>> = OnceLock::new();

/// Drops it, elsewhere if that can be. May be called on any thread, and in a child of the server, where
/// it is left to the end of the process.
pub fn drop_in_background(garbage: impl Any + Send) {
    let sender = TO_DROP.get_or_init(|| {
        let (sender, receiver) = channel::<Garbage>();
        let dropping = thread::Builder::new().name("slock-free".into());
        dropping.spawn(move || receiver.into_iter().for_each(drop)).ok().map(|_| sender)
    });
    if let Some(sender) = sender {
        // Where nobody receives, it is dropped here.
        drop(sender.send(Box::new(garbage)));
    }
}
