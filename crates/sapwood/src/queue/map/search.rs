//! How readers find their way, beside the one who writes, without waiting for him: they read a node, and then whether it still is of the version
//! that it was. If not, they begin again, and whoever writes has come further meanwhile.
//!
//! Invariants:
//! 1. A child is believed to be one if its word was read before its parent's was found unchanged. An idle node has the version already that it will
//!    have when it is written anew, so its word alone says nothing.
//! 2. What was read of a node is believed if its version was found unchanged afterwards.

use super::Map;
use super::entry::{Entry, Key, compare};
use super::memory::Place;
use super::node::{Node, SLOTS, Side, Slot, Word};

/// Where to.
#[derive(Clone, Copy)]
pub(super) enum Goal<'k> {
    /// The beginning.
    First,
    /// Where the key is, or would be.
    At(Key<'k>),
    /// Where what is before the key is.
    Before(Key<'k>),
    /// The end.
    Last,
}

impl Goal<'_> {
    /// Whether it is before what begins with `low`.
    fn is_before(self, low: Key<'_>) -> bool {
        match self {
            Goal::First => true,
            Goal::At(key) => compare(low, key).is_gt(),
            Goal::Before(key) => compare(low, key).is_ge(),
            Goal::Last => false,
        }
    }
}

/// A leaf, and its word when it certainly was the one.
pub(super) struct Leaf<'a> {
    pub node: &'a Node,
    pub word: Word,
    /// The entry that the next leaf begins with, if that was to be known.
    pub upper: Place,
    /// Whether that may have the key that was sought.
    pub goes_on: bool,
}

impl Node {
    /// Which child of an inner node leads there, and whether the next one may begin with the same key.
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
        // The first slot of this rank or a higher one, by halves.
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
    /// The newest entry of a key in it. That is the last that came, or if none did, the first one of those that were there in order.
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

/// Where tests let somebody write between what a reader reads and what he makes of it.
#[inline]
fn pause() {
    #[cfg(test)]
    super::tests::pause();
}

impl Map {
    /// The leaf for a goal, and where the next one begins, if that is wanted. `None`: the map is empty.
    #[inline]
    pub(super) fn descend<const UPPER: bool>(&self, goal: Goal<'_>) -> Option<Leaf<'_>> {
        loop {
            let root = self.root();
            let (place, height) = root?;
            let mut node = Node::at(&self.table, place);
            pause();
            let mut word = node.word();
            // The same root may have been idle in between, when its word was read, and be written anew. Of an inner node all else is read from here on,
            // and then all of its word again. A leaf's word is compared without its count, which might be the idle one's: so a root that is
            // a leaf must have been the root all the time. It is, since it gives way to an inner node only (`Map::replace`), and roots never become lower.
            if self.root() == root
                && let Some(leaf) = self.descend_from::<UPPER>(&mut node, &mut word, height, goal)
            {
                return Some(leaf);
            }
            std::hint::spin_loop();
        }
    }

    /// The same from the root on. `None`: what was read is not true any more.
    #[inline]
    fn descend_from<'a, const UPPER: bool>(
        &'a self,
        node: &mut &'a Node,
        word: &mut Word,
        height: usize,
        goal: Goal<'_>,
    ) -> Option<Leaf<'a>> {
        let (mut upper, mut goes_on) = (Place::NOWHERE, false);
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

    /// An inner node that is read while it is written may have no slot at all.
    #[inline]
    fn sound(&self, place: Place) -> Option<Place> {
        place.is_somewhere().then_some(place)
    }

    /// The newest entry of a key up to its sequence number, if those of the key came in the order of theirs.
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
            // Its versions are in several leaves.
            return self.at_or_after(key).filter(|entry| (entry.key().0, entry.key().1) == (key.0, key.1));
        }
    }

    /// The entries of a leaf in order, and the first one behind them.
    pub(super) fn page(&self, goal: Goal<'_>) -> Option<Page<'_>> {
        #[cfg(test)]
        super::tests::page();
        loop {
            let leaf = self.descend::<true>(goal)?;
            let mut slots = [Slot::EMPTY; SLOTS];
            let len = leaf.word.count();
            pause();
            for (index, slot) in slots[..len].iter_mut().enumerate() {
                *slot = leaf.node.slot(index);
            }
            if leaf.node.word().is_as(leaf.word) {
                self.sort(&mut slots[..len]);
                let upper = leaf.upper.is_somewhere().then(|| self.entry(leaf.upper));
                return Some(Page { slots, at: 0, len, upper });
            }
        }
    }

    /// Brings the slots of a leaf into their entries' order.
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

/// The entries of a leaf, in order, as they were at one moment.
pub(super) struct Page<'a> {
    slots: [Slot; SLOTS],
    at: usize,
    len: usize,
    /// What the next leaf begins with.
    pub upper: Option<Entry<'a>>,
}

impl<'a> Page<'a> {
    #[inline]
    pub fn next(&mut self, map: &'a Map) -> Option<Entry<'a>> {
        let slot = self.slots[self.at..self.len].first()?;
        self.at += 1;
        Some(map.entry(slot.place()))
    }

    /// The last of those that are left, which then is not.
    pub fn next_back(&mut self, map: &'a Map) -> Option<Entry<'a>> {
        let slot = self.slots[self.at..self.len].last()?;
        self.len -= 1;
        Some(map.entry(slot.place()))
    }

    /// The first one of the leaf, whatever is left.
    pub fn first(&self, map: &'a Map) -> Entry<'a> {
        map.entry(self.slots[0].place())
    }

    /// Leaves out what is not before the key.
    pub fn end_before(&mut self, map: &'a Map, key: Key<'_>) {
        self.len = self.before(map, key);
    }

    /// Has the last entries that are left brought into the cache, so many at most.
    pub fn prefetch_back(&self, map: &'a Map, most: usize) {
        let slots = self.slots[self.at..self.len].iter().rev().take(most);
        slots.for_each(|slot| map.entry(slot.place()).prefetch());
    }

    /// Has the next entries brought into the cache, so many at most.
    pub fn prefetch(&self, map: &'a Map, most: usize) {
        self.slots[self.at..self.len].iter().take(most).for_each(|slot| map.entry(slot.place()).prefetch());
    }

    /// Has the one brought into the cache that is so many further on.
    #[inline]
    pub fn prefetch_one(&self, map: &'a Map, further: usize) {
        if let Some(slot) = self.slots[self.at..self.len].get(further) {
            map.entry(slot.place()).prefetch();
        }
    }

    /// Leaves out what is before the key.
    pub fn skip_to(&mut self, map: &'a Map, key: Key<'_>) {
        self.at = self.before(map, key);
    }

    /// How many are before the key.
    pub fn before(&self, map: &'a Map, key: Key<'_>) -> usize {
        self.slots[..self.len].partition_point(|slot| compare(map.entry(slot.place()).key(), key).is_lt())
    }

    pub fn entry(&self, map: &'a Map, index: usize) -> Option<Entry<'a>> {
        self.slots[..self.len].get(index).map(|slot| map.entry(slot.place()))
    }
}
