//! What a page's spare area says of it, so that recovery can do without any table.
//!
//! | offset | bytes | what |
//! |---|---|---|
//! | 0 | 4 | logical page, or what `kind` makes of it |
//! | 4 | 7 | version: grows with every write of the host, and is kept by copies |
//! | 11 | 1 | kind |
//! | 12 | 4 | CRC-32C of the twelve bytes before |
//!
//! All little-endian. An erased page is all 0xFF, which is no valid record.

/// Bytes of a record.
pub(crate) const SPARE: usize = 16;

/// What a spare area says. Of two pages with the same kind and number, the one with the higher version counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spare {
    pub number: u32,
    pub version: u64,
    pub kind: u8,
}

/// What was found in a spare area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Erased,
    Valid(Spare),
    Damaged,
}

impl Spare {
    pub(crate) fn encode(&self) -> [u8; SPARE] {
        let mut bytes = [0; SPARE];
        bytes[..4].copy_from_slice(&self.number.to_le_bytes());
        bytes[4..12].copy_from_slice(&(self.version | u64::from(self.kind) << 56).to_le_bytes());
        let crc = crc32c::crc32c(&bytes[..12]);
        bytes[12..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; SPARE]) -> Found {
        if bytes.iter().all(|byte| *byte == 0xff) {
            return Found::Erased;
        }
        let [a, b, c, d, rest @ ..] = *bytes;
        let [v0, v1, v2, v3, v4, v5, v6, kind, e, f, g, h] = rest;
        if crc32c::crc32c(&bytes[..12]) != u32::from_le_bytes([e, f, g, h]) {
            return Found::Damaged;
        }
        Found::Valid(Self {
            number: u32::from_le_bytes([a, b, c, d]),
            version: u64::from_le_bytes([v0, v1, v2, v3, v4, v5, v6, 0]),
            kind,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_found_again_and_damage_is_noticed() {
        let spare = Spare { number: 0x0102_0304, version: 0x0000_1122_3344_5566, kind: 7 };
        let bytes = spare.encode();
        assert_eq!(bytes[..12], [4, 3, 2, 1, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 0, 7]);
        assert_eq!(Spare::decode(&bytes), Found::Valid(spare));
        assert_eq!(Spare::decode(&[0xff; SPARE]), Found::Erased);
        for bit in 0..SPARE * 8 {
            let mut damaged = bytes;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Spare::decode(&damaged), Found::Damaged, "bit {bit}");
        }
    }
}
