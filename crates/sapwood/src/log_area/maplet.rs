//! A maplet: says which of a few runs may have a key. A filter for each run would say yes or no; a maplet
//! names the run with one look, and is hardly ever wrong: for a key that no run has, it finds a candidate
//! with a probability of one in two million for each change in the runs.
//!
//! ```text
//! entries  hash 0 run 2 | hash 1 run 0 | hash 1 run 2 | …     ascending: 21 bits of the key's hash, and the run's index
//!
//! tops     a bit 1 for each entry, and a bit 0 behind those of each bucket: all entries whose hashes begin with the same 5 + i bits
//! words    2 bytes for each entry: the other 16 - i bits of its hash, and i bits, 0 to 3, that tell the runs apart
//! ```
//! What sorted numbers have in common is not stored with each of them (Elias, JACM 1974; Fano 1971). This
//! takes 2.2 to 2.4 bytes a change in place of three, where these were a half of the log areas' memory. The
//! manifest has the hashes, three bytes a change, so that no piece has to be read to know its keys, neither
//! after opening nor after a crash.
//!
//! Invariants:
//! 1. A run that has a key is among the candidates for it.
//! 2. Candidates come newest first.
//! 3. The hash of a key is part of the format: it never changes. The maplet keeps all of its bits.

use crate::storage::node::Node;
use std::ops::Range;

/// Most runs that share a maplet: as many as three bits can tell apart.
pub(crate) const RUNS: usize = 1 << RUN_BITS;
const RUN_BITS: u32 = 3;
const RUN_MASK: u32 = RUNS as u32 - 1;
/// Bits of a hash, and how many of them choose the bucket if there is one run: with three for the run they fit three
/// bytes.
const HASH_BITS: u32 = 21;
const BUCKET_BITS: u32 = HASH_BITS - u16::BITS;

/// The part of a key's hash that is kept: 21 bits, above the bits of a run's index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct KeyHash(u32);

impl KeyHash {
    /// Bytes of a hash in an edit, as the format has it.
    pub const LEN: usize = 3;

    pub fn of(key: &[u8]) -> Self {
        // The checksum's low bits are the better mixed ones for keys that differ at their end.
        Self((crc32c::crc32c(key).wrapping_mul(0x9e37_79b1) >> 8) & !RUN_MASK)
    }

    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let [low, middle, high, _] = self.0.to_le_bytes();
        [low, middle, high]
    }

    /// Ignores the bits of the run's index.
    pub fn from_bytes([low, middle, high]: [u8; Self::LEN]) -> Self {
        Self(u32::from_le_bytes([low, middle, high, 0]) & !RUN_MASK)
    }

    /// The entry of a key with this hash in the run of this index.
    pub fn in_run(self, run: usize) -> Entry {
        debug_assert!(run < RUNS, "an index fits into its bits");
        Entry(self.0 | run as u32)
    }
}

/// A hash, and the index of a run that has a key with this hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Entry(u32);

impl Entry {
    pub fn hash(self) -> KeyHash {
        KeyHash(self.0 & !RUN_MASK)
    }

    pub fn run(self) -> usize {
        (self.0 & RUN_MASK) as usize
    }
}

/// Number of bits that tell so many runs apart.
fn run_bits(runs: usize) -> u32 {
    runs.next_power_of_two().trailing_zeros()
}

/// The entries of a piece of the run with this index, in the order of keys.
pub(crate) fn entries_of(run: usize, piece: &Node) -> impl Iterator<Item = Entry> {
    (0..piece.count()).map(move |at| KeyHash::of(piece.key(at)).in_run(run))
}

/// See the module.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Maplet<'a> {
    /// The `i` of the module's drawing.
    bits: u32,
    tops: &'a [u8],
    words: &'a [[u8; 2]],
}

impl<'a> Maplet<'a> {
    /// Appends the maplet of `runs` runs with these entries, which ascend.
    pub fn put(runs: usize, entries: &[Entry], out: &mut Vec<u8>) {
        debug_assert!(entries.is_sorted());
        let bits = run_bits(runs);
        let start = out.len();
        out.resize(start + Self::tops_len(runs, entries.len()), 0);
        for (index, entry) in entries.iter().enumerate() {
            let at = index + (entry.0 >> RUN_BITS >> (u16::BITS - bits)) as usize;
            out[start + at / 8] |= 1 << (at % 8);
        }
        for entry in entries {
            let low = (entry.0 >> RUN_BITS << bits) as u16;
            out.extend_from_slice(&(low | entry.run() as u16).to_le_bytes());
        }
    }

