//! OPQ, the operation queue (PIO B-tree, VLDB 2011, section 3.2): updates wait here until a batch update takes them to the tree.
//!
//! ```text
//!  2i 5i 10i 15d 21i 45i 74i 86i 94i | 31i 25u 49d 59i
//!  sorted by (key, arrival)          ^ sortedOffset: from here in order of arrival
//! ```
//!
//! Invariants:
//! 1. `entries[..sorted]` ascend by (key, sequence number); the rest ascends by sequence number.
//! 2. Every entry of the sorted part that has a key of the rest is older than that one.
//! 3. A key may occur many times; the highest sequence number is the newest.

use crate::page::Key;
use crate::page::leaf_segments::Entry;
use std::ops::Range;

/// An operation that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Queued {
    pub entry: Entry,
    pub sequence: u64,
}

/// What one batch update takes: all that waits for some contiguous range of keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    /// The first and the last key.
    pub first: Key,
    pub last: Key,
    /// The newest sequence number in it.
    pub sequence_max: u64,
    /// In order of (key, sequence number).
    pub entries: Vec<Entry>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Opq {
    entries: Vec<Queued>,
    sorted: usize,
    /// How many arrivals until the tail is sorted in.
    speriod: usize,
    capacity: usize,
    /// Where the next batch update begins.
    cursor: Key,
}

