//! Keys in the order of the numbers that they are made of.

/// 16 bytes of key: sorted by number.
pub fn key(number: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&number.to_be_bytes());
    key
}
