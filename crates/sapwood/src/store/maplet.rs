//! A maplet: which pieces of a log area may have a key. Where a filter for each piece would say yes or no, this says
//! which, with one look, and is hardly ever wrong: a stranger finds a candidate with a probability of one in 16 million for
//! each change in the area.
//!
//! It is a sorted array of one word of 32 bits a change: 24 bits of the key's hash, 8 of the piece's index.
//!
//! Invariants:
//! 1. A piece that has a key is among the candidates for it.
//! 2. Candidates come newest first.

use crate::node::Node;

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Maplet {
    words: Box<[u32]>,
}

/// The bits of a hash that are kept, in the place where they are kept.
const HASH: u32 = !0xff;

fn hash(key: &[u8]) -> u32 {
    // The checksum's low bits are the better mixed ones for keys that differ at their end.
    crc32c::crc32c(key).wrapping_mul(0x9e37_79b1) & HASH
}

impl Maplet {
    /// The maplet of an area that has one more piece, with these keys.
    pub fn with<'a>(&self, index: usize, keys: impl Iterator<Item = &'a [u8]>) -> Self {
        debug_assert!(index <= 0xff, "an index fits into a byte");
        let mut fresh: Vec<u32> = keys.map(|key| hash(key) | index as u32).collect();
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
    pub fn of(pieces: &[Node]) -> Self {
        let mut words: Vec<u32> = pieces
            .iter()
            .enumerate()
            .flat_map(|(index, piece)| (0..piece.count()).map(move |at| hash(piece.key(at)) | index as u32))
            .collect();
        words.sort_unstable();
        Self { words: words.into() }
    }

    /// Indexes of the pieces that may have the key, newest first.
    pub fn candidates(&self, key: &[u8]) -> impl Iterator<Item = usize> {
        let hash = hash(key);
        let end = self.words.partition_point(|word| word & HASH <= hash);
        self.words[..end]
            .iter()
            .rev()
            .take_while(move |word| **word & HASH == hash)
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
                let keys: Vec<_> = keys.iter().map(|key| key.to_be_bytes()).collect();
                maplet = maplet.with(index, keys.iter().map(|key| &key[..]));
            }
            for key in 0u16..300 {
                let expected: Vec<_> =
                    (0..pieces.len()).rev().filter(|index| pieces[*index].contains(&key)).collect();
                let found: Vec<_> = maplet.candidates(&key.to_be_bytes()).collect();
                prop_assert!(found.is_sorted_by(|a, b| a >= b));
                prop_assert!(expected.iter().all(|index| found.contains(index)));
            }
        }
    }

    #[test]
    fn strangers_hardly_ever_find_a_candidate() {
        let keys: Vec<_> = (0u64..1000).map(|n| (n * 3).to_be_bytes()).collect();
        let maplet = Maplet::default().with(0, keys.iter().map(|key| &key[..]));
        let wrong = (0u64..100_000)
            .filter(|n| maplet.candidates(&(n * 3 + 1).to_be_bytes()).next().is_some())
            .count();
        // 1000 × 100,000 / 2^24 = 6 are to be expected.
        assert!(wrong < 40, "{wrong} of 100,000");
    }
}
