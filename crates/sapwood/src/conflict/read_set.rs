//! What a transaction has read: keys, found or absent, and ranges, as far as they were observed. A commit of others that changes
//! one of these conflicts with the transaction.
//!
//! A range counts from where its iterator began to the last key that it returned, or to its end if it ran out: what lies
//! beyond was not observed. All ranges are half-open, `[start, end)`: the key right behind `key` is `key` with a zero byte.
//!
//! Invariants:
//! 1. Whatever was read is in the set. There may be more in it: a set that is too large is made coarser, never incomplete.
//! 2. The ranges of closed iterators are disjoint and do not touch.

use crate::bounds::{end_at, first_at, successor};
use crate::conflict::key_ranges::KeyRanges;
use crate::operation::{KeyRange, KeyspaceId};
use crate::value::Kept;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

/// Memory of a key or a range in the set beside its bytes, in bytes: its place in a B-tree that is two thirds full, and the header of
/// an allocation.
const ENTRY: usize = 80;

/// Memory of the first key or range of a keyspace beyond that, in bytes: a node of its B-tree has room for eleven of 64.
const FIRST: usize = 720;

/// How many neighbouring keys and ranges become one when the set is made coarser: enough that this is rare, and few,
/// since each range conflicts with more than was read.
const COARSER: usize = 16;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct ReadSet {
    keyspaces: BTreeMap<KeyspaceId, KeyspaceReads>,
    /// Iterators that may go on.
    open: Vec<Option<OpenRange>>,
    bytes: usize,
    bytes_max: usize,
    /// It is made coarser when it takes more: `bytes_max`, or twice what could not be made less.
    limit: usize,
    /// Ranges are left out when conflicts are sought: a fault that the checker of serializability must notice.
    #[cfg(test)]
    ignores_ranges: bool,
}

#[derive(Debug, Default)]
struct KeyspaceReads {
    /// In order: removed ranges look for the first one within them, with the log locked.
    keys: BTreeSet<Bytes>,
    ranges: KeyRanges,
    /// All keys count as read, and none is kept.
    is_all: bool,
}

#[derive(Debug)]
struct OpenRange {
    keyspace: KeyspaceId,
    start: Bytes,
    end: Option<Bytes>,
    /// The last key that it returned at the front.
    front: Option<Kept>,
    /// The last key that it returned at the back.
    back: Option<Kept>,
    is_exhausted: bool,
}

/// Names an iterator whose range is still growing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpenRangeId(usize);

/// An end of an iterator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Front,
    Back,
}

impl ReadSet {
    /// An empty set, which is made coarser when it takes more than `bytes_max`.
    pub fn new(bytes_max: usize) -> Self {
        Self { bytes_max, limit: bytes_max, ..Self::default() }
    }

    #[cfg(test)]
    pub fn ignoring_ranges(self, ignores_ranges: bool) -> Self {
        Self { ignores_ranges, ..self }
    }

    /// Whether nothing was read.
    pub fn is_empty(&self) -> bool {
        self.keyspaces.is_empty()
    }

    /// Bytes of memory taken, about.
    #[cfg(test)]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// A key was read, whether it was there or not.
    pub fn add_key(&mut self, keyspace: KeyspaceId, key: &[u8]) {
        let reads = reads_of(&mut self.keyspaces, &mut self.bytes, keyspace);
        if !reads.is_all && !reads.ranges.contains(key) && !reads.keys.contains(key) {
            reads.keys.insert(Bytes::copy_from_slice(key));
            self.bytes += key.len() + ENTRY;
            self.limit();
        }
    }

    /// An iterator begins.
    pub fn open_range(
        &mut self,
        keyspace: KeyspaceId,
        low: &Bound<Bytes>,
        high: &Bound<Bytes>,
    ) -> OpenRangeId {
        let (start, end) = (first_at(low), end_at(high));
        let range = OpenRange { keyspace, start, end, front: None, back: None, is_exhausted: false };
        let id = self.open.iter().position(Option::is_none).unwrap_or(self.open.len());
        match self.open.get_mut(id) {
            Some(free) => *free = Some(range),
            None => self.open.push(Some(range)),
        }
        OpenRangeId(id)
    }

    /// An iterator has returned `key`. (Nothing happens if the transaction is over.)
    pub fn advance(&mut self, OpenRangeId(id): OpenRangeId, end: End, key: &Bytes) {
        if let Some(Some(range)) = self.open.get_mut(id) {
            let last = match end {
                End::Front => &mut range.front,
                End::Back => &mut range.back,
            };
            last.get_or_insert_default().keep(key);
        }
    }

    /// An iterator has found that there is no more in its range.
    pub fn exhaust(&mut self, OpenRangeId(id): OpenRangeId) {
        if let Some(Some(range)) = self.open.get_mut(id) {
            range.is_exhausted = true;
        }
    }

    /// An iterator will not go on.
    pub fn close_range(&mut self, OpenRangeId(id): OpenRangeId) {
        if let Some(range) = self.open.get_mut(id).and_then(Option::take) {
            self.add_range(range);
            self.limit();
        }
    }

