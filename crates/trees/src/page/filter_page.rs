//! What is read of a part of a run before its blocks are: the first key of each, and a Bloom filter of all their keys.
//!
//! ```text
//! body: n = count of the header
//!  offset size
//!       0    4  m: bytes of the filter; 0 if there is none
//!       4    4  probes: bits that each key sets
//!       8   8 n  first key of each block
//!   8+8 n     m  the filter
//! ```
//! The header's id is the number of the page in its file, its sequence the number of the run.
//!
//! Invariants:
//! 1. A filter never denies a key that it was built with. (Bloom, "Space/Time Trade-offs in Hash Coding with Allowable
//!    Errors", CACM 13(7), 1970.)
//! 2. First keys ascend.

use super::header::{HEADER, Header, Kind, bytes_at, open, seal};
use super::{Key, NodeId};
use crate::{Error, Result};

/// Bytes before the first keys.
const BEFORE: usize = 8;
/// More bits for a key than any filter needs: one in 2^22 keys would be taken for present.
const PROBES_MAX: u32 = 30;

/// A Bloom filter; an empty one denies nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Filter {
    probes: u32,
    bytes: Vec<u8>,
}

/// A key, well mixed. (The finalizer of SplitMix64: Steele, Lea and Flood, OOPSLA 2014.)
fn mixed(key: Key) -> u64 {
    let key = key.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let key = (key ^ key >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let key = (key ^ key >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    key ^ key >> 31
}

impl Filter {
    /// Of these keys, with so many bits for each; none if that is 0.
    pub fn of(keys: &[Key], bits_per_key: usize) -> Self {
        let bytes = (keys.len() * bits_per_key).div_ceil(8);
        // ln 2 bits for each probe make the fewest false positives.
        let probes = (bits_per_key as f64 * std::f64::consts::LN_2).round().clamp(1.0, PROBES_MAX as f64);
        let mut filter = Self { probes: if bytes == 0 { 0 } else { probes as u32 }, bytes: vec![0; bytes] };
        for key in keys {
            for bit in filter.bits(*key) {
                filter.bytes[bit / 8] |= 1 << (bit % 8);
            }
        }
        filter
    }

    /// The bits of a key, by two hashes. (Kirsch and Mitzenmacher, ESA 2006.)
    fn bits(&self, key: Key) -> impl Iterator<Item = usize> + use<> {
        let (hash, bits) = (mixed(key), 8 * self.bytes.len() as u64);
        let (first, step) = (hash & 0xffff_ffff, hash >> 32 | 1);
        (0..u64::from(self.probes)).map(move |probe| ((first + probe * step) % bits) as usize)
    }

    /// Whether a key may be there. If not, it is not.
    pub fn may_hold(&self, key: Key) -> bool {
        self.bits(key).all(|bit| self.bytes[bit / 8] >> (bit % 8) & 1 == 1)
    }
}

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FilterPage {
    /// First key of each block.
    pub firsts: Vec<Key>,
    pub filter: Filter,
}

/// Blocks of so many entries that one page can be for.
pub(crate) fn blocks_max(page_len: usize, entries: usize, bits_per_key: usize) -> usize {
    let body = page_len - HEADER - BEFORE;
    // In bits: a block takes a first key and its keys' bits. What rounds the filter up to bytes fits if the bits do.
    8 * body / (64 + entries * bits_per_key)
}

impl FilterPage {
    /// The block where a key would be; none if it may not be in any.
    pub fn block_of(&self, key: Key) -> Option<usize> {
        let block = self.firsts.partition_point(|first| *first <= key).checked_sub(1)?;
        self.filter.may_hold(key).then_some(block)
    }

    pub fn encode(&self, id: NodeId, sequence: u64, page: &mut [u8]) {
        page[HEADER..].fill(0);
        let body = &mut page[HEADER..];
        body[..4].copy_from_slice(&(self.filter.bytes.len() as u32).to_le_bytes());
        body[4..8].copy_from_slice(&self.filter.probes.to_le_bytes());
        for (first, word) in self.firsts.iter().zip(body[BEFORE..].chunks_exact_mut(8)) {
            word.copy_from_slice(&first.to_le_bytes());
        }
        let at = BEFORE + 8 * self.firsts.len();
        body[at..at + self.filter.bytes.len()].copy_from_slice(&self.filter.bytes);
        let count = self.firsts.len() as u16;
        seal(page, &Header { kind: Kind::Filter, level: 0, count, id, sequence, extra: 0 });
    }

    /// Takes it off a page that was read from `offset` of `file`, for run `sequence`.
    pub fn decode(page: &[u8], file: &str, offset: u64, id: NodeId, sequence: u64) -> Result<Self> {
        let header = open(page, file, offset, id)?;
        let number = |at: usize| u32::from_le_bytes(bytes_at(page, HEADER + at));
        let (len, probes) = (number(0) as usize, number(4));
        let count = usize::from(header.count);
        let end = HEADER + BEFORE + 8 * count;
        let sound = header.kind == Kind::Filter
            && header.sequence == sequence
            && count > 0
            && (len == 0) == (probes == 0)
            && probes <= PROBES_MAX;
        let bytes = page.get(end..).and_then(|rest| rest.get(..len)).filter(|_| sound);
        let Some(bytes) = bytes else {
            let expected = format!("a filter page of run {sequence} that fits its page");
            let found = format!(
                "{:?} of run {} with {count} blocks, {len} bytes of filter, {probes} probes",
                header.kind, header.sequence
            );
            return Err(Error::corrupt(file, offset, "filter page", expected, found));
        };
        let firsts: Vec<Key> =
            (0..count).map(|index| u64::from_le_bytes(bytes_at(page, HEADER + BEFORE + 8 * index))).collect();
        if !firsts.is_sorted_by(|one, two| one < two) {
            return Err(Error::corrupt(file, offset, "first keys of blocks", "ascending keys", "others"));
        }
        Ok(Self { firsts, filter: Filter { probes, bytes: bytes.to_vec() } })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_denies_no_key_of_its_own_and_most_others() {
        for (bits, false_max) in [(10, 0.02), (5, 0.12), (16, 0.002)] {
            let keys: Vec<Key> = (0..3000).map(|key| 2 * key).collect();
            let filter = Filter::of(&keys, bits);
            assert!(keys.iter().all(|key| filter.may_hold(*key)));
            let wrong = (0..30_000).filter(|key| filter.may_hold(2 * key + 1)).count() as f64 / 30_000.0;
            assert!(wrong > 0.0 && wrong < false_max, "{wrong} at {bits} bits");
        }
        assert!(Filter::of(&[1, 2], 0).may_hold(3), "without bits nothing is denied");
    }

    #[test]
    fn as_many_blocks_fit_as_are_told() {
        for (page_len, entries, bits) in [(4096, 250, 10), (512, 5, 10), (512, 29, 3), (4096, 250, 0)] {
            let blocks = blocks_max(page_len, entries, bits);
            let keys: Vec<Key> = (0..(blocks * entries) as u64).collect();
            let firsts = keys.iter().copied().step_by(entries).collect();
            let page = FilterPage { firsts, filter: Filter::of(&keys, bits) };
            let len = |blocks: usize| BEFORE + 8 * blocks + (blocks * entries * bits).div_ceil(8);
            assert!(len(blocks) <= page_len - HEADER && len(blocks + 1) > page_len - HEADER);
            let mut bytes = vec![0xff; page_len];
            page.encode(NodeId(7), 5, &mut bytes);
            assert_eq!(FilterPage::decode(&bytes, "f", 0, NodeId(7), 5).unwrap(), page);
            assert!(FilterPage::decode(&bytes, "f", 0, NodeId(7), 4).is_err());
        }
        assert_eq!(blocks_max(4096, 250, 10), 12);
    }

    #[test]
    fn what_does_not_fit_its_page_is_refused() {
        let sealed = |count: u16, len: u32, probes: u32, firsts: [Key; 2]| {
            let mut page = vec![0; 512];
            page[HEADER..HEADER + 4].copy_from_slice(&len.to_le_bytes());
            page[HEADER + 4..HEADER + 8].copy_from_slice(&probes.to_le_bytes());
            for (index, first) in firsts.iter().enumerate() {
                page[HEADER + 8 + 8 * index..HEADER + 16 + 8 * index].copy_from_slice(&first.to_le_bytes());
            }
            let header = Header { kind: Kind::Filter, level: 0, count, id: NodeId(1), sequence: 1, extra: 0 };
            seal(&mut page, &header);
            FilterPage::decode(&page, "f", 0, NodeId(1), 1).is_ok()
        };
        assert!(sealed(2, 10, 3, [1, 2]));
        for wrong in [
            sealed(0, 10, 3, [1, 2]),
            sealed(100, 10, 3, [1, 2]),
            sealed(2, 500, 3, [1, 2]),
            sealed(2, u32::MAX, 3, [1, 2]),
            sealed(2, 10, 0, [1, 2]),
            sealed(2, 0, 3, [1, 2]),
            sealed(2, 10, 31, [1, 2]),
            sealed(2, 10, 3, [2, 2]),
        ] {
            assert!(!wrong);
        }
    }
}