impl Opq {
    /// A queue for `capacity` operations, sorted every `speriod` arrivals.
    pub fn new(capacity: usize, speriod: usize) -> Self {
        Self { entries: Vec::new(), sorted: 0, speriod: speriod.max(1), capacity: capacity.max(1), cursor: 0 }
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub fn is_full(&self) -> bool {
        self.entries.len() >= self.capacity
    }

    pub fn iter(&self) -> impl Iterator<Item = &Queued> {
        self.entries.iter()
    }

    /// Adds an operation. Sequence numbers ascend.
    pub fn append(&mut self, entry: Entry, sequence: u64) {
        self.entries.push(Queued { entry, sequence });
        if self.entries.len() - self.sorted >= self.speriod {
            self.sort();
        }
    }

    /// Sorts the tail in.
    pub fn sort(&mut self) {
        let order = |queued: &Queued| (queued.entry.key, queued.sequence);
        self.entries[self.sorted..].sort_by_key(order);
        // Two sorted runs: the standard library's stable sort finds them and merges.
        self.entries.sort_by_key(order);
        self.sorted = self.entries.len();
    }

    /// The newest operation on a key: linear in the tail, binary search in the sorted part.
    pub fn newest(&self, key: Key) -> Option<Entry> {
        let (sorted, tail) = self.entries.split_at(self.sorted);
        if let Some(queued) = tail.iter().rev().find(|queued| queued.entry.key == key) {
            return Some(queued.entry);
        }
        let end = sorted.partition_point(|queued| queued.entry.key <= key);
        let queued = sorted[..end].last()?;
        (queued.entry.key == key).then_some(queued.entry)
    }

    /// The newest operation on each key in a range, in order of key.
    pub fn newest_in(&self, range: Range<Key>) -> Vec<Entry> {
        let (sorted, tail) = self.entries.split_at(self.sorted);
        let start = sorted.partition_point(|queued| queued.entry.key < range.start);
        let end = sorted.partition_point(|queued| queued.entry.key < range.end);
        let mut found: Vec<Entry> = sorted[start..end.max(start)].iter().map(|queued| queued.entry).collect();
        found.extend(tail.iter().map(|queued| queued.entry).filter(|entry| range.contains(&entry.key)));
        // Stable, and the tail is the newer: the last of a key is the newest.
        found.sort_by_key(|entry| entry.key);
        found.dedup_by(|later, kept| {
            let same = later.key == kept.key;
            if same {
                *kept = *later;
            }
            same
        });
        found
    }

    /// What the next batch update takes: about `bcnt` operations on a contiguous range of keys, from where the last one
    /// ended if there are so many, all of the first and of the last key. They stay here until [`Self::remove`].
    pub fn group(&mut self, bcnt: usize) -> Option<Group> {
        self.sort();
        let begin_of = |key: Key| self.entries.partition_point(|queued| queued.entry.key < key);
        let mut start = begin_of(self.cursor);
        if start == self.entries.len() {
            start = 0;
        }
        // What is left up to the largest key may be few: a batch that is not full begins earlier.
        let full = self.entries.len().saturating_sub(bcnt.max(1));
        if start > full {
            start = begin_of(self.entries.get(full)?.entry.key);
        }
        let rest = &self.entries[start..];
        let last = rest.get(..bcnt.max(1)).unwrap_or(rest).last()?.entry.key;
        let end = self.entries.partition_point(|queued| queued.entry.key <= last);
        let taken = &self.entries[start..end];
        Some(Group {
            first: taken.first()?.entry.key,
            last,
            sequence_max: taken.iter().map(|queued| queued.sequence).max()?,
            entries: taken.iter().map(|queued| queued.entry).collect(),
        })
    }

    /// Removes what a batch update has taken, and goes on behind it. There were no arrivals in between.
    pub fn remove(&mut self, group: &Group) {
        let range = group.first..=group.last;
        self.entries.retain(|queued| !range.contains(&queued.entry.key));
        self.sorted = self.entries.len();
        self.cursor = group.last.wrapping_add(1);
    }

    /// Whether the invariants hold.
    pub fn is_sound(&self) -> bool {
        let (sorted, tail) = self.entries.split_at(self.sorted);
        sorted.is_sorted_by_key(|queued| (queued.entry.key, queued.sequence))
            && tail.is_sorted_by_key(|queued| queued.sequence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::leaf_segments::Op;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[test]
    fn the_papers_example() {
        let mut queue = Opq::new(100, 9);
        let arrivals = "2i 5i 10i 15d 21i 45i 74i 86i 94i 31i 25u 49d 59i";
        for (sequence, text) in (1..).zip(arrivals.split(' ')) {
            let (key, op) = text.split_at(text.len() - 1);
            let op = Op::of(op.as_bytes()[0]).unwrap();
            queue.append(Entry { key: key.parse().unwrap(), value: sequence, op }, sequence);
        }
        assert_eq!((queue.sorted, queue.len()), (9, 13));
        assert_eq!(queue.newest(15).map(|entry| entry.op), Some(Op::Delete));
        assert_eq!(queue.newest(25).map(|entry| entry.op), Some(Op::Update));
        assert_eq!(queue.newest(16), None);
        let group = queue.group(4).unwrap();
        assert_eq!((group.first, group.last, group.entries.len()), (2, 15, 4));
        queue.remove(&group);
        let group = queue.group(100).unwrap();
        assert_eq!((group.first, group.last, group.entries.len(), group.sequence_max), (21, 94, 9, 13));
        queue.remove(&group);
        assert!(queue.is_empty() && queue.group(1).is_none());
    }

    /// A batch of the few operations beyond the last batch's end costs a descent, and soon comes the next.
    #[test]
    fn a_batch_is_full_if_enough_waits() {
        let mut queue = Opq::new(100, 3);
        let mut sequence = 0;
        let mut arrive = |queue: &mut Opq, keys: &[u64]| {
            for key in keys {
                sequence += 1;
                queue.append(Entry { key: *key, value: 0, op: Op::Insert }, sequence);
            }
        };
        arrive(&mut queue, &[1, 5, 9]);
        let group = queue.group(10).unwrap();
        queue.remove(&group);
        arrive(&mut queue, &[2, 4, 6, 12, 12, 12]);
        let keys = |group: &Group| group.entries.iter().map(|entry| entry.key).collect::<Vec<_>>();
        assert_eq!(keys(&queue.group(4).unwrap()), [6, 12, 12, 12], "not 12 alone");
        assert_eq!(keys(&queue.group(2).unwrap()), [12, 12, 12], "never a part of a key");
        assert_eq!(keys(&queue.group(10).unwrap()), [2, 4, 6, 12, 12, 12]);
    }

    proptest! {
        #[test]
        fn the_newest_is_found_and_groups_take_everything_once(
            speriod in 1usize..20, bcnt in 1usize..20,
            arrivals in prop::collection::vec((0u64..30, any::<bool>()), 0..100),
        ) {
            let mut queue = Opq::new(1000, speriod);
            let mut model = BTreeMap::new();
            for (sequence, (key, deletes)) in (1..).zip(&arrivals) {
                let op = if *deletes { Op::Delete } else { Op::Insert };
                let entry = Entry { key: *key, value: sequence, op };
                queue.append(entry, sequence);
                model.insert(*key, entry);
                prop_assert!(queue.is_sound());
            }
            for key in 0..30 {
                prop_assert_eq!(queue.newest(key), model.get(&key).copied());
            }
            let found = queue.newest_in(5..22);
            prop_assert_eq!(found, model.range(5..22).map(|(_, entry)| *entry).collect::<Vec<_>>());
            let mut taken = 0;
            while let Some(group) = queue.group(bcnt) {
                prop_assert!(group.entries.is_sorted_by_key(|entry| entry.key));
                taken += group.entries.len();
                queue.remove(&group);
            }
            prop_assert_eq!(taken, arrivals.len());
        }
    }
}