    /// Counts what iterators that may still go on have observed so far.
    pub fn close(&mut self) {
        for range in std::mem::take(&mut self.open).into_iter().flatten() {
            self.add_range(range);
        }
    }

    fn add_range(&mut self, range: OpenRange) {
        let OpenRange { keyspace, start, end, front, back, is_exhausted } = range;
        if !is_exhausted && front.is_none() && back.is_none() {
            return;
        }
        let reads = reads_of(&mut self.keyspaces, &mut self.bytes, keyspace);
        if reads.is_all {
            return;
        }
        let ranges = &mut reads.ranges;
        let grown = if is_exhausted {
            ranges.add(start, end)
        } else {
            // A long key shares the memory of its node.
            let back = back.map(|key| ranges.add(Bytes::copy_from_slice(key.bytes()), end)).unwrap_or(0);
            back + front.map(|key| ranges.add(start, Some(successor(key.bytes())))).unwrap_or(0)
        };
        self.bytes = self.bytes.saturating_add_signed(grown);
    }

    /// A key in this range that the transaction has read, or the first key of what it has read of it.
    pub fn first_in(&self, range: KeyRange<'_>) -> Option<Bytes> {
        let reads = self.keyspaces.get(&range.keyspace)?;
        if reads.is_all {
            return Some(Bytes::copy_from_slice(range.from));
        }
        let first = reads.keys.range::<[u8], _>((Bound::Included(range.from), Bound::Unbounded)).next();
        let key = first.filter(|key| range.contains(range.keyspace, key)).cloned();
        #[cfg(test)]
        if self.ignores_ranges {
            return key;
        }
        key.or_else(|| reads.ranges.first_in(range))
    }

    /// Whether the transaction has read this key, or a range that includes it.
    pub fn contains(&self, keyspace: KeyspaceId, key: &[u8]) -> bool {
        let Some(reads) = self.keyspaces.get(&keyspace) else { return false };
        #[cfg(test)]
        if self.ignores_ranges {
            return reads.keys.contains(key);
        }
        reads.is_all || reads.keys.contains(key) || reads.ranges.contains(key)
    }

    /// Whether it has read anything of a keyspace.
    pub fn has_read_of(&self, keyspace: KeyspaceId) -> bool {
        self.keyspaces.contains_key(&keyspace)
    }

    /// The keyspaces of which it has read anything.
    pub fn keyspaces(&self) -> impl Iterator<Item = KeyspaceId> + '_ {
        self.keyspaces.keys().copied()
    }

    /// A key that it has read, in this keyspace or in any, for messages. Empty for a range from the beginning, and where all counts as read.
    pub fn example(&self, keyspace: Option<KeyspaceId>) -> Option<(KeyspaceId, Bytes)> {
        self.keyspaces.iter().filter(|(id, _)| keyspace.is_none_or(|keyspace| keyspace == **id)).find_map(
            |(id, reads)| {
                let key = reads.keys.iter().next().or(reads.ranges.starts().next()).cloned();
                key.or_else(|| reads.is_all.then(Bytes::new)).map(|key| (*id, key))
            },
        )
    }

    /// Makes the set coarser if it is too large: neighbours become ranges. Where that is little, it is many keyspaces of which little was
    /// read: of these all counts as read.
    fn limit(&mut self) {
        if self.bytes <= self.limit {
            return;
        }
        self.join_neighbours();
        if self.bytes > self.bytes_max / 2 {
            for reads in self.keyspaces.values_mut().filter(|reads| reads.ranges.len() == 1) {
                *reads = KeyspaceReads { is_all: true, ..KeyspaceReads::default() };
            }
            self.bytes = self.keyspaces.values().map(KeyspaceReads::bytes).sum();
        }
        self.limit = self.bytes_max.max(2 * self.bytes);
    }

    fn join_neighbours(&mut self) {
        for reads in self.keyspaces.values_mut() {
            let keys = std::mem::take(&mut reads.keys).into_iter();
            let mut all: Vec<_> = keys.map(|key| (key.clone(), Some(successor(&key)))).collect();
            all.extend(std::mem::take(&mut reads.ranges).into_ranges());
            all.sort_unstable();
            for neighbours in all.chunks(COARSER) {
                // A key may lie in a range that began before it.
                let furthest = neighbours.iter().map(|(_, end)| end).max_by_key(|end| (end.is_none(), *end));
                if let (Some((start, _)), Some(end)) = (neighbours.first(), furthest) {
                    reads.ranges.add(start.clone(), end.clone());
                }
            }
        }
        self.bytes = self.keyspaces.values().map(KeyspaceReads::bytes).sum();
    }
}

impl KeyspaceReads {
    /// Bytes of memory taken, about, where no single key is kept.
    fn bytes(&self) -> usize {
        ENTRY + if self.is_all { 0 } else { FIRST + self.ranges.bytes() }
    }
}

