//! How readers search the tree beside the writer, without waiting for it: they read a node, and then check that
//! its version has not changed. If it has, they start over; the writer has made progress meanwhile.
//!
//! Invariants:
//! 1. A child is trusted to be one only if its word was read before its parent's word was found unchanged. An
//!    idle node already has the version that it will have when it is rewritten, so its word alone proves
//!    nothing.
//! 2. What was read of a node is trusted only if its version was found unchanged afterwards.

use super::Map;
use super::entry::{Entry, Key, compare};
use super::memory::MemoryRef;
use super::node::{Node, SLOTS, Side, Slot, Word};

/// The target of a search.
#[derive(Clone, Copy)]
pub(super) enum Goal<'k> {
    /// The beginning of the map.
    First,
    /// The position of the key, whether or not it exists.
    At(Key<'k>),
    /// The position just before the key.
    Before(Key<'k>),
    /// The end of the map.
    Last,
}

impl Goal<'_> {
    /// Whether the target comes before a range that begins with `low`.
    fn is_before(self, low: Key<'_>) -> bool {
        match self {
            Goal::First => true,
            Goal::At(key) => compare(low, key).is_gt(),
            Goal::Before(key) => compare(low, key).is_ge(),
            Goal::Last => false,
        }
    }
}

/// A leaf, and its word at a time when it certainly was the right leaf.
pub(super) struct Leaf<'a> {
    pub node: &'a Node,
    pub word: Word,
    /// What the next leaf's range begins with, if requested.
    pub upper: MemoryRef,
    /// Whether the next leaf may also have the key.
    pub goes_on: bool,
}

impl Node {
    /// The index of the child that leads to the target, and whether the next child may begin with the same key.
    #[inline]
    pub(super) fn child(&self, map: &Map, word: Word, goal: Goal<'_>) -> (usize, bool) {
        let count = word.count();
        let last = count.saturating_sub(1);
        let key = match goal {
            Goal::First => return (0, false),
            Goal::Last => return (last, false),
            Goal::At(key) | Goal::Before(key) => key,
        };
        let rank = match self.side(&map.table, key) {
            Side::Below => return (0, false),
            Side::Above => return (last, false),
            Side::At(rank) => rank,
        };
        // Binary search for the first slot with this rank or a higher one.
        let (mut first, mut len) = (0, count);
        while len > 0 {
            let half = len / 2;
            let is_less = self.slot(first + half).rank() < rank;
            first = if is_less { first + half + 1 } else { first };
            len = if is_less { len - half - 1 } else { half };
        }
        while first < count
            && let slot = self.slot(first)
            && slot.rank() == rank
        {
            let low = Node::at(&map.table, slot.place()).low();
            if low.is_somewhere() && goal.is_before(map.entry(low).key()) {
                return (first.saturating_sub(1), true);
            }
            first += 1;
        }
        (first.saturating_sub(1), false)
    }
}

impl<'a> Leaf<'a> {
    /// The newest entry of a key in the leaf. That is the last one added; if none was added, the first one of
    /// those that were there in order.
    #[inline]
    fn find(&self, map: &'a Map, key: Key<'_>) -> Option<Entry<'a>> {
        let Side::At(rank) = self.node.side(&map.table, key) else { return None };
        let is_it = |index: &usize| self.node.slot(*index).rank() == rank;
        let entry = |index: usize| map.entry(self.node.slot(index).place());
        let fits = |entry: &Entry<'_>| {
            let found = entry.key();
            (found.0, found.1) == (key.0, key.1) && found.2 <= key.2
        };
        let count = self.word.count();
        let sorted = self.node.sorted().min(count);
        let later = (sorted..count).rev().filter(is_it).map(entry).find(fits);
        later.or_else(|| (0..sorted).filter(is_it).map(entry).find(fits))
    }
}

/// Lets a test run a write between a reader's read and its check.
#[inline]
fn pause() {
    #[cfg(test)]
    super::tests::pause();
}

