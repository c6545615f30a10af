//! OPQ, the operation queue (PIO B-tree, VLDB 2011, section 3.1.3): updates wait here until a batch update takes them to the tree.
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
//! 4. What a transaction has done and not committed is seen by nobody else, and no batch update takes it (no-steal), nor
//!    anything else of its keys: whoever takes a key takes all of it.

use crate::page::Key;
use crate::page::leaf_segments::Entry;
use std::collections::HashSet;
use std::ops::{Range, RangeInclusive};

/// An operation that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Queued {
    pub entry: Entry,
    pub sequence: u64,
    /// The transaction that has not committed it yet, or [`COMMITTED`].
    pub transaction: u64,
}

/// No transaction: the operation counts.
pub(crate) const COMMITTED: u64 = 0;

impl Queued {
    fn is_seen_by(&self, transaction: u64) -> bool {
        self.transaction == COMMITTED || self.transaction == transaction
    }
}

/// What one batch update takes: all that waits for some ranges of keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    /// In order: one range, but for the keys of open transactions, which divide it.
    pub ranges: Vec<RangeInclusive<Key>>,
    /// The newest sequence number in it.
    pub sequence_max: u64,
    /// In order of (key, sequence number).
    pub entries: Vec<Entry>,
    /// Whether it begins with the lowest key that may be taken: another way round the keys.
    pub begins_anew: bool,
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
        self.append_of(COMMITTED, entry, sequence);
    }

    /// Adds an operation of a transaction.
    pub fn append_of(&mut self, transaction: u64, entry: Entry, sequence: u64) {
        self.entries.push(Queued { entry, sequence, transaction });
        if self.entries.len() - self.sorted >= self.speriod {
            self.sort();
        }
    }

    /// What a transaction has done counts.
    pub fn commit(&mut self, transaction: u64) {
        let own = self.entries.iter_mut().filter(|queued| queued.transaction == transaction);
        own.for_each(|queued| queued.transaction = COMMITTED);
    }

    /// What a transaction has done was never there.
    pub fn abort(&mut self, transaction: u64) {
        let is_other = |queued: &Queued| queued.transaction != transaction;
        self.sorted = self.entries[..self.sorted].iter().filter(|queued| is_other(queued)).count();
        self.entries.retain(is_other);
    }

    /// Whether a batch update would find something to take.
    pub fn has_committed(&self) -> bool {
        let keys: HashSet<Key> = self.open().map(|queued| queued.entry.key).collect();
        self.entries.iter().any(|queued| !keys.contains(&queued.entry.key))
    }

    /// Operations of open transactions.
    fn open(&self) -> impl Iterator<Item = &Queued> {
        self.entries.iter().filter(|queued| queued.transaction != COMMITTED)
    }

    /// Sorts the tail in.
    pub fn sort(&mut self) {
        let order = |queued: &Queued| (queued.entry.key, queued.sequence);
        self.entries[self.sorted..].sort_by_key(order);
        // Two sorted runs: the standard library's stable sort finds them and merges.
        self.entries.sort_by_key(order);
        self.sorted = self.entries.len();
    }

    /// The newest operation on a key that a transaction sees: linear in the tail, binary search in the sorted part.
    pub fn newest(&self, key: Key, transaction: u64) -> Option<Entry> {
        let (sorted, tail) = self.entries.split_at(self.sorted);
        let is_it = |queued: &&Queued| queued.entry.key == key && queued.is_seen_by(transaction);
        if let Some(queued) = tail.iter().rev().find(is_it) {
            return Some(queued.entry);
        }
        let end = sorted.partition_point(|queued| queued.entry.key <= key);
        let of_key = sorted[..end].iter().rev().take_while(|queued| queued.entry.key == key);
        of_key.into_iter().find(is_it).map(|queued| queued.entry)
    }

    /// The newest committed operation on each key in a range, in order of key.
    pub fn newest_in(&self, range: Range<Key>) -> Vec<Entry> {
        let (sorted, tail) = self.entries.split_at(self.sorted);
        let start = sorted.partition_point(|queued| queued.entry.key < range.start);
        let end = sorted.partition_point(|queued| queued.entry.key < range.end);
        let tail = tail.iter().filter(|queued| range.contains(&queued.entry.key));
        let waiting = sorted[start..end.max(start)].iter().chain(tail);
        let committed = waiting.filter(|queued| queued.transaction == COMMITTED);
        let mut found: Vec<Entry> = committed.map(|queued| queued.entry).collect();
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
    /// ended, or all if they are no more, all of the last key, but nothing of the keys of open transactions. They stay here
    /// until [`Self::remove`].
    pub fn group(&mut self, bcnt: usize) -> Option<Group> {
        self.sort();
        let open: HashSet<Key> = self.open().map(|queued| queued.entry.key).collect();
        let free: Vec<&Queued> =
            self.entries.iter().filter(|queued| !open.contains(&queued.entry.key)).collect();
        let begin_of = |key: Key| free.partition_point(|queued| queued.entry.key < key);
        let mut start = begin_of(self.cursor);
        // A queue that fits into a batch is taken whole, wherever the last batch ended: what lies beyond that may be next to
        // nothing.
        if start == free.len() || free.len() <= bcnt {
            start = 0;
        }
        let rest = &free[start..];
        let last = rest.get(..bcnt.max(1)).unwrap_or(rest).last()?.entry.key;
        let end = free.partition_point(|queued| queued.entry.key <= last);
        let taken = &free[start..end];
        let mut inside: Vec<Key> = open.into_iter().collect();
        inside.sort_unstable();
        Some(Group {
            ranges: divided(taken.first()?.entry.key..=last, &inside),
            sequence_max: taken.iter().map(|queued| queued.sequence).max()?,
            entries: taken.iter().map(|queued| queued.entry).collect(),
            begins_anew: start == 0,
        })
    }

    /// Removes what a batch update has taken, and goes on behind it. There were no arrivals in between.
    pub fn remove(&mut self, group: &Group) {
        self.entries.retain(|queued| !group.contains(queued.entry.key));
        self.sorted = self.entries.len();
        self.cursor = group.ranges.last().map_or(0, |last| last.end().wrapping_add(1));
    }

    /// Whether the invariants hold.
    pub fn is_sound(&self) -> bool {
        let (sorted, tail) = self.entries.split_at(self.sorted);
        sorted.is_sorted_by_key(|queued| (queued.entry.key, queued.sequence))
            && tail.is_sorted_by_key(|queued| queued.sequence)
    }
}

