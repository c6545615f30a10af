//! Encoding of integers in files: little-endian fixed width and LEB128 varints. Also a reader that never runs
//! past the end.
//!
//! Invariants: the reader treats bytes as untrusted: it returns `None` instead of panicking, and allocates
//! nothing.

use std::cmp::Ordering;

/// Appends `value` in 7-bit groups, least significant first.
pub(crate) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// How many bytes [`put_varint`] appends.
pub(crate) const fn varint_len(value: u64) -> usize {
    let bits = 64 - (value | 1).leading_zeros() as usize;
    bits.div_ceil(7)
}

/// Same result as `a.cmp(b)`. Compares 16 and then 8 bytes at a time without a call, whose cost matters for
/// short keys.
#[inline]
pub(crate) fn compare_bytes(mut a: &[u8], mut b: &[u8]) -> Ordering {
    while let (Some((x, a_rest)), Some((y, b_rest))) = (a.split_first_chunk(), b.split_first_chunk()) {
        let (x, y) = (u128::from_be_bytes(*x), u128::from_be_bytes(*y));
        if x != y {
            return x.cmp(&y);
        }
        (a, b) = (a_rest, b_rest);
    }
    if let (Some((x, a_rest)), Some((y, b_rest))) = (a.split_first_chunk(), b.split_first_chunk()) {
        let (x, y) = (u64::from_be_bytes(*x), u64::from_be_bytes(*y));
        if x != y {
            return x.cmp(&y);
        }
        (a, b) = (a_rest, b_rest);
    }
    if a.is_empty() || b.is_empty() { a.len().cmp(&b.len()) } else { a.cmp(b) }
}

/// Reads values from the front of a byte slice.
#[derive(Clone, Debug)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Bytes left.
    pub fn remaining(&self) -> usize {
        self.rest.len()
    }

    pub fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(len)?;
        self.rest = rest;
        Some(taken)
    }

    pub fn u8(&mut self) -> Option<u8> {
        self.bytes(1).map(|b| b[0])
    }

    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    pub fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.rest.split_first_chunk::<N>()?;
        self.rest = rest;
        Some(*taken)
    }

    #[inline]
    pub fn varint(&mut self) -> Option<u64> {
        // Nearly all take one byte.
        if let Some((&byte @ 0..0x80, rest)) = self.rest.split_first() {
            self.rest = rest;
            return Some(u64::from(byte));
        }
        self.long_varint()
    }

    fn long_varint(&mut self) -> Option<u64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.u8()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return None;
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                // Only the shortest form is valid: a width computed from the value must be right.
                return (byte != 0 || shift == 0).then_some(value);
            }
        }
        None
    }

    /// A varint that is the length of something in memory.
    #[inline]
    pub fn length(&mut self) -> Option<usize> {
        usize::try_from(self.varint()?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn varints_round_trip_at_every_width() {
        for shift in 0..64 {
            for value in [1u64 << shift, (1u64 << shift) - 1, (1u64 << shift) | 1] {
                let mut bytes = Vec::new();
                put_varint(&mut bytes, value);
                assert_eq!(bytes.len(), varint_len(value), "{value}");
                let mut reader = Reader::new(&bytes);
                assert_eq!(reader.varint(), Some(value));
                assert_eq!(reader.remaining(), 0);
            }
        }
        assert_eq!(varint_len(u64::MAX), 10);
    }

    proptest! {
        #[test]
        fn bytes_compare_as_slices_do(
            alike in prop::collection::vec(any::<u8>(), 0..40),
            a in prop::collection::vec(prop::sample::select(&[0u8, 1, 0x7f, 0x80, 0xff][..]), 0..20),
            b in prop::collection::vec(prop::sample::select(&[0u8, 1, 0x7f, 0x80, 0xff][..]), 0..20))
        {
            let (a, b) = ([&alike[..], &a].concat(), [&alike[..], &b].concat());
            prop_assert_eq!(compare_bytes(&a, &b), a.cmp(&b));
        }

        #[test]
        fn a_length_is_what_a_varint_says(bytes in prop::collection::vec(any::<u8>(), 0..12)) {
            let (mut as_length, mut as_varint) = (Reader::new(&bytes), Reader::new(&bytes));
            let varint = as_varint.varint();
            prop_assert_eq!(as_length.length(), varint.map(|value| value as usize));
            prop_assert_eq!(varint.map(|_| as_length.remaining()), varint.map(|_| as_varint.remaining()));
        }
    }

    #[test]
    fn a_varint_that_overflows_or_ends_early_is_refused() {
        assert_eq!(Reader::new(&[0xff; 10]).varint(), None);
        assert_eq!(Reader::new(&[0x80; 3]).varint(), None);
        assert_eq!(Reader::new(&[]).varint(), None);
    }

    /// The fuzzer's first find: a key's length in more bytes than it needs was accepted by the check of a node, and then
    /// taken for shorter by the access to the key.
    #[test]
    fn a_varint_in_more_bytes_than_it_needs_is_refused() {
        assert_eq!(Reader::new(&[0x81, 0x80, 0x00]).varint(), None);
        assert_eq!(Reader::new(&[0x80, 0x00]).varint(), None);
        assert_eq!(Reader::new(&[0x00]).varint(), Some(0));
    }
}