impl Map {
    /// The leaf for a target, and where the next leaf begins, if requested. `None` if the map is empty.
    #[inline]
    pub(super) fn descend<const UPPER: bool>(&self, goal: Goal<'_>) -> Option<Leaf<'_>> {
        loop {
            let root = self.root();
            let (place, height) = root?;
            let mut node = Node::at(&self.table, place);
            pause();
            let mut word = node.word();
            // When its word was read, the root may have been idle, and it may be rewritten as the same root.
            // Everything else of an inner node is read after this, and then its whole word is compared. A
            // leaf's word is compared without its count, which might be that of the idle node. So a root that
            // is a leaf must have been the root all the time. It has been, since it is replaced by an inner
            // node only (`Map::replace`), and the tree never becomes lower.
            if self.root() == root
                && let Some(leaf) = self.descend_from::<UPPER>(&mut node, &mut word, height, goal)
            {
                return Some(leaf);
            }
            std::hint::spin_loop();
        }
    }

    /// Descends from the root. `None` if what was read is no longer valid.
    #[inline]
    fn descend_from<'a, const UPPER: bool>(
        &'a self,
        node: &mut &'a Node,
        word: &mut Word,
        height: usize,
        goal: Goal<'_>,
    ) -> Option<Leaf<'a>> {
        let (mut upper, mut goes_on) = (MemoryRef::NOWHERE, false);
        for _ in 0..height {
            let (index, is_alike) = node.child(self, *word, goal);
            let child = Node::at(&self.table, self.sound(node.slot(index).place())?);
            if index + 1 < word.count() {
                goes_on = is_alike;
                if UPPER {
                    upper = Node::at(&self.table, self.sound(node.slot(index + 1).place())?).low();
                }
            }
            pause();
            let child_word = child.word();
            if node.word() != *word {
                return None;
            }
            (*node, *word) = (child, child_word);
        }
        Some(Leaf { node, word: *word, upper, goes_on })
    }

    /// An inner node that is read while it is being written may have no slot at all.
    #[inline]
    pub(super) fn sound(&self, place: MemoryRef) -> Option<MemoryRef> {
        place.is_somewhere().then_some(place)
    }

    /// The newest entry of a key up to its sequence number, provided that the entries of the key were inserted
    /// in the order of their sequence numbers.
    pub fn get(&self, key: Key<'_>) -> Option<Entry<'_>> {
        loop {
            let leaf = self.descend::<false>(Goal::At(key))?;
            pause();
            let found = leaf.find(self, key);
            if !leaf.node.word().is_as(leaf.word) {
                continue;
            }
            if found.is_some() {
                return found;
            }
            if !leaf.goes_on {
                return None;
            }
            // The versions of the key are in several leaves.
            return self.at_or_after(key).filter(|entry| (entry.key().0, entry.key().1) == (key.0, key.1));
        }
    }

    /// The entries of a leaf in order, and the first one after them.
    pub(super) fn page(&self, goal: Goal<'_>) -> Option<Page<'_>> {
        #[cfg(test)]
        super::tests::page();
        loop {
            let leaf = self.descend::<true>(goal)?;
            let mut slots = [Slot::EMPTY; SLOTS];
            let (len, low) = (leaf.word.count(), leaf.node.low());
            pause();
            for (index, slot) in slots[..len].iter_mut().enumerate() {
                *slot = leaf.node.slot(index);
            }
            if leaf.node.word().is_as(leaf.word) {
                self.sort(&mut slots[..len]);
                let separator = |place: MemoryRef| place.is_somewhere().then(|| self.entry(place));
                let (low, upper) = (separator(low), separator(leaf.upper));
                return Some(Page { slots, at: 0, len, low, upper });
            }
        }
    }

    /// Sorts the slots of a leaf by their entries' keys.
    pub(super) fn sort(&self, slots: &mut [Slot]) {
        slots.sort_unstable();
        for alike in slots.chunk_by_mut(|a, b| a.rank() == b.rank()) {
            if alike.len() > 1 {
                alike.sort_unstable_by(|a, b| {
                    compare(self.entry(a.place()).key(), self.entry(b.place()).key())
                });
            }
        }
    }
}

/// The entries of a leaf, in order, as of one moment.
pub(super) struct Page<'a> {
    slots: [Slot; SLOTS],
    at: usize,
    len: usize,
    /// What the leaf's range begins with. It may be in no slot, and nothing may be there yet.
    pub low: Option<Entry<'a>>,
    /// What the next leaf's range begins with.
    pub upper: Option<Entry<'a>>,
}

impl<'a> Page<'a> {
    #[inline]
    pub fn next(&mut self, map: &'a Map) -> Option<Entry<'a>> {
        let slot = self.slots[self.at..self.len].first()?;
        self.at += 1;
        Some(map.entry(slot.place()))
    }

    /// Removes and returns the last remaining entry.
    pub fn next_back(&mut self, map: &'a Map) -> Option<Entry<'a>> {
        let slot = self.slots[self.at..self.len].last()?;
        self.len -= 1;
        Some(map.entry(slot.place()))
    }

    /// Drops entries at or after the key.
    pub fn end_before(&mut self, map: &'a Map, key: Key<'_>) {
        self.len = self.before(map, key);
    }

    /// Prefetches up to `most` of the last remaining entries into the cache.
    pub fn prefetch_back(&self, map: &'a Map, most: usize) {
        let slots = self.slots[self.at..self.len].iter().rev().take(most);
        slots.for_each(|slot| map.entry(slot.place()).prefetch());
    }

    /// Prefetches up to `most` of the next entries into the cache.
    pub fn prefetch(&self, map: &'a Map, most: usize) {
        self.slots[self.at..self.len].iter().take(most).for_each(|slot| map.entry(slot.place()).prefetch());
    }

    /// Prefetches the entry that is `further` positions ahead.
    #[inline]
    pub fn prefetch_one(&self, map: &'a Map, further: usize) {
        if let Some(slot) = self.slots[self.at..self.len].get(further) {
            map.entry(slot.place()).prefetch();
        }
    }

    /// Drops entries before the key.
    pub fn skip_to(&mut self, map: &'a Map, key: Key<'_>) {
        self.at = self.before(map, key);
    }

    /// The number of entries before the key.
    pub fn before(&self, map: &'a Map, key: Key<'_>) -> usize {
        self.slots[..self.len].partition_point(|slot| compare(map.entry(slot.place()).key(), key).is_lt())
    }

    pub fn entry(&self, map: &'a Map, index: usize) -> Option<Entry<'a>> {
        self.slots[..self.len].get(index).map(|slot| map.entry(slot.place()))
    }
}
