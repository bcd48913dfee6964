//! Hash slots of a cluster.

/// What of a key decides the slot: the text between the first `{` and the next `}`, or all of it.
pub(crate) fn hash_tag(key: &[u8]) -> &[u8] {
    let Some(open) = key.iter().position(|byte| *byte == b'{') else { return key };
    match key[open + 1..].iter().position(|byte| *byte == b'}') {
        None | Some(0) => key,
        Some(length) => &key[open + 1..open + 1 + length],
    }
}

/// The slot of a key: CRC16 (XMODEM) of its hash tag modulo 16384.
pub(crate) fn slot(key: &[u8]) -> u16 {
    let mut crc = 0u16;
    for byte in hash_tag(key) {
        crc ^= u16::from(*byte) << 8;
        for _ in 0..8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
        }
    }
    crc % 16384
}

/// Text without braces that can stand between braces to give the slot of the key: its own hash tag where that
/// is possible, and else any number with this slot.
pub(crate) fn tag_for(key: &str) -> String {
    const LONGEST: usize = 128;
    let tag = hash_tag(key.as_bytes());
    if let Ok(tag) = str::from_utf8(tag)
        && !tag.is_empty()
        && tag.len() <= LONGEST
        && !tag.contains(['{', '}'])
    {
        return tag.to_owned();
    }
    let wanted = slot(key.as_bytes());
    let mut number = 0u32;
    loop {
        let candidate = number.to_string();
        if slot(candidate.as_bytes()) == wanted {
            return candidate;
        }
        number += 1;
    }
}

#[cfg(test)]
#[path = "../tests/unit/slot.rs"]
mod tests;
