//! When the machine was started: what tells whether the page cache may have more than the device.

/// The kernel's random number of this start; zeros where there is none.
pub(crate) fn id() -> [u8; 16] {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    parse(&text).unwrap_or_default()
}

/// The bytes of 32 hexadecimal digits, with hyphens between.
fn parse(text: &str) -> Option<[u8; 16]> {
    let digits = text.trim().bytes().filter(|byte| *byte != b'-');
    let digits: Vec<u8> =
        digits.map(|byte| Some((byte as char).to_digit(16)? as u8)).collect::<Option<_>>()?;
    let (pairs, rest) = digits.as_chunks::<2>();
    let bytes: Vec<u8> = pairs.iter().map(|[high, low]| high << 4 | low).collect();
    bytes.try_into().ok().filter(|_| rest.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_says_is_read() {
        let id = parse("01234567-89ab-cdef-0123-456789abcdef\n");
        assert_eq!(id, Some([1, 35, 69, 103, 137, 171, 205, 239, 1, 35, 69, 103, 137, 171, 205, 239]));
        for bad in
            ["", "0123", "01234567-89ab-cdef-0123-456789abcdeg", "01234567-89ab-cdef-0123-456789abcdef0"]
        {
            assert_eq!(parse(bad), None, "{bad}");
        }
        if cfg!(target_os = "linux") {
            assert!(self::id() != [0; 16] && self::id() == self::id());
        }
    }
}