    /// Splits the maplet of so many runs and entries off the front of what [`Maplet::put`] appended.
    pub fn split(runs: usize, entries: usize, memory: &'a [u8]) -> (Self, &'a [u8]) {
        let (tops, rest) = memory.split_at(Self::tops_len(runs, entries));
        let (words, rest) = rest.split_at(2 * entries);
        (Self { bits: run_bits(runs), tops, words: words.as_chunks().0 }, rest)
    }

    fn tops_len(runs: usize, entries: usize) -> usize {
        (entries + (1 << (BUCKET_BITS + run_bits(runs)))).div_ceil(8)
    }

    /// The tops, eight bytes at a time; the last eight are padded with `fill`.
    fn eights(self, fill: u8) -> impl Iterator<Item = u64> + use<'a> {
        let (eights, rest) = self.tops.as_chunks::<8>();
        let mut last = [fill; 8];
        last[..rest.len()].copy_from_slice(rest);
        let last = (!rest.is_empty()).then_some(last);
        eights.iter().copied().chain(last).map(u64::from_le_bytes)
    }

    /// The bucket's ones in the tops: they begin behind the zero of the bucket before, and end with its own.
    fn ones_of(&self, bucket: usize) -> Range<usize> {
        let mut begin = (bucket == 0).then_some(0);
        let mut left = bucket as u32;
        for (index, eight) in self.eights(0xff).enumerate() {
            let mut zeros = !eight;
            if begin.is_none() {
                let count = zeros.count_ones();
                if left > count {
                    left -= count;
                    continue;
                }
                (1..left).for_each(|_| zeros &= zeros - 1);
                begin = Some(index * 64 + zeros.trailing_zeros() as usize + 1);
                zeros &= zeros - 1;
            }
            if let Some(begin) = begin
                && zeros != 0
            {
                return begin..index * 64 + zeros.trailing_zeros() as usize;
            }
        }
        let end = self.tops.len() * 8;
        begin.unwrap_or(end)..end
    }

    fn entry(&self, bucket: usize, word: [u8; 2]) -> Entry {
        let word = u32::from(u16::from_le_bytes(word));
        let hash = (bucket as u32) << (u16::BITS - self.bits) | word >> self.bits;
        Entry(hash << RUN_BITS | word & ((1 << self.bits) - 1))
    }

    /// All entries, ascending.
    pub fn entries(self) -> impl Iterator<Item = Entry> + 'a {
        let places = self.eights(0).enumerate().flat_map(|(index, mut ones)| {
            std::iter::from_fn(move || {
                let place = (ones != 0).then(|| index * 64 + ones.trailing_zeros() as usize);
                ones &= ones.wrapping_sub(1);
                place
            })
        });
        places.zip(self.words).enumerate().map(move |(index, (at, word))| self.entry(at - index, *word))
    }

    /// Reads a little of what [`Maplet::candidates`] will look at. This waits for no other read, so several maplets
    /// come from memory at the same time.
    pub fn touch(self, hash: KeyHash) -> u8 {
        // Hashes are spread evenly, so the entry is near this one, mostly in the same cache line.
        let near = (self.words.len() as u64 * u64::from(hash.0 >> RUN_BITS)) >> HASH_BITS;
        let word = self.words.get(near as usize).map_or(0, |word| word[0]);
        word ^ self.tops.first().copied().unwrap_or(0)
    }

    /// Indexes of the runs that may have a key with this hash, newest first, each once.
    pub fn candidates(self, hash: KeyHash) -> impl Iterator<Item = usize> + 'a {
        let bucket = (hash.0 >> RUN_BITS >> (u16::BITS - self.bits)) as usize;
        // The number of ones before the bucket's is the index of its first word.
        let ones = self.ones_of(bucket);
        let words = self.words.get(ones.start - bucket..ones.end - bucket).unwrap_or_default();
        let end = words.partition_point(|word| self.entry(bucket, *word).hash() <= hash);
        let entries = words[..end].iter().rev().map(move |word| self.entry(bucket, *word));
        // Two keys of a run may have the same hash.
        let mut last = None;
        entries
            .take_while(move |entry| entry.hash() == hash)
            .map(Entry::run)
            .filter(move |run| last.replace(*run) != Some(*run))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A maplet of runs with keys of these hashes.
    fn with_maplet<T>(runs: &[Vec<KeyHash>], look: impl FnOnce(Maplet<'_>) -> T) -> T {
        let entries =
            runs.iter().enumerate().flat_map(|(run, hashes)| hashes.iter().map(move |hash| hash.in_run(run)));
        let mut entries: Vec<_> = entries.collect();
        entries.sort_unstable();
        let mut memory = Vec::new();
        Maplet::put(runs.len(), &entries, &mut memory);
        memory.push(7);
        let (maplet, behind) = Maplet::split(runs.len(), entries.len(), &memory);
        assert_eq!(behind, [7]);
        look(maplet)
    }

    #[test]
    fn a_layer_with_two_keys_of_one_hash_is_named_once() {
        let hash = KeyHash::of(b"key");
        let found = |maplet: Maplet<'_>| maplet.candidates(hash).collect::<Vec<_>>();
        assert_eq!(with_maplet(&[vec![hash; 3], vec![hash; 2]], found), [1, 0]);
    }

    #[test]
    fn hashes_at_both_ends_and_all_in_one_bucket_are_found() {
        let ends = [0, 1, (1 << HASH_BITS) - 2, (1 << HASH_BITS) - 1].map(|hash| KeyHash(hash << RUN_BITS));
        let bucket: Vec<_> = (0..200).map(|low| KeyHash((77 << 10 | low) << RUN_BITS)).collect();
        for runs in 1..=RUNS {
            for hashes in [&ends[..], &bucket] {
                with_maplet(&vec![hashes.to_vec(); runs], |maplet| {
                    for hash in hashes {
                        let found: Vec<_> = maplet.candidates(*hash).collect();
                        assert_eq!(found, (0..runs).rev().collect::<Vec<_>>());
                    }
                    let beside = KeyHash(hashes[1].0 + (500 << RUN_BITS));
                    assert_eq!(maplet.candidates(beside).next(), None);
                });
            }
        }
    }

    proptest! {
        #[test]
        fn every_layer_that_has_a_key_is_named_newest_first(
            runs in prop::collection::vec(prop::collection::btree_set(0u16..300, 0..40), 1..=RUNS))
        {
            let of = |key: u16| KeyHash::of(&key.to_be_bytes());
            let hashes: Vec<Vec<_>> = runs.iter().map(|keys| keys.iter().copied().map(of).collect()).collect();
            with_maplet(&hashes, |maplet| {
                prop_assert!(maplet.entries().is_sorted());
                // What the manifest keeps of it is what it was made of.
                for (run, hashes) in hashes.iter().enumerate() {
                    let mut sorted = hashes.clone();
                    sorted.sort_unstable();
                    let of_run = maplet.entries().filter(|entry| entry.run() == run);
                    let kept = of_run.map(|entry| KeyHash::from_bytes(entry.hash().to_bytes()));
                    prop_assert_eq!(kept.collect::<Vec<_>>(), sorted);
                }
                for key in 0u16..300 {
                    let has = |index: &usize| hashes[*index].contains(&of(key));
                    let expected: Vec<_> = (0..runs.len()).rev().filter(has).collect();
                    prop_assert_eq!(maplet.candidates(of(key)).collect::<Vec<_>>(), expected);
                }
                Ok(())
            })?;
        }
    }

    /// Databases out there were written with it.
    #[test]
    fn the_hash_of_a_key_never_changes() {
        let hashes = [&b"a"[..], b"sapwood", &[0; 16]].map(|key| KeyHash::of(key).to_bytes());
        assert_eq!(hashes, [[32, 16, 128], [200, 178, 7], [176, 89, 221]]);
        assert_eq!(KeyHash::from_bytes([36, 16, 128]), KeyHash::of(b"a"));
    }

    #[test]
    fn strangers_hardly_ever_find_a_candidate() {
        let hashes: Vec<_> = (0u64..1000).map(|n| KeyHash::of(&(n * 3).to_be_bytes())).collect();
        let wrong = with_maplet(&[hashes], |maplet| {
            let is_found =
                |n: &u64| maplet.candidates(KeyHash::of(&(n * 3 + 1).to_be_bytes())).next().is_some();
            (0u64..100_000).filter(is_found).count()
        });
        // 1000 × 100,000 / 2^21 = 48 are to be expected.
        assert!(wrong < 150, "{wrong} of 100,000");
    }
}
