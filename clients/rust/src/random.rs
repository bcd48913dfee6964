//! Names that nobody can guess.

/// 128 random bits as 32 hexadecimal digits.
pub(crate) fn name() -> String {
    format!("{:032x}", rand::random::<u128>())
}
