//! The form of a change in the log and for replicas.

use crate::wire::{Message, read, write};
use crate::{Change, Effect, Mode};

/// Logs of earlier versions must stay readable: these lines never change.
#[test]
fn the_form_is_pinned() {
    let hold = Change::Hold {
        mode: Mode::Read,
        token: b"a b\0\xff",
        fence: 1_795_258_063_335_849,
        since_ms: 1_795_258_063_335,
        deadline_ms: 1_795_258_123_335,
        meta: b"note",
    };
    let extend = Change::Extend { token: b"t", deadline_ms: 20 };
    for (change, text) in [
        (hold, &b"HOLD 17 read 1795258063335849 1795258063335 1795258123335 a b\0\xff"[..]),
        (extend, b"EXTEND 17 20 t"),
        (Change::Release { token: b" " }, b"RELEASE 17  "),
    ] {
        let effect = Effect { at_ms: 17, change };
        let (line, meta) = write(&effect);
        assert_eq!(line.as_slice(), text);
        assert_eq!(read(text, meta), Some(Message::Effect(effect)));
    }
    assert_eq!(read(b"FENCE 9", b""), Some(Message::Fence(9)));
}

#[test]
fn the_longest_change_fits() {
    let (at_ms, fence, since_ms, deadline_ms) = (u64::MAX, u64::MAX, u64::MAX, u64::MAX);
    let change =
        Change::Hold { mode: Mode::Write, token: &[0; 255], fence, since_ms, deadline_ms, meta: b"" };
    write(&Effect { at_ms, change });
}

#[test]
fn everything_else_is_refused() {
    for change in [
        "",
        "HOLD",
        "HOLD 1 write 1 1 t",
        "HOLD 1 own 1 1 1 t",
        "HOLD 1 write 0 1 1 t",
        "HOLD 1 write 9007199254740992 1 1 t",
        "HOLD -1 write 1 1 1 t",
        "HOLD +1 write 1 1 1 t",
        "HOLD 1  write 1 1 1 t",
        "HOLD 1 write 1 1 1 ",
        "EXTEND 1 t",
        "EXTEND 1 99999999999999999999 t",
        "RELEASE",
        "RELEASE x t",
        "RELEASE 1",
        "RELEASE 1 ",
        "hold 1 write 1 1 1 t",
        "FENCE",
        "FENCE 0",
        "FENCE 1 ",
        "GRANT 1 t",
    ] {
        assert_eq!(read(change.as_bytes(), b""), None, "{change}");
    }
    let long = [b"RELEASE 1 ".as_slice(), &[b't'; 256]].concat();
    assert_eq!(read(&long, b""), None);
    assert_eq!(read(b"RELEASE 1 t", b"meta"), None);
    assert_eq!(read(b"HOLD 1 write 1 1 1 t", &[0; 1025]), None);
}
