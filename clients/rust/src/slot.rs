// SPDX-License-Identifier: MIT OR Apache-2.0

//! Hash slots of a cluster.

/// The part of a key that decides the slot: the text between the first `{` and the next `}`, or all of it.
fn hash_tag(key: &str) -> &str {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}'));
    tag.map(|(tag, _)| tag).filter(|tag| !tag.is_empty()).unwrap_or(key)
}

/// The slot of a key: CRC16 (XMODEM) of its hash tag modulo 16384.
pub(crate) fn slot(key: &str) -> u16 {
    let mut crc = 0u16;
    for byte in hash_tag(key).bytes() {
        crc ^= u16::from(byte) << 8;
        for _ in 0..8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
        }
    }
    crc % 16384
}

/// A hash tag with the slot of the key: the key's own, or a number if that is long or cannot stand between braces.
pub(crate) fn tag_for(key: &str) -> String {
    const LONGEST: usize = 128;
    let tag = hash_tag(key);
    if tag.len() <= LONGEST && !tag.contains('}') {
        return tag.to_owned();
    }
    let mut numbers = (0u32..).map(|number| number.to_string());
    numbers.find(|number| slot(number) == slot(key)).expect("each slot has a number")
}
