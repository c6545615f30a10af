//! Keys as people write them: a word and decimal digits.

/// 16 bytes of key: sorted by number.
pub fn key(number: u64) -> [u8; 16] {
    let mut key = *b"user000000000000";
    let digits = format!("{number:012}");
    key[4..].copy_from_slice(digits.as_bytes());
    key
}
