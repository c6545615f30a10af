//! LSMap (PIO B-tree, VLDB 2011, section 3.2.2): which segment of each leaf is the last, in a few bits a leaf, so that an
//! append reads one page instead of the leaf.
//!
//! Since leaves are at least half full, a code tells how far the last segment lies behind the middle: for L = 4, `00` is the
//! second, `01` the third, `10` the fourth, and `11` is *unknown*: after a restart, or when the leaf is less than half full.
//!
//! Invariants: a code is *unknown* or true. It is never written to the device.

/// See the module.
#[derive(Debug)]
pub(crate) struct LastSegments {
    words: Vec<u64>,
    segments: usize,
    bits: u32,
    /// Whether anything is remembered at all.
    kept: bool,
}

impl LastSegments {
    /// For leaves of L = `segments` segments. With one segment there is nothing to remember.
    pub fn new(segments: usize) -> Self {
        // Codes 0..=L/2, and one for unknown.
        let bits = if segments == 1 { 0 } else { usize::BITS - (segments / 2 + 1).leading_zeros() };
        Self { words: Vec::new(), segments, bits, kept: true }
    }

    /// A map that remembers nothing: what a tree without one does.
    pub fn without(segments: usize) -> Self {
        Self { kept: false, ..Self::new(segments) }
    }

    fn unknown(&self) -> u64 {
        (1 << self.bits) - 1
    }

    /// Codes do not cross words.
    fn place(&self, leaf: u64) -> (usize, u32) {
        let per_word = u64::from(64 / self.bits.max(1));
        ((leaf / per_word) as usize, (leaf % per_word) as u32 * self.bits)
    }

    /// The last segment of a leaf, from 0 on, if it is known.
    pub fn get(&self, leaf: u64) -> Option<usize> {
        if self.segments == 1 {
            return Some(0);
        }
        let (word, shift) = self.place(leaf);
        let code = (self.words.get(word)? >> shift) & self.unknown();
        // Segments are numbered from 1 in the paper, and the first of the back half is number L/2.
        (code != self.unknown()).then(|| code as usize + self.segments / 2 - 1)
    }

    /// Notes the last segment of a leaf (from 0 on), or that it is unknown.
    pub fn set(&mut self, leaf: u64, last: Option<usize>) {
        if self.segments == 1 || !self.kept {
            return;
        }
        let first = self.segments / 2 - 1;
        let code = last.filter(|last| *last >= first).map_or(self.unknown(), |last| (last - first) as u64);
        let (word, shift) = self.place(leaf);
        if word >= self.words.len() {
            self.words.resize(word + 1, u64::MAX);
        }
        self.words[word] &= !(self.unknown() << shift);
        self.words[word] |= code << shift;
    }

    /// Bytes of memory.
    pub fn memory(&self) -> usize {
        self.words.len() * 8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_segments_take_two_bits_as_drawn_in_the_paper() {
        for (segments, bits) in [(1, 0), (2, 2), (4, 2), (8, 3), (16, 4)] {
            assert_eq!(LastSegments::new(segments).bits, bits, "L = {segments}");
        }
        let mut map = LastSegments::new(4);
        assert_eq!(map.get(0), None);
        for (leaf, last) in [(0, 1), (1, 2), (2, 3), (40, 1)] {
            map.set(leaf, Some(last));
        }
        assert_eq!(map.words[0] & 0b111111, 0b100100);
        assert_eq!([0, 1, 2, 3, 40].map(|leaf| map.get(leaf)), [Some(1), Some(2), Some(3), None, Some(1)]);
        map.set(1, Some(0));
        assert_eq!(map.get(1), None, "less than half full");
        map.set(2, None);
        assert_eq!((map.get(0), map.get(2)), (Some(1), None));
        let mut none = LastSegments::without(4);
        none.set(0, Some(3));
        assert_eq!((none.get(0), none.memory()), (None, 0));
    }

    #[test]
    fn every_last_segment_in_the_back_half_is_kept() {
        for segments in [1, 2, 4, 8, 16] {
            let mut map = LastSegments::new(segments);
            for leaf in 0..500u64 {
                map.set(leaf, Some(leaf as usize % segments));
            }
            for leaf in 0..500u64 {
                let last = leaf as usize % segments;
                let kept = segments == 1 || last + 1 >= segments / 2;
                assert_eq!(map.get(leaf), kept.then_some(last), "L = {segments}, leaf {leaf}");
            }
        }
    }
}
