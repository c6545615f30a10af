//! Amounts of memory and data as people write them: 512M, 4G, 1000.

/// So many bytes: a number, and K, M or G for powers of 1024.
pub(crate) fn parse(text: &str) -> Result<u64, String> {
    let (digits, shift) = match text.trim_end_matches(['B', 'b']).trim_end_matches('i').char_indices().last()
    {
        Some((at, 'K' | 'k')) => (&text[..at], 10),
        Some((at, 'M' | 'm')) => (&text[..at], 20),
        Some((at, 'G' | 'g')) => (&text[..at], 30),
        _ => (text, 0),
    };
    let refuse = || format!("{text:?} is no number of bytes; 512M is one, or 4G, or 65536");
    let number: u64 = digits.parse().map_err(|_| refuse())?;
    number.checked_mul(1 << shift).ok_or_else(refuse)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_read_as_people_write_them() {
        let read = ["512M", "4G", "64KiB", "1000", "2mb"].map(|text| parse(text).unwrap());
        assert_eq!(read, [512 << 20, 4 << 30, 64 << 10, 1000, 2 << 20]);
        for text in ["", "M", "-1", "1.5G", "12T", "99999999999G", "é"] {
            assert!(parse(text).unwrap_err().contains("512M"), "{text}");
        }
    }
}
