use super::*;

#[test]
fn messages() {
    assert!(matches!(message(b"17 3"), Some((3, Ok(17)))));
    assert!(matches!(message(b"0 3"), Some((3, Ok(0)))));
    assert!(matches!(message(b"-UNBLOCKED 3"), Some((3, Err(Failure { kind: Kind::Passing, .. })))));
    assert!(matches!(message(b"-DEADLOCK 3"), Some((3, Err(Failure { error: Error::Deadlock(_), .. })))));
    for strange in [&b""[..], b"17", b"17 x", b"x 3", b"\xff 3"] {
        assert!(message(strange).is_none());
    }
}