impl Group {
    /// Whether all of a key is taken.
    pub fn contains(&self, key: Key) -> bool {
        let after = self.ranges.partition_point(|range| *range.start() <= key);
        after.checked_sub(1).is_some_and(|at| self.ranges[at].contains(&key))
    }
}

/// What is left of a range without some keys, which ascend.
fn divided(range: RangeInclusive<Key>, without: &[Key]) -> Vec<RangeInclusive<Key>> {
    let (mut start, last) = range.into_inner();
    let mut ranges = Vec::new();
    for key in without {
        if !(start..=last).contains(key) {
            continue;
        }
        if start < *key {
            ranges.push(start..=key - 1);
        }
        if *key == last {
            return ranges;
        }
        start = key + 1;
    }
    ranges.push(start..=last);
    ranges
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
        assert_eq!(queue.newest(15, COMMITTED).map(|entry| entry.op), Some(Op::Delete));
        assert_eq!(queue.newest(25, COMMITTED).map(|entry| entry.op), Some(Op::Update));
        assert_eq!(queue.newest(16, COMMITTED), None);
        let group = queue.group(4).unwrap();
        assert_eq!((group.ranges.clone(), group.entries.len()), (vec![2..=15], 4));
        queue.remove(&group);
        let group = queue.group(100).unwrap();
        assert_eq!((group.ranges.clone(), group.entries.len(), group.sequence_max), (vec![21..=94], 9, 13));
        queue.remove(&group);
        assert!(queue.is_empty() && queue.group(1).is_none());
    }

    /// A batch of the few operations beyond the last batch's end would cost a descent, and soon would come the next.
    #[test]
    fn a_queue_that_fits_into_a_batch_is_taken_whole() {
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
        assert_eq!(keys(&queue.group(6).unwrap()), [2, 4, 6, 12, 12, 12], "not 12 alone");
        assert_eq!(
            keys(&queue.group(2).unwrap()),
            [12, 12, 12],
            "from where the last one ended; never a part of a key"
        );
        assert!(queue.group(6).unwrap().begins_anew && !queue.group(2).unwrap().begins_anew);
    }

    #[test]
    fn what_is_not_committed_is_seen_by_its_transaction_only_and_stays() {
        let mut queue = Opq::new(100, 3);
        for key in [1, 5, 9] {
            queue.append(Entry { key, value: 1, op: Op::Insert }, key);
        }
        queue.append_of(7, Entry { key: 5, value: 2, op: Op::Update }, 10);
        queue.append_of(8, Entry { key: 6, value: 2, op: Op::Insert }, 11);
        let value = |queue: &Opq, key, transaction| queue.newest(key, transaction).map(|entry| entry.value);
        assert_eq!([0, 7, 8].map(|viewer| value(&queue, 5, viewer)), [Some(1), Some(2), Some(1)]);
        assert_eq!([0, 7, 8].map(|viewer| value(&queue, 6, viewer)), [None, None, Some(2)]);
        assert_eq!(queue.newest_in(0..100).iter().map(|entry| entry.value).collect::<Vec<_>>(), [1, 1, 1]);
        let group = queue.group(100).unwrap();
        assert_eq!(group.ranges, [1..=4, 7..=9], "nothing of 5 and 6");
        assert_eq!(group.entries.iter().map(|entry| entry.key).collect::<Vec<_>>(), [1, 9]);
        queue.remove(&group);
        assert!(!queue.has_committed() && queue.group(100).is_none() && queue.len() == 3);
        queue.abort(8);
        queue.commit(7);
        let group = queue.group(100).unwrap();
        assert_eq!((group.ranges.clone(), group.entries.len()), (vec![5..=5], 2));
        queue.remove(&group);
        assert!(queue.is_empty());
    }

    #[test]
    fn ranges_without_keys() {
        assert_eq!(divided(3..=9, &[]), [3..=9]);
        assert_eq!(divided(3..=9, &[1, 3, 5, 6, 9, 12]), [4..=4, 7..=8]);
        assert_eq!(divided(0..=u64::MAX, &[0, u64::MAX]), [1..=u64::MAX - 1]);
        assert_eq!(divided(4..=4, &[4]), []);
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
                prop_assert_eq!(queue.newest(key, COMMITTED), model.get(&key).copied());
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
