//! What a buffer pool holds, and what goes first when it holds too much: by last use alone, or level by level.
//!
//! The PIO B-tree's paper (VLDB 2011) measures with an LRU pool (section 4.1), and its cost model (appendix) counts with one that
//! "caches all the nodes, starting from the root level". These are two policies: with little memory, leaves that nobody asks
//! for again drive inner nodes out of an LRU pool. Both are here, and the model knows both
//! ([`crate::model::residence`]).
//!
//! Invariants:
//! 1. A key is in exactly one list: that of its level, or the only one.
//! 2. `weights[level]` is the sum of the pages of that list.

use lru::LruCache;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::hash::Hash;

/// What a buffer pool evicts first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Eviction {
    /// What was used longest ago, as published.
    #[default]
    Lru,
    /// Leaves before inner nodes, lower ones before higher ones, and of one level what was used longest ago. What is read as a
    /// set, for a batch, drives out lower levels only: a batch passes every node once, and what it drove out of its own
    /// level would be missed as much as what it brings.
    LowestLevel,
}

struct Frame<V> {
    value: V,
    pages: usize,
}

/// See the module.
pub(crate) struct Frames<K: Hash + Eq, V> {
    policy: Eviction,
    capacity: usize,
    lists: Vec<LruCache<K, Frame<V>>>,
    weights: Vec<usize>,
    list_of: HashMap<K, usize>,
}

impl<K: Copy + Hash + Eq, V> Frames<K, V> {
    /// Frames for so many pages.
    pub fn new(policy: Eviction, capacity: usize) -> Self {
        Self { policy, capacity, lists: Vec::new(), weights: Vec::new(), list_of: HashMap::new() }
    }

    fn list(&self, level: u8) -> usize {
        match self.policy {
            Eviction::Lru => 0,
            Eviction::LowestLevel => usize::from(level),
        }
    }

    /// Finds a page, and notes that it was used.
    pub fn get(&mut self, key: &K) -> Option<&V> {
        let list = *self.list_of.get(key)?;
        self.lists[list].get(key).map(|frame| &frame.value)
    }

    /// Finds a page without using it.
    pub fn peek_mut(&mut self, key: &K) -> Option<&mut V> {
        let list = *self.list_of.get(key)?;
        self.lists[list].peek_mut(key).map(|frame| &mut frame.value)
    }

    /// Whether what a batch has read may come in: there is room for it, or will be if lower levels go.
    pub fn admits(&self, level: u8, pages: usize) -> bool {
        let above: usize = self.weights.iter().skip(self.list(level)).sum();
        self.policy == Eviction::Lru || above + pages <= self.capacity
    }

    /// Holds a page, however many there are then: see [`Self::excess`].
    pub fn put(&mut self, key: K, level: u8, pages: usize, value: V) {
        self.pop(&key);
        let list = self.list(level);
        while self.lists.len() <= list {
            self.lists.push(LruCache::unbounded());
            self.weights.push(0);
        }
        self.lists[list].put(key, Frame { value, pages });
        self.weights[list] += pages;
        self.list_of.insert(key, list);
    }

    /// What has to go next, if there is more than there is room for.
    pub fn excess(&self) -> Option<(K, &V)> {
        if self.pages() <= self.capacity {
            return None;
        }
        let lowest = self.lists.iter().find_map(LruCache::peek_lru);
        lowest.map(|(key, frame)| (*key, &frame.value))
    }

    /// Lets a page go.
    pub fn pop(&mut self, key: &K) -> Option<V> {
        let list = self.list_of.remove(key)?;
        let frame = self.lists[list].pop(key)?;
        self.weights[list] -= frame.pages;
        Some(frame.value)
    }

    /// All that is held.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.lists.iter().flat_map(|list| list.iter().map(|(key, frame)| (key, &frame.value)))
    }

    /// How many are held.
    pub fn len(&self) -> usize {
        self.list_of.len()
    }

    /// Pages held.
    pub fn pages(&self) -> usize {
        self.weights.iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Puts a page in, and lets go what is too much.
    fn bring(frames: &mut Frames<u32, u32>, key: u32, level: u8, pages: usize) {
        frames.put(key, level, pages, key);
        while let Some((victim, _)) = frames.excess() {
            frames.pop(&victim);
        }
    }

    fn held(frames: &Frames<u32, u32>) -> Vec<u32> {
        let mut keys: Vec<u32> = frames.iter().map(|(key, _)| *key).collect();
        keys.sort_unstable();
        keys
    }

    #[test]
    fn leaves_drive_inner_nodes_out_of_an_lru_pool_only() {
        for (policy, left) in
            [(Eviction::Lru, vec![10, 11, 12, 13]), (Eviction::LowestLevel, vec![1, 2, 3, 13])]
        {
            let mut frames = Frames::new(policy, 4);
            for (key, level) in [(1, 2), (2, 1), (3, 1), (10, 0), (11, 0), (12, 0), (13, 0)] {
                bring(&mut frames, key, level, 1);
            }
            assert_eq!(held(&frames), left, "{policy:?}");
        }
    }

    #[test]
    fn of_one_level_the_least_recently_used_goes() {
        let mut frames = Frames::new(Eviction::LowestLevel, 2);
        bring(&mut frames, 1, 1, 1);
        bring(&mut frames, 2, 1, 1);
        frames.get(&1);
        bring(&mut frames, 3, 1, 1);
        assert_eq!(held(&frames), [1, 3]);
        bring(&mut frames, 4, 0, 1);
        assert_eq!(held(&frames), [1, 3], "a leaf finds no room");
    }

    #[test]
    fn a_batch_drives_out_lower_levels_only() {
        let mut frames = Frames::new(Eviction::LowestLevel, 3);
        bring(&mut frames, 1, 1, 1);
        bring(&mut frames, 9, 0, 2);
        assert!(frames.admits(1, 1), "in the place of the leaf");
        bring(&mut frames, 2, 1, 1);
        bring(&mut frames, 3, 1, 1);
        assert_eq!(held(&frames), [1, 2, 3]);
        assert!(!frames.admits(1, 1) && frames.admits(2, 1));
    }

    proptest! {
        #[test]
        fn weights_and_lists_agree(
            lowest: bool, steps in prop::collection::vec((0u32..20, 0u8..3, 0u8..3), 0..200),
        ) {
            let policy = if lowest { Eviction::LowestLevel } else { Eviction::Lru };
            let mut frames = Frames::new(policy, 7);
            for (key, level, what) in steps {
                match what {
                    0 => { frames.pop(&key); }
                    1 => { frames.get(&key); }
                    _ => bring(&mut frames, key, level, 1 + level as usize),
                }
                let pages: usize = frames.lists.iter().flat_map(LruCache::iter).map(|(_, frame)| frame.pages).sum();
                prop_assert_eq!(frames.pages(), pages);
                prop_assert!(pages <= 7);
                prop_assert_eq!(held(&frames).len(), frames.len());
                prop_assert!(held(&frames).iter().all(|key| frames.get(key) == Some(key)));
            }
        }
    }
}
