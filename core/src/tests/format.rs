//! The bytes of a stored lock: golden, canonical, and closed to everything else.

use std::collections::BTreeMap;

use super::heap::{growth_of, peak_of};
use super::random::{Random, rounds};
use crate::format::{Malformed, VERSION, decode, encode};
use crate::limits::{META_MAX_BYTES, NUMBER_MAX, TOKEN_MAX_BYTES};
use crate::lock::{Holder, Lock};
use crate::mode::Mode;
use crate::wire::{self, Message};

/// Every byte and bit is damaged, under Miri one in so many.
const STEP: usize = if cfg!(miri) { 997 } else { 1 };

/// So many readers are a crowd, which is kept otherwise than a few.
const CROWD: u64 = if cfg!(miri) { 50 } else { 300 };

fn holder(token: &[u8], fence: u64, since_ms: u64, deadline_ms: u64, meta: &[u8]) -> Holder {
    Holder::new(token, meta, fence, since_ms, deadline_ms)
}

fn lock(mode: Mode, holders: Vec<Holder>) -> Lock {
    Lock::from_parts(mode, holders).expect("consistent parts")
}

/// Bytes from hexadecimal digits; spaces are ignored.
fn hex(digits: &str) -> Vec<u8> {
    let digits: Vec<u8> = digits.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    let pairs = digits.chunks(2).map(|pair| std::str::from_utf8(pair).unwrap());
    pairs.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect()
}

#[track_caller]
fn assert_golden(lock: &Lock, golden: &[u8]) {
    let bytes = encode(lock);
    assert!(bytes == golden, "encoded as\n{bytes:02x?}\ninstead of\n{golden:02x?}");
    let decoded = decode(golden).expect("golden bytes are read for ever");
    assert!(decoded == *lock);
}

fn one_writer() -> Lock {
    let token = [0x00, 0xff, 0x41];
    let fence = 1_700_000_000_000_000;
    lock(Mode::Write, vec![holder(&token, fence, 1_700_000_000_000, 1_700_000_030_000, b"job7")])
}

fn three_readers() -> Lock {
    let of_250 = holder(&[b'a'; 250], 250, 251, 65_535, &[b'x'; 250]);
    let of_251 = holder(&[b'b'; 251], 251, 65_536, u64::from(u32::MAX), &[b'y'; 251]);
    let of_255 = holder(&[b'c'; 255], 65_536, 1 << 32, NUMBER_MAX, &[]);
    // Given in another order than that of the fences, which is the one they are stored in.
    lock(Mode::Read, vec![of_255, of_250, of_251])
}

fn many_readers(count: u64) -> Lock {
    let reader = |number: u64| {
        let token = format!("reader-{number}");
        let fence = 1_700_000_000_000_000 + (number * 7_919) % 1_000_003;
        let (since_ms, deadline_ms) = (1_700_000_000_000 + number, 1_700_000_030_000 + number * number % 977);
        let meta = vec![number as u8; number as usize % 5];
        holder(token.as_bytes(), fence, since_ms, deadline_ms, &meta)
    };
    lock(Mode::Read, (0..count).map(reader).collect())
}

