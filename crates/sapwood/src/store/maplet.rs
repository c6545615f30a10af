//! A maplet: which of a few layers may have a key. Where a filter for each layer would say yes or no, this says
//! which, with one look, and is hardly ever wrong: a stranger finds a candidate with a probability of one in two million for
//! each change in the layers.
//!
//! ```text
//! words  hash 0 layer 2 | hash 1 layer 0 | hash 1 layer 2 | …       sorted, 3 bytes each: 21 bits of the key's hash, 3 of the layer's index
//! ```
//! Three bytes a change and not four: a quarter of what log areas take of the memory, for a second read in one of some 5,000 gets, in a block
//! of 400 logged changes, where it would be one in 40,000. The manifest has the hashes, three bytes a change, so that nobody has to read a
//! piece to know what is in it: not after opening, and not after a crash.
//!
//! Invariants:
//! 1. A layer that has a key is among the candidates for it.
//! 2. Candidates come newest first.
//! 3. The hash of a key is part of the format: it never changes.

use crate::node::Node;

/// Most layers that share a maplet: what three bits tell apart.
pub(crate) const LAYERS: usize = 1 << LAYER_BITS;
const LAYER_BITS: u32 = 3;
const LAYER_MASK: u32 = LAYERS as u32 - 1;

/// The part of a key's hash that is kept: 21 bits, above the place of a layer's index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct KeyHash(u32);

impl KeyHash {
    /// Bytes of a hash in an edit.
    pub const LEN: usize = 3;

    pub fn of(key: &[u8]) -> Self {
        // The checksum's low bits are the better mixed ones for keys that differ at their end.
        Self((crc32c::crc32c(key).wrapping_mul(0x9e37_79b1) >> 8) & !LAYER_MASK)
    }

    pub fn to_bytes(self) -> [u8; Self::LEN] {
        self.word(0).0
    }

    /// What stands in the place of an index is not looked at.
    pub fn from_bytes(bytes: [u8; Self::LEN]) -> Self {
        Word(bytes).hash()
    }

    fn word(self, layer: usize) -> Word {
        debug_assert!(layer < LAYERS, "an index fits into its bits");
        let [low, middle, high, _] = (self.0 | layer as u32).to_le_bytes();
        Word([low, middle, high])
    }
}

/// A hash and the index of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Word([u8; KeyHash::LEN]);

impl Word {
    fn number(self) -> u32 {
        let [low, middle, high] = self.0;
        u32::from_le_bytes([low, middle, high, 0])
    }

    fn hash(self) -> KeyHash {
        KeyHash(self.number() & !LAYER_MASK)
    }

    fn layer(self) -> usize {
        (self.number() & LAYER_MASK) as usize
    }
}

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Maplet {
    words: Box<[Word]>,
}

impl Maplet {
    /// The maplet of so many layers and one more, with keys of these hashes.
    pub fn with(&self, layers: usize, hashes: &[KeyHash]) -> Self {
        let mut fresh: Vec<_> = hashes.iter().map(|hash| hash.word(layers)).collect();
        fresh.sort_unstable_by_key(|word| word.number());
        let mut words = Vec::with_capacity(self.words.len() + fresh.len());
        let mut old = self.words.iter().copied().peekable();
        for word in fresh {
            while let Some(before) = old.next_if(|before| before.number() < word.number()) {
                words.push(before);
            }
            words.push(word);
        }
        words.extend(old);
        Self { words: words.into() }
    }

    /// The maplet of pieces that were read, beside the index of the layer that each belongs to.
    pub fn of<'a>(pieces: impl Iterator<Item = (usize, &'a Node)>) -> Self {
        let of_piece = |(layer, piece): (usize, &'a Node)| {
            (0..piece.count()).map(move |at| KeyHash::of(piece.key(at)).word(layer))
        };
        let mut words: Vec<_> = pieces.flat_map(of_piece).collect();
        words.sort_unstable_by_key(|word| word.number());
        Self { words: words.into() }
    }

    /// Changes in the layers.
    pub fn len(&self) -> usize {
        self.words.len()
    }

    /// The hashes of one layer.
    pub fn hashes(&self, layer: usize) -> impl Iterator<Item = KeyHash> {
        self.words.iter().filter(move |word| word.layer() == layer).map(|word| word.hash())
    }

    /// Indexes of the layers that may have a key of this hash, newest first, each once.
    pub fn candidates(&self, hash: KeyHash) -> impl Iterator<Item = usize> {
        let end = self.words.partition_point(|word| word.hash() <= hash);
        let words = self.words[..end].iter().rev().take_while(move |word| word.hash() == hash);
        // Two keys of a layer may have one hash.
        let mut last = None;
        words.map(|word| word.layer()).filter(move |layer| last.replace(*layer) != Some(*layer))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_layer_with_two_keys_of_one_hash_is_named_once() {
        let hash = KeyHash::of(b"key");
        let maplet = Maplet::default().with(0, &[hash; 3]).with(1, &[hash; 2]);
        assert_eq!(maplet.candidates(hash).collect::<Vec<_>>(), [1, 0]);
    }

    proptest! {
        #[test]
        fn every_layer_that_has_a_key_is_named_newest_first(
            layers in prop::collection::vec(prop::collection::btree_set(0u16..300, 1..40), 1..=LAYERS))
        {
            let mut maplet = Maplet::default();
            for (index, keys) in layers.iter().enumerate() {
                let hashes: Vec<_> = keys.iter().map(|key| KeyHash::of(&key.to_be_bytes())).collect();
                maplet = maplet.with(index, &hashes);
            }
            prop_assert_eq!(maplet.len(), layers.iter().map(|keys| keys.len()).sum::<usize>());
            // What the manifest keeps of it makes the same maplet.
            let mut again = Maplet::default();
            for index in 0..layers.len() {
                let bytes = maplet.hashes(index).map(KeyHash::to_bytes);
                again = again.with(index, &bytes.map(KeyHash::from_bytes).collect::<Vec<_>>());
            }
            prop_assert_eq!(&again, &maplet);
            for key in 0u16..300 {
                let expected: Vec<_> =
                    (0..layers.len()).rev().filter(|index| layers[*index].contains(&key)).collect();
                let found: Vec<_> = maplet.candidates(KeyHash::of(&key.to_be_bytes())).collect();
                prop_assert!(found.is_sorted_by(|a, b| a >= b));
                prop_assert!(expected.iter().all(|index| found.contains(index)));
            }
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
        let maplet = Maplet::default().with(0, &hashes);
        let wrong = (0u64..100_000)
            .filter(|n| maplet.candidates(KeyHash::of(&(n * 3 + 1).to_be_bytes())).next().is_some())
            .count();
        // 1000 × 100,000 / 2^21 = 48 are to be expected.
        assert!(wrong < 150, "{wrong} of 100,000");
    }
}
