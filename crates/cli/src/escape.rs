//! Bytes as text and back: `\t`, `\n`, `\r`, `\\` and `\xHH`. Everything that is valid UTF-8 and no control character
//! stands for itself.

/// Text for any bytes; [`unescape`] gives them back.
pub(crate) fn escape(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            match character {
                '\t' => text.push_str("\\t"),
                '\n' => text.push_str("\\n"),
                '\r' => text.push_str("\\r"),
                '\\' => text.push_str("\\\\"),
                // At the beginning of a file, a byte order mark would be taken for no part of it.
                other if other.is_control() || other == '\u{feff}' => {
                    let mut utf8 = [0; 4];
                    for byte in other.encode_utf8(&mut utf8).bytes() {
                        text.push_str(&format!("\\x{byte:02x}"));
                    }
                }
                other => text.push(other),
            }
        }
        for byte in chunk.invalid() {
            text.push_str(&format!("\\x{byte:02x}"));
        }
    }
    text
}

/// The bytes of an escaped text. The error is the offset of the escape that is none.
pub(crate) fn unescape(text: &[u8]) -> Result<Vec<u8>, usize> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut at = 0;
    while let Some(byte) = text.get(at) {
        if *byte != b'\\' {
            bytes.push(*byte);
            at += 1;
            continue;
        }
        let (value, len) = match text.get(at + 1) {
            Some(b't') => (b'\t', 2),
            Some(b'n') => (b'\n', 2),
            Some(b'r') => (b'\r', 2),
            Some(b'\\') => (b'\\', 2),
            Some(b'x') => (hex(text.get(at + 2..at + 4)).ok_or(at)?, 4),
            _ => return Err(at),
        };
        bytes.push(value);
        at += len;
    }
    Ok(bytes)
}

/// The beginning of a text of any length, for a message; escaped.
pub(crate) fn shown(text: &str) -> String {
    const CHARACTERS: usize = 60;
    let beginning: String = text.chars().take(CHARACTERS).collect();
    let more = if beginning.len() < text.len() { " ..." } else { "" };
    format!("{beginning:?}{more}")
}

/// The byte of two hexadecimal digits.
pub(crate) fn hex(digits: Option<&[u8]>) -> Option<u8> {
    let [high, low] = digits? else { return None };
    let digit = |byte: &u8| (*byte as char).to_digit(16);
    Some((digit(high)? * 16 + digit(low)?) as u8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn escapes_are_as_documented() {
        assert_eq!(escape("a\tb\n\\ö\0".as_bytes()), "a\\tb\\n\\\\ö\\x00");
        assert_eq!(escape(b"\xff"), "\\xff");
        assert_eq!(unescape(b"ab\\q"), Err(2));
        assert_eq!(unescape(b"\\x4"), Err(0));
    }

    #[test]
    fn messages_stay_short() {
        assert_eq!(shown("a\u{7}b"), "\"a\\u{7}b\"");
        assert!(shown(&"x".repeat(1 << 20)).len() < 80);
    }

    proptest! {
        #[test]
        fn any_bytes_round_trip(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let text = escape(&bytes);
            prop_assert!(!text.contains(['\t', '\n', '\r']));
            prop_assert_eq!(unescape(text.as_bytes()), Ok(bytes));
        }

        #[test]
        fn any_text_is_unescaped_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = unescape(&bytes);
        }
    }
}