/// What was read of a keyspace, in a set of so many bytes.
fn reads_of<'r>(
    keyspaces: &'r mut BTreeMap<KeyspaceId, KeyspaceReads>,
    bytes: &mut usize,
    keyspace: KeyspaceId,
) -> &'r mut KeyspaceReads {
    keyspaces.entry(keyspace).or_insert_with(|| {
        *bytes += FIRST + ENTRY;
        KeyspaceReads::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MAIN: KeyspaceId = KeyspaceId(1);

    fn key(number: u8) -> Bytes {
        Bytes::from(vec![number])
    }

    #[test]
    fn a_range_counts_as_far_as_it_was_observed() {
        let mut set = ReadSet::new(1 << 20);
        let up = set.open_range(MAIN, &Bound::Excluded(key(10)), &Bound::Included(key(50)));
        set.close_range(up);
        assert!(set.is_empty(), "nothing was observed");
        let up = set.open_range(MAIN, &Bound::Excluded(key(10)), &Bound::Included(key(50)));
        set.advance(up, End::Front, &key(20));
        set.advance(up, End::Front, &key(30));
        set.advance(up, End::Back, &key(45));
        set.close();
        let of = |numbers: std::ops::Range<u8>| {
            numbers.filter(|number| set.contains(MAIN, &[*number])).collect::<Vec<_>>()
        };
        assert_eq!(of(0..100), (11..=30).chain(45..=50).collect::<Vec<_>>());
        assert!(set.contains(MAIN, &[10, 0]) && set.contains(MAIN, &[30]) && !set.contains(MAIN, &[30, 0]));
        assert!(!set.contains(KeyspaceId(2), &[20]));
        set.advance(up, End::Front, &key(40));
        set.close_range(up);
        assert!(!set.contains(MAIN, &[40]), "the transaction is over");
        let all = set.open_range(MAIN, &Bound::Unbounded, &Bound::Unbounded);
        set.exhaust(all);
        set.close_range(all);
        assert!(set.contains(MAIN, &[0]) && set.contains(MAIN, &[255; 9]));
    }

    /// Each further read went through all keyspaces once more, and nothing became less.
    #[test]
    fn a_little_of_each_of_many_keyspaces_becomes_all_of_each() {
        const MAX: usize = 64 << 10;
        let mut set = ReadSet::new(MAX);
        let (mut limits, mut limit) = (0, set.limit);
        for number in 1..=3000 {
            set.add_key(KeyspaceId(number), &[7; 1000]);
            assert!(set.bytes() <= MAX.max(2 * number as usize * ENTRY) + FIRST + 2000, "{number}");
            limits += usize::from(std::mem::replace(&mut limit, set.limit) != set.limit);
        }
        // The set grows by a part each time: what is gone through is a multiple of what is there.
        assert!(limits < 100, "{limits}");
        assert!((1..=3000).all(|number| set.contains(KeyspaceId(number), &[7; 1000])));
        assert!(!set.has_read_of(KeyspaceId(3001)));
        let up = set.open_range(KeyspaceId(1), &Bound::Unbounded, &Bound::Unbounded);
        set.advance(up, End::Front, &key(9));
        set.close_range(up);
        let range = KeyRange { keyspace: KeyspaceId(1), from: b"x", to: Some(b"y") };
        assert_eq!(set.first_in(range).as_deref(), Some(&b"x"[..]));
        assert_eq!(set.example(Some(KeyspaceId(1))), Some((KeyspaceId(1), Bytes::new())));
        let bytes = set.bytes();
        set.add_key(KeyspaceId(1), b"more");
        assert_eq!(set.bytes(), bytes);
    }

    proptest! {
        /// Small sets are exact, large ones have all that was read.
        #[test]
        fn the_set_is_what_was_read(
            reads in prop::collection::vec((any::<u8>(), 0u8..4, any::<bool>()), 0..200),
            is_small in any::<bool>(),
        ) {
            let mut set = ReadSet::new(if is_small { 2000 } else { 1 << 20 });
            let mut model = [false; 256];
            for (from, len, is_key) in reads {
                if is_key {
                    set.add_key(MAIN, &[from]);
                    model[usize::from(from)] = true;
                    continue;
                }
                let to = from.saturating_add(len);
                let range = set.open_range(MAIN, &Bound::Included(key(from)), &Bound::Included(key(to)));
                set.exhaust(range);
                set.close_range(range);
                model[usize::from(from)..=usize::from(to)].fill(true);
            }
            for number in 0..=255u8 {
                let is_in = set.contains(MAIN, &[number]);
                prop_assert!(is_in || !model[usize::from(number)], "{}", number);
                prop_assert!(is_small || is_in == model[usize::from(number)], "{}", number);
            }
            let ranges: Vec<_> = set.keyspaces.values().flat_map(|reads| reads.ranges.clone().into_ranges()).collect();
            prop_assert!(ranges.is_sorted_by(|(_, end), (start, _)| end.as_ref().is_some_and(|end| end < start)));
            if is_small {
                prop_assert!(set.bytes() <= 2000 + 2 * ENTRY);
            }
        }
    }
}
