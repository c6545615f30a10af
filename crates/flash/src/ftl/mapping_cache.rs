//! The part of DFTL's mapping table that is in memory: entries, replaced by segmented least recent use.
//!
//! Source: Gupta, Kim and Urgaonkar (see `dftl`), section 3.2, after Karedla, Love and Wherry, "Caching Strategies to Improve
//! Disk System Performance", IEEE Computer 27 (3), 1994. A new entry goes to the probationary segment, one that is used again
//! to the protected one; what this has too many of goes back; the least recently used probationary entry is replaced.
//!
//! Invariants:
//! 1. every entry stands in exactly one segment, under the tick of its last use;
//! 2. at most half of the capacity is protected;
//! 3. an entry that is not dirty is what the translation page says.

use std::collections::BTreeMap;
use std::ops::Range;

/// Where a logical page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// The physical page, or `u32::MAX` for none.
    pub at: u32,
    /// The translation page does not say so yet.
    pub dirty: bool,
    tick: u64,
    protected: bool,
}

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct MappingCache {
    capacity: usize,
    entries: BTreeMap<u32, Entry>,
    /// By tick: logical pages.
    probationary: BTreeMap<u64, u32>,
    protected: BTreeMap<u64, u32>,
    tick: u64,
}

impl MappingCache {
    /// For `capacity` entries. More are kept if more are put into it; whoever does so evicts.
    pub(super) fn new(capacity: usize) -> Self {
        let (probationary, protected) = (BTreeMap::new(), BTreeMap::new());
        Self { capacity, entries: BTreeMap::new(), probationary, protected, tick: 0 }
    }

    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    pub(super) fn is_full(&self) -> bool {
        self.entries.len() >= self.capacity
    }

    /// Uses an entry, if it is here.
    pub(super) fn get(&mut self, page: u32) -> Option<u32> {
        let entry = self.entries.get_mut(&page)?;
        let segment = if entry.protected { &mut self.protected } else { &mut self.probationary };
        segment.remove(&entry.tick);
        self.tick += 1;
        entry.tick = self.tick;
        entry.protected = true;
        self.protected.insert(self.tick, page);
        let at = entry.at;
        if self.protected.len() > self.capacity / 2
            && let Some((_, page)) = self.protected.pop_first()
            && let Some(entry) = self.entries.get_mut(&page)
        {
            self.tick += 1;
            entry.tick = self.tick;
            entry.protected = false;
            self.probationary.insert(self.tick, page);
        }
        Some(at)
    }

    /// Changes an entry, if it is here, without counting that as use. Whether it was.
    pub(super) fn change(&mut self, page: u32, at: u32) -> bool {
        let Some(entry) = self.entries.get_mut(&page) else { return false };
        (entry.at, entry.dirty) = (at, true);
        true
    }

    /// Takes in an entry, or changes it.
    pub(super) fn put(&mut self, page: u32, at: u32, dirty: bool) {
        if let Some(entry) = self.entries.get_mut(&page) {
            (entry.at, entry.dirty) = (at, dirty);
            return;
        }
        self.tick += 1;
        self.entries.insert(page, Entry { at, dirty, tick: self.tick, protected: false });
        self.probationary.insert(self.tick, page);
    }

    /// The entry to replace next.
    pub(super) fn victim(&self) -> Option<(u32, Entry)> {
        let (_, page) = self.probationary.first_key_value().or_else(|| self.protected.first_key_value())?;
        Some((*page, *self.entries.get(page)?))
    }

    pub(super) fn remove(&mut self, page: u32) {
        if let Some(entry) = self.entries.remove(&page) {
            let segment = if entry.protected { &mut self.protected } else { &mut self.probationary };
            segment.remove(&entry.tick);
        }
    }

    /// The dirty entries of a range of pages.
    pub(super) fn dirty(&self, pages: Range<u32>) -> impl Iterator<Item = (u32, u32)> {
        self.entries.range(pages).filter(|(_, entry)| entry.dirty).map(|(page, entry)| (*page, entry.at))
    }

    /// The translation page of a range of pages says now what the entries do.
    pub(super) fn clean(&mut self, pages: Range<u32>) {
        self.entries.range_mut(pages).for_each(|(_, entry)| entry.dirty = false);
    }

    /// Whether an entry is here; does not count as use.
    pub(super) fn holds(&self, page: u32) -> bool {
        self.entries.contains_key(&page)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(cache: &mut MappingCache) -> Vec<u32> {
        let next = |cache: &mut MappingCache| {
            let page = cache.victim()?.0;
            cache.remove(page);
            Some(page)
        };
        std::iter::from_fn(|| next(cache)).collect()
    }

    #[test]
    fn what_was_used_again_outlives_what_was_used_once() {
        let mut cache = MappingCache::new(4);
        (0..4).for_each(|page| cache.put(page, page + 10, false));
        assert!(cache.is_full());
        assert_eq!((cache.get(0), cache.get(1)), (Some(10), Some(11)));
        assert_eq!(order(&mut cache.clone()), [2, 3, 0, 1]);
        // Half is protected: 0 goes back, behind the others.
        assert_eq!(cache.get(2), Some(12));
        assert_eq!(order(&mut cache.clone()), [3, 0, 1, 2]);
        assert_eq!(cache.get(7), None);
        assert!(cache.change(3, 5) && !cache.change(9, 5));
        assert_eq!(cache.dirty(0..4).collect::<Vec<_>>(), [(3, 5)]);
        assert_eq!(order(&mut cache.clone()), [3, 0, 1, 2], "a change is no use");
        cache.clean(0..4);
        assert_eq!(cache.dirty(0..10).count(), 0);
    }
}
