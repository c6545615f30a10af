//! A maplet: which pieces of a log area may have a key. Where a filter for each piece would say yes or no, this says
//! which, with one look, and is hardly ever wrong: a stranger finds a candidate with a probability of one in 16 million for
//! each change in the area.
//!
//! It is a sorted array of one word of 32 bits a change: 24 bits of the key's hash, 8 of the piece's index. The manifest has the
//! hashes, three bytes a change, so that nobody has to read a piece to know what is in it: not after opening, and not after a
//! crash.
//!
//! Invariants:
//! 1. A piece that has a key is among the candidates for it.
//! 2. Candidates come newest first.
//! 3. The hash of a key is part of the format: it never changes.

use crate::node::Node;

/// The part of a key's hash that is kept: 24 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct KeyHash(u32);

impl KeyHash {
    /// Bytes of a hash in an edit.
    pub const LEN: usize = 3;

    pub fn of(key: &[u8]) -> Self {
        // The checksum's low bits are the better mixed ones for keys that differ at their end.
        Self(crc32c::crc32c(key).wrapping_mul(0x9e37_79b1) >> 8)
    }

    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let [low, middle, high, _] = self.0.to_le_bytes();
        [low, middle, high]
    }

    pub fn from_bytes([low, middle, high]: [u8; Self::LEN]) -> Self {
        Self(u32::from_le_bytes([low, middle, high, 0]))
    }

    fn word(self, index: usize) -> u32 {
        debug_assert!(index <= 0xff, "an index fits into a byte");
        self.0 << 8 | index as u32
    }
}

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Maplet {
    words: Box<[u32]>,
}

impl Maplet {
    /// The maplet of an area that has one more piece, with keys of these hashes.
    pub fn with(&self, index: usize, hashes: &[KeyHash]) -> Self {
        let mut fresh: Vec<u32> = hashes.iter().map(|hash| hash.word(index)).collect();
        fresh.sort_unstable();
        let mut words = Vec::with_capacity(self.words.len() + fresh.len());
        let mut old = self.words.iter().copied().peekable();
        for word in fresh {
            while let Some(before) = old.next_if(|before| *before < word) {
                words.push(before);
            }
            words.push(word);
        }
        words.extend(old);
        Self { words: words.into() }
    }

    /// The maplet of pieces that were read, oldest first.
    pub fn of<'a>(pieces: impl Iterator<Item = &'a Node>) -> Self {
        let mut words: Vec<u32> = pieces
            .enumerate()
            .flat_map(|(index, piece)| {
                (0..piece.count()).map(move |at| KeyHash::of(piece.key(at)).word(index))
            })
            .collect();
        words.sort_unstable();
        Self { words: words.into() }
    }

    /// The hashes of all pieces, piece by piece, of which there are so many.
    pub fn hashes(&self, pieces: usize) -> impl Iterator<Item = KeyHash> {
        let mut by_piece = vec![Vec::new(); pieces];
        for word in &self.words {
            if let Some(hashes) = by_piece.get_mut((word & 0xff) as usize) {
                hashes.push(KeyHash(word >> 8));
            }
        }
        by_piece.into_iter().flatten()
    }

    /// Indexes of the pieces that may have the key, newest first.
    pub fn candidates(&self, key: &[u8]) -> impl Iterator<Item = usize> {
        let hash = KeyHash::of(key).0;
        let end = self.words.partition_point(|word| word >> 8 <= hash);
        self.words[..end]
            .iter()
            .rev()
            .take_while(move |word| **word >> 8 == hash)
            .map(|word| (word & 0xff) as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_piece_that_has_a_key_is_named_newest_first(
            pieces in prop::collection::vec(prop::collection::btree_set(0u16..300, 1..40), 1..20))
        {
            let mut maplet = Maplet::default();
            for (index, keys) in pieces.iter().enumerate() {
                let hashes: Vec<_> = keys.iter().map(|key| KeyHash::of(&key.to_be_bytes())).collect();
                maplet = maplet.with(index, &hashes);
            }
            // What the manifest keeps of it makes the same maplet.
            let hashes: Vec<_> = maplet.hashes(pieces.len()).map(|hash| KeyHash::from_bytes(hash.to_bytes())).collect();
            let mut rest = &hashes[..];
            let mut again = Maplet::default();
            for (index, keys) in pieces.iter().enumerate() {
                let (of_piece, others) = rest.split_at(keys.len());
                again = again.with(index, of_piece);
                rest = others;
            }
            prop_assert_eq!(&again, &maplet);
            for key in 0u16..300 {
                let expected: Vec<_> =
                    (0..pieces.len()).rev().filter(|index| pieces[*index].contains(&key)).collect();
                let found: Vec<_> = maplet.candidates(&key.to_be_bytes()).collect();
                prop_assert!(found.is_sorted_by(|a, b| a >= b));
                prop_assert!(expected.iter().all(|index| found.contains(index)));
            }
        }
    }

    /// Databases out there were written with it.
    #[test]
    fn the_hash_of_a_key_never_changes() {
        let hashes = [&b"a"[..], b"sapwood", &[0; 16]].map(|key| KeyHash::of(key).to_bytes());
        assert_eq!(hashes, [[36, 16, 128], [204, 178, 7], [181, 89, 221]]);
    }

    #[test]
    fn strangers_hardly_ever_find_a_candidate() {
        let hashes: Vec<_> = (0u64..1000).map(|n| KeyHash::of(&(n * 3).to_be_bytes())).collect();
        let maplet = Maplet::default().with(0, &hashes);
        let wrong = (0u64..100_000)
            .filter(|n| maplet.candidates(&(n * 3 + 1).to_be_bytes()).next().is_some())
            .count();
        // 1000 × 100,000 / 2^24 = 6 are to be expected.
        assert!(wrong < 40, "{wrong} of 100,000");
    }
}
