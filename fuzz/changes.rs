//! What replicas and the log are told: whatever it is, it is refused or leaves a lock that can be stored. Told twice it
//! changes nothing more, but for an extension that had ended before it was decided, which no primary tells.

#![no_main]

use libfuzzer_sys::fuzz_target;
use slock_core::format::{decode, encode};
use slock_core::wire::{self, Message};
use slock_core::{Change, Effect, Lock};

// A change each line; what follows a tab is the metadata.
fuzz_target!(|lines: &[u8]| {
    let mut lock = None;
    for line in lines.split(|byte| *byte == b'\n') {
        let at = line.iter().position(|byte| *byte == b'\t');
        let (change, meta) = at.map_or((line, &[][..]), |at| (&line[..at], &line[at + 1..]));
        let Some(Message::Effect(effect)) = wire::read(change, meta) else { continue };
        apply(&mut lock, &effect);
        let once = lock.as_ref().map(encode);
        if !matches!(effect.change, Change::Extend { deadline_ms, .. } if deadline_ms <= effect.at_ms) {
            apply(&mut lock, &effect);
            assert_eq!(lock.as_ref().map(encode), once, "told twice it is another lock");
        }
        if let Some(bytes) = once {
            assert_eq!(encode(&decode(&bytes).expect("what is stored can be loaded")), bytes);
        }
    }
});

fn apply(lock: &mut Option<Lock>, effect: &Effect<'_>) {
    match lock {
        Some(known) => {
            known.apply(effect);
        }
        None => *lock = Lock::born_of(effect),
    }
    if lock.as_ref().is_some_and(Lock::is_empty) {
        *lock = None;
    }
}