#[test]
fn golden_one_writer_with_a_binary_token_and_metadata() {
    let golden = hex("01 01 01
         03 00ff41
         fd 00401e18240a0600
         fd 0068e5cf8b010000
         fd 30dde5cf8b010000
         04 6a6f6237");
    assert_golden(&one_writer(), &golden);
}

#[test]
fn golden_three_readers_with_lengths_and_numbers_at_the_borders_of_an_integers_size() {
    let golden = [
        &hex("01 00 03 fa")[..],
        &[b'a'; 250],
        &hex("fa fb fb00 fb ffff fa"),
        &[b'x'; 250],
        &hex("fb fb00"),
        &[b'b'; 251],
        &hex("fb fb00 fc 00000100 fc ffffffff fb fb00"),
        &[b'y'; 251],
        &hex("fb ff00"),
        &[b'c'; 255],
        &hex("fc 00000100 fd 0000000001000000 fd ffffffffffff1f00 00"),
    ];
    assert_golden(&three_readers(), &golden.concat());
}

#[test]
fn equal_locks_have_equal_bytes_which_are_as_documented() {
    for count in [1, 2, 15, 16, 17, 40, CROWD] {
        let forward = many_readers(count);
        let parts: Vec<Holder> = forward.holders().cloned().collect();
        let backward = lock(Mode::Read, parts.iter().rev().cloned().collect());
        assert!(forward == backward);
        assert_eq!(encode(&forward), encode(&backward), "{count} readers");
        assert_eq!(raw(0, &parts), encode(&forward));
    }
}

/// A lock of a few readers or one writer, with numbers about the borders of an integer's size.
fn any_lock(random: &mut Random) -> Lock {
    let is_write = random.chance(25);
    let number = |random: &mut Random| {
        let (low, high) =
            random.pick(&[(0, 300), (65_530, 65_540), ((1 << 32) - 3, (1 << 32) + 3), (0, NUMBER_MAX)]);
        random.within(low, high)
    };
    let bytes = |random: &mut Random, least: usize, most: usize| -> Vec<u8> {
        (0..least + random.below(most - least + 1)).map(|_| random.next() as u8).collect()
    };
    let mut holders = BTreeMap::new();
    for nth in 0..if is_write { 1 } else { 1 + random.below(40) as u8 } {
        let token = [vec![nth], bytes(random, 0, TOKEN_MAX_BYTES - 1)].concat();
        let (fence, since_ms, deadline_ms) = (number(random).max(1), number(random), number(random));
        holders.insert(fence, holder(&token, fence, since_ms, deadline_ms, &bytes(random, 0, 60)));
    }
    lock(if is_write { Mode::Write } else { Mode::Read }, holders.into_values().collect())
}

#[test]
fn what_goes_out_comes_back() {
    for seed in 0..rounds(500) as u64 {
        let lock = any_lock(&mut Random::new(seed));
        let bytes = encode(&lock);
        let again = decode(&bytes).expect("what was encoded decodes");
        assert!(again == lock && encode(&again) == bytes, "seed {seed}");
        assert!(replayed(&lock) == lock, "seed {seed}");
    }
}

/// The lock that the commands of a rewritten log make.
fn replayed(lock: &Lock) -> Lock {
    let mut replayed = None;
    wire::rewrite(lock, None, &mut |change, meta| {
        let Some(Message::Effect(effect)) = wire::read(change, meta) else { panic!("no effect") };
        match &mut replayed {
            None => replayed = Lock::born_of(&effect),
            Some(lock) => drop(lock.apply(&effect)),
        }
    });
    replayed.expect("a lock has holders")
}

/// Whether the bytes were refused; if not, asserts that they describe a lock that obeys every rule
/// and has exactly these bytes.
fn refused_or_canonical(bytes: &[u8]) -> bool {
    let Ok(lock) = decode(bytes) else { return true };
    assert_eq!(encode(&lock), bytes, "two encodings of one lock");
    let all: Vec<&Holder> = lock.holders().collect();
    assert!(!all.is_empty() && (lock.mode() == Mode::Read || all.len() == 1));
    assert!(all.windows(2).all(|pair| pair[0].fence < pair[1].fence));
    for holder in &all {
        assert!(
            (1..=TOKEN_MAX_BYTES).contains(&holder.token().len()) && holder.meta().len() <= META_MAX_BYTES
        );
        assert!((1..=NUMBER_MAX).contains(&holder.fence));
        assert!(holder.since_ms() <= NUMBER_MAX && holder.deadline_ms <= NUMBER_MAX);
        assert_eq!(all.iter().filter(|other| other.token() == holder.token()).count(), 1);
    }
    false
}

fn specimens() -> Vec<Vec<u8>> {
    let small = holder(b"A", 1, 0, 1, b"");
    vec![
        encode(&one_writer()),
        encode(&three_readers()),
        encode(&many_readers(20)),
        encode(&lock(Mode::Read, vec![small.clone()])),
        encode(&lock(Mode::Write, vec![small.clone()])),
        encode(&lock(Mode::Read, vec![small, holder(b"B", 2, 300, 70_000, &[7; 260])])),
    ]
}

#[test]
fn damaged_bytes_are_refused_or_make_another_lock() {
    let (mut refused, mut taken) = (0, 0);
    for bytes in specimens() {
        let mut flipped = bytes.clone();
        for at in (0..bytes.len() * 8).step_by(STEP) {
            flipped[at / 8] ^= 1 << (at % 8);
            match refused_or_canonical(&flipped) {
                true => refused += 1,
                false => taken += 1,
            }
            flipped[at / 8] = bytes[at / 8];
        }
    }
    assert!(refused > 500 / STEP && taken > 500 / STEP, "{refused} refused, {taken} taken");
    for bytes in [&specimens()[0], &specimens()[5]] {
        for at in (0..bytes.len() * 256).step_by(STEP) {
            let mut changed = bytes.clone();
            changed[at / 256] = (at % 256) as u8;
            refused_or_canonical(&changed);
        }
    }
}

#[test]
fn shorter_and_longer_bytes_and_other_versions_are_refused() {
    assert_eq!(VERSION, 1);
    assert_eq!(decode(&[]), Err(Malformed::Empty));
    assert_eq!(decode(&[2]), Err(Malformed::Version(2)));
    assert_eq!(decode(&[1]), Err(Malformed::Syntax));
    for bytes in specimens() {
        for len in (1..bytes.len()).step_by(STEP) {
            assert!(decode(&bytes[..len]).is_err(), "{len} of {} bytes", bytes.len());
        }
        for extra in (0..=255).step_by(STEP) {
            assert_eq!(decode(&[&bytes[..], &[extra]].concat()), Err(Malformed::Syntax));
        }
        assert_eq!(decode(&[&bytes[..], &bytes[..]].concat()), Err(Malformed::Syntax));
        for version in [0, 2, 3, 128, 255] {
            let other = [&[version], &bytes[1..]].concat();
            assert_eq!(decode(&other), Err(Malformed::Version(version)));
        }
    }
}

/// Writes what [`encode`] would, but also what it never would.
fn raw(writer: u8, holders: &[Holder]) -> Vec<u8> {
    fn integer(bytes: &mut Vec<u8>, value: u64) {
        match value {
            0..=250 => bytes.push(value as u8),
            251..=0xffff => bytes.extend([&[251][..], &(value as u16).to_le_bytes()].concat()),
            0x1_0000..=0xffff_ffff => bytes.extend([&[252][..], &(value as u32).to_le_bytes()].concat()),
            _ => bytes.extend([&[253][..], &value.to_le_bytes()].concat()),
        }
    }
    let mut bytes = vec![1, writer];
    integer(&mut bytes, holders.len() as u64);
    for holder in holders {
        integer(&mut bytes, holder.token().len() as u64);
        bytes.extend(holder.token());
        for number in [holder.fence, holder.since_ms(), holder.deadline_ms] {
            integer(&mut bytes, number);
        }
        integer(&mut bytes, holder.meta().len() as u64);
        bytes.extend(holder.meta());
    }
    bytes
}

#[test]
fn contradictions_and_broken_limits_are_refused() {
    let named = |token: &[u8], fence| holder(token, fence, 10, 20, b"m");
    let (a, b) = (named(b"A", 5), named(b"B", 6));
    let numbers = |fence, since_ms, deadline_ms| raw(0, &[holder(b"A", fence, since_ms, deadline_ms, b"")]);
    let with_meta = |len: usize| raw(0, &[holder(b"A", 5, 10, 20, &vec![0; len])]);
    let cases = [
        ("no holder, for read", raw(0, &[])),
        ("no holder, for write", raw(1, &[])),
        ("two writers", raw(1, &[a.clone(), b.clone()])),
        ("a token twice", raw(0, &[a.clone(), named(b"A", 6)])),
        ("a token twice, apart", raw(0, &[a.clone(), b.clone(), named(b"A", 7)])),
        ("a fence twice", raw(0, &[a.clone(), named(b"B", 5)])),
        ("fences that fall", raw(0, &[b.clone(), a.clone()])),
        ("an empty token", raw(0, &[named(b"", 5)])),
        ("a token of 256 bytes", raw(1, &[named(&[b't'; 256], 5)])),
        ("metadata of 1025 bytes", with_meta(1025)),
        ("fence 0", numbers(0, 10, 20)),
        ("fence 2^53", numbers(1 << 53, 10, 20)),
        ("fence 2^64 - 1", numbers(u64::MAX, 10, 20)),
        ("start 2^53", numbers(5, 1 << 53, 20)),
        ("deadline 2^53", numbers(5, 10, 1 << 53)),
        ("deadline 2^64 - 1", numbers(5, 10, u64::MAX)),
    ];
    for (what, bytes) in cases {
        assert_eq!(decode(&bytes), Err(Malformed::Inconsistent), "{what}");
    }
    let fine = [
        ("two readers", raw(0, &[a.clone(), b])),
        ("one writer", raw(1, &[a])),
        ("a token of 255 bytes", raw(1, &[named(&[b't'; 255], 5)])),
        ("metadata of 1024 bytes", with_meta(1024)),
        ("the greatest numbers", numbers(NUMBER_MAX, NUMBER_MAX, NUMBER_MAX)),
        ("the least numbers", numbers(1, 0, 0)),
    ];
    for (what, bytes) in fine {
        assert!(!refused_or_canonical(&bytes), "{what}");
    }
    let mut crowd: Vec<Holder> = many_readers(40).holders().cloned().collect();
    assert!(!refused_or_canonical(&raw(0, &crowd)));
    let twice = &crowd[39];
    crowd[39] = Holder::new(crowd[3].token(), twice.meta(), twice.fence, twice.since_ms(), twice.deadline_ms);
    assert_eq!(decode(&raw(0, &crowd)), Err(Malformed::Inconsistent), "a token twice in a crowd");
}

#[test]
fn only_the_shortest_form_of_an_integer_is_ours() {
    // The same lock, with one integer in turn written longer than need be.
    assert!(!refused_or_canonical(&hex("01 00 01 01 41 05 06 07 00")));
    for longer in [
        "01 00 fb0100 01 41 05 06 07 00",
        "01 00 fc01000000 01 41 05 06 07 00",
        "01 00 01 fb0100 41 05 06 07 00",
        "01 00 01 01 41 fb0500 06 07 00",
        "01 00 01 01 41 fbfa00 06 07 00",
        "01 00 01 01 41 fcffff0000 06 07 00",
        "01 00 01 01 41 fdffffffff00000000 06 07 00",
        "01 00 01 01 41 05 fc06000000 07 00",
        "01 00 01 01 41 05 06 fd0700000000000000 00",
        "01 00 01 01 41 05 06 07 fb0000",
    ] {
        assert!(decode(&hex(longer)).is_err(), "{longer}");
    }
    // A mode, an integer of 16 bytes and a reserved mark that do not exist.
    for nothing in [
        "01 02 01 01 41 05 06 07 00",
        "01 ff 01 01 41 05 06 07 00",
        "01 00 01 01 41 fe05000000000000000000000000000000 06 07 00",
        "01 00 01 01 41 ff 06 07 00",
    ] {
        assert_eq!(decode(&hex(nothing)), Err(Malformed::Syntax), "{nothing}");
    }
}

/// The payload says there are billions; the reader does not make room for them.
#[test]
fn huge_lengths_are_refused_without_room_being_made_for_them() {
    for payload in [
        "01 00 fcffffffff",
        "01 00 fdffffffffffffff7f",
        "01 00 fdffffffffffffffff",
        "01 00 fcffffffff 01 41 05 06 07 00",
        "01 00 01 fcffffffff 41 05 06 07 00",
        "01 00 01 fdffffffffffffffff 41 05 06 07 00",
        "01 00 01 01 41 05 06 07 fcffffffff",
        "01 01 01 01 41 05 06 07 fdffffffffffffff7f 00",
        "01 00 fb0004 01 41 05 06 07 00",
    ] {
        let bytes = hex(payload);
        let (result, peak) = peak_of(|| decode(&bytes));
        assert_eq!(result, Err(Malformed::Syntax), "{payload}");
        assert!(peak <= 64 * 1024, "{payload}: {peak} bytes");
    }
}

/// What `MEMORY USAGE` says: exact for a handful of holders, near for a crowd.
#[test]
#[cfg_attr(miri, ignore = "a crowd takes hours there")]
fn a_lock_knows_how_much_memory_it_takes() {
    for count in [1, 2, 8, 16, 17, 100, 3_000] {
        let bytes = encode(&many_readers(count));
        let (lock, growth) = growth_of(|| Box::new(decode(&bytes).unwrap()));
        let (stated, real) = (lock.heap_bytes(), growth.unsigned_abs());
        let tolerated = if count > 16 { real / 4 } else { 0 };
        assert!(stated.abs_diff(real) <= tolerated, "{count} readers: {stated} stated, {real} real");
    }
}
