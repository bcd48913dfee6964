// SPDX-License-Identifier: MIT OR Apache-2.0

//! What an allocation really takes: allocators round up.

/// The bytes that an allocation of `bytes` takes from jemalloc, which Redis and Valkey use: multiples of
/// 16 up to 128, then four sizes to each doubling. Other allocators differ by a few per cent.
pub(crate) fn allocated(bytes: usize) -> usize {
    match bytes {
        0 => 0,
        1..=8 => 8,
        9..=128 => bytes.next_multiple_of(16),
        _ => bytes.next_multiple_of(bytes.next_power_of_two() / 8),
    }
}
