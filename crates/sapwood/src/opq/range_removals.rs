//! The ranges whose records were removed at once, in a queue. Whatever is older and lies in such a range is removed, in the
//! queue and beneath it.
//!
//! ```text
//! removed at 5     [───────────)
//! removed at 9          [───────────)
//! fragments        [ 5 )[ 5,9 )[ 9  )        disjoint, each with the numbers at which it was removed
//! ```
//! A reader at `seq` looks for the newest number up to `seq` in the fragment of its key. (RocksDB and Pebble fragment range
//! tombstones in the same way.)
//!
//! Invariants:
//! 1. Fragments do not overlap. The numbers of one ascend, and there is at least one.
//! 2. A reader at an older number sees what it saw. Of one group of changes only the last number of a fragment is kept, since no reader
//!    is at a number within a group; neighbours with the same numbers are one fragment. So a group takes no more than its ranges.
//! 3. While no range was removed, readers take no lock: `bytes` is zero.

use crate::bounds::is_below;
use crate::lock_order::{RankedRwLock, rank};
use crate::operation::{KeyRange, KeyspaceId, SeqNo};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Included, Unbounded};
use std::sync::atomic::{AtomicUsize, Ordering::Acquire, Ordering::Release};

/// Memory of a fragment beside its keys and numbers, in bytes: its place in a B-tree that is two thirds full, two allocations.
const OVERHEAD: usize = 160;

/// Memory of a keyspace's first fragment beyond that, in bytes: a node of its B-tree has room for eleven of 88 bytes.
const FIRST: usize = 900;

/// A part of a range that was removed.
#[derive(Clone, Debug)]
struct Fragment {
    end: Option<Bytes>,
    /// When it was removed.
    seqs: Vec<SeqNo>,
}

impl Fragment {
    fn newest(&self, seq: SeqNo) -> Option<SeqNo> {
        let seen = self.seqs.partition_point(|at| *at <= seq);
        seen.checked_sub(1).map(|last| self.seqs[last])
    }

    fn bytes(&self, start: &[u8]) -> usize {
        OVERHEAD
            + start.len()
            + self.end.as_ref().map_or(0, Bytes::len)
            + self.seqs.len() * size_of::<SeqNo>()
    }
}

/// Fragments by their start.
type Fragments = BTreeMap<Bytes, Fragment>;

/// The keys around one, as a reader sees them: all of them are in removed ranges, or none is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stretch<E> {
    pub is_removed: bool,
    /// Where it ends in the direction of the walk: above, a key that is not in it, or `None` at the keyspace's end; below, its
    /// first key.
    pub end: E,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct RangeRemovals {
    fragments: RankedRwLock<rank::RangeRemovals, BTreeMap<KeyspaceId, Fragments>>,
    bytes: AtomicUsize,
}

impl RangeRemovals {
    pub fn is_empty(&self) -> bool {
        self.bytes() == 0
    }

    /// Bytes of memory taken.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Acquire)
    }

    /// Adds a range that was removed at `seq`, which is above all numbers before. `group`: the first number of the changes that become
    /// visible together with it.
    pub fn add(&self, range: KeyRange<'_>, seq: SeqNo, group: SeqNo) {
        let mut keyspaces = self.fragments.write();
        let fragments = keyspaces.entry(range.keyspace).or_default();
        let mut grown = if fragments.is_empty() { FIRST } else { 0 };
        let range_end = range.to.map(Bytes::copy_from_slice);
        grown += split(fragments, range.from);
        if let Some(to) = range.to {
            grown += split(fragments, to);
        }
        // From here on each fragment lies in the range or outside of it.
        // Where the next gap begins, unless a fragment does.
        let mut next = Some(Bytes::copy_from_slice(range.from));
        let (mut gaps, mut of_group) = (Vec::new(), Vec::new());
        for (start, fragment) in fragments.range_mut::<[u8], _>((Included(range.from), Unbounded)) {
            if !is_below(start, range_end.as_ref()) {
                break;
            }
            if let Some(gap) = next.filter(|next| next < start) {
                gaps.push((gap, Some(start.clone())));
            }
            match fragment.seqs.last_mut() {
                Some(last) if *last >= group => {
                    *last = seq;
                    of_group.push(start.clone());
                }
                _ => {
                    fragment.seqs.push(seq);
                    grown += size_of::<SeqNo>();
                }
            }
            next = fragment.end.clone();
        }
        if let Some(gap) = next.filter(|next| is_below(next, range_end.as_ref())) {
            gaps.push((gap, range_end));
        }
        for (start, end) in gaps {
            let fragment = Fragment { end, seqs: vec![seq] };
            grown += fragment.bytes(&start);
            of_group.push(start.clone());
            fragments.insert(start, fragment);
        }
        let freed: usize = of_group.iter().map(|start| unite(fragments, start)).sum();
        self.bytes.store(self.bytes() + grown - freed, Release);
    }

    /// Whether a range was removed that has this key, or one above it.
    pub fn reach(&self, keyspace: KeyspaceId, key: &[u8]) -> bool {
        if self.is_empty() {
            return false;
        }
        let keyspaces = self.fragments.read();
        let last = keyspaces.get(&keyspace).and_then(|fragments| fragments.last_key_value());
        last.is_some_and(|(_, last)| is_below(key, last.end.as_ref()))
    }

    /// When a key was last removed with a range, as a reader at `seq` sees it.
    pub fn newest(&self, keyspace: KeyspaceId, key: &[u8], seq: SeqNo) -> Option<SeqNo> {
        if self.is_empty() {
            return None;
        }
        let keyspaces = self.fragments.read();
        let (_, fragment) = at_or_below(keyspaces.get(&keyspace)?, key)?;
        if is_below(key, fragment.end.as_ref()) { fragment.newest(seq) } else { None }
    }

    /// The stretch that a walk upwards enters at `key`.
    pub fn above(&self, keyspace: KeyspaceId, key: &[u8], seq: SeqNo) -> Stretch<Option<Bytes>> {
        let keyspaces = self.fragments.read();
        let Some(fragments) = keyspaces.get(&keyspace) else {
            return Stretch { is_removed: false, end: None };
        };
        let is_seen = |fragment: &Fragment| fragment.newest(seq).is_some();
        let here =
            at_or_below(fragments, key).filter(|(_, here)| is_below(key, here.end.as_ref()) && is_seen(here));
        let Some((_, here)) = here else {
            let mut next = fragments.range::<[u8], _>((Excluded(key), Unbounded));
            let next = next.find(|(_, fragment)| is_seen(fragment)).map(|(start, _)| start.clone());
            return Stretch { is_removed: false, end: next };
        };
        let mut end = here.end.clone();
        // Neighbours that were removed too belong to it.
        while let Some(next) = end.as_ref().and_then(|end| fragments.get(end)).filter(|next| is_seen(next)) {
            end = next.end.clone();
        }
        Stretch { is_removed: true, end }
    }

    /// The stretch that a walk downwards enters below `key`, or from the keyspace's end.
    pub fn below(&self, keyspace: KeyspaceId, key: Option<&[u8]>, seq: SeqNo) -> Stretch<Bytes> {
        let keyspaces = self.fragments.read();
        let Some(fragments) = keyspaces.get(&keyspace) else {
            return Stretch { is_removed: false, end: Bytes::new() };
        };
        let is_seen = |fragment: &Fragment| fragment.newest(seq).is_some();
        let bound = key.map_or(Unbounded, Excluded);
        let mut down = fragments.range::<[u8], _>((Unbounded, bound)).rev();
        let reaches = |fragment: &Fragment| match (&fragment.end, key) {
            (None, _) => true,
            (Some(end), Some(key)) => &end[..] >= key,
            (Some(_), None) => false,
        };
        let first = down.find(|(_, fragment)| is_seen(fragment));
        let Some((mut start, fragment)) = first else {
            return Stretch { is_removed: false, end: Bytes::new() };
        };
        if !reaches(fragment) {
            return Stretch { is_removed: false, end: fragment.end.clone().unwrap_or_default() };
        }
        for (lower, fragment) in down {
            if !is_seen(fragment) || fragment.end.as_ref() != Some(start) {
                break;
            }
            start = lower;
        }
        Stretch { is_removed: true, end: start.clone() }
    }

    /// The disjoint ranges that were removed, in order, as keyspace, start and end.
    pub fn all(&self) -> Vec<(KeyspaceId, Bytes, Option<Bytes>)> {
        let keyspaces = self.fragments.read();
        let mut all: Vec<(KeyspaceId, Bytes, Option<Bytes>)> = Vec::new();
        for (keyspace, fragments) in keyspaces.iter() {
            for (start, fragment) in fragments {
                match all.last_mut() {
                    Some((of, _, to)) if of == keyspace && to.as_ref() == Some(start) => {
                        to.clone_from(&fragment.end);
                    }
                    _ => all.push((*keyspace, start.clone(), fragment.end.clone())),
                }
            }
        }
        all
    }
}

fn at_or_below<'f>(fragments: &'f Fragments, key: &[u8]) -> Option<(&'f Bytes, &'f Fragment)> {
    fragments.range::<[u8], _>((Unbounded, Included(key))).next_back()
}

/// Cuts the fragment in two that has `key` within it. Returns the bytes that this takes.
fn split(fragments: &mut Fragments, key: &[u8]) -> usize {
    let mut at = fragments.range_mut::<[u8], _>((Unbounded, Excluded(key)));
    let Some((start, lower)) = at.next_back().filter(|(_, lower)| is_below(key, lower.end.as_ref())) else {
        return 0;
    };
    let key = Bytes::copy_from_slice(key);
    let upper = Fragment { end: lower.end.replace(key.clone()), seqs: lower.seqs.clone() };
    let upper_end = upper.end.as_ref().map_or(0, Bytes::len);
    // The lower part has the key as its end now, and had the upper part's.
    let grown = upper.bytes(&key) + key.len();
    let grown = grown.saturating_sub(upper_end);
    debug_assert!(start < &key);
    fragments.insert(key, upper);
    grown
}

/// Makes a fragment a part of the one before it, if that ends where it begins and has the same numbers. Returns the bytes that this frees.
fn unite(fragments: &mut Fragments, start: &Bytes) -> usize {
    let mut below = fragments.range::<[u8], _>((Unbounded, Excluded(&start[..])));
    let (Some((lower_start, lower)), Some(upper)) = (below.next_back(), fragments.get(start)) else {
        return 0;
    };
    if lower.end.as_ref() != Some(start) || lower.seqs != upper.seqs {
        return 0;
    }
    let (lower_start, before) = (lower_start.clone(), lower.bytes(lower_start) + upper.bytes(start));
    let end = fragments.remove(start).and_then(|upper| upper.end);
    let Some(lower) = fragments.get_mut(&lower_start) else { return 0 };
    lower.end = end;
    before - lower.bytes(&lower_start)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MAIN: KeyspaceId = KeyspaceId(3);

    /// When each key was removed, by number; keys have one byte.
    fn model(removed: &[(u8, Option<u8>)], seq: SeqNo) -> Vec<Option<SeqNo>> {
        let newest = |key: u8| {
            let within = |(from, to): &(u8, Option<u8>)| *from <= key && to.is_none_or(|to| key < to);
            (0..=seq).rev().find(|at| removed.get(*at as usize).is_some_and(within))
        };
        (0..=255).map(newest).collect()
    }

    proptest! {
        #[test]
        fn readers_see_what_was_removed_by_their_time(
            removed in prop::collection::vec((1u8..20, prop::option::of(1u8..20)), 0..12),
            seq in 0u64..14,
            group in 1u64..6,
        ) {
            // No reader is at a number within a group.
            let seq = seq / group * group + group - 1;
            let width = |(from, width): &(u8, Option<u8>)| (*from, width.map(|width| from + width));
            let removed: Vec<_> = removed.iter().map(width).collect();
            let ranges = RangeRemovals::default();
            for (at, (from, to)) in removed.iter().enumerate() {
                let to = to.as_ref().map(std::slice::from_ref);
                ranges.add(KeyRange { keyspace: MAIN, from: &[*from], to }, at as u64, at as u64 / group * group);
            }
            prop_assert_eq!(ranges.is_empty(), removed.is_empty());
            let model = model(&removed, seq);
            for key in 0..60u8 {
                let here = model[usize::from(key)];
                prop_assert_eq!(ranges.newest(MAIN, &[key], seq), here);
                prop_assert_eq!(ranges.newest(KeyspaceId(4), &[key], seq), None);
                let Stretch { is_removed, end } = ranges.above(MAIN, &[key], seq);
                prop_assert_eq!(is_removed, here.is_some());
                let other = (key..=255).find(|key| model[usize::from(*key)].is_some() != is_removed);
                prop_assert_eq!(end, other.map(|key| Bytes::copy_from_slice(&[key])));
                // Downwards the first key in question is the one before, with anything behind it.
                let Stretch { is_removed, end } = ranges.below(MAIN, Some(&[key]), seq);
                let last = key.checked_sub(1);
                prop_assert_eq!(is_removed, last.is_some_and(|last| model[usize::from(last)].is_some()));
                let other = (0..key).rev().find(|key| model[usize::from(*key)].is_some() != is_removed);
                prop_assert_eq!(end, other.map_or_else(Bytes::new, |key| Bytes::copy_from_slice(&[key + 1])));
            }
            let last = model[255].is_some();
            prop_assert_eq!(ranges.below(MAIN, None, seq).is_removed, last);
            let newest = self::model(&removed, 99);
            let mut covered = vec![false; 256];
            for (keyspace, start, end) in ranges.all() {
                prop_assert_eq!(keyspace, MAIN);
                (start[0]..=end.map_or(255, |end| end[0] - 1)).for_each(|key| covered[usize::from(key)] = true);
            }
            prop_assert!(newest.iter().map(Option::is_some).eq(covered));
            let keyspaces = ranges.fragments.read();
            let bytes = keyspaces.values().flatten().map(|(start, fragment)| fragment.bytes(start));
            prop_assert_eq!(ranges.bytes(), bytes.sum::<usize>() + keyspaces.len() * FIRST);
        }
    }

    /// A range in each of many keyspaces took several times what was counted.
    #[test]
    fn the_first_range_of_a_keyspace_counts_with_its_node() {
        let ranges = RangeRemovals::default();
        for number in 0..1000 {
            let keyspace = KeyspaceId(number);
            ranges.add(
                KeyRange { keyspace, from: b"a", to: Some(b"b") },
                u64::from(number),
                u64::from(number),
            );
        }
        // Bytes of a node of eleven, without what it points to.
        let node = 11 * size_of::<(Bytes, Fragment)>();
        assert!(ranges.bytes() >= 1000 * node, "{} bytes", ranges.bytes());
    }

    #[test]
    fn many_ranges_side_by_side_cost_little_each() {
        let ranges = RangeRemovals::default();
        let key = |number: u32| number.to_be_bytes();
        for number in 0..100_000 {
            let (from, to) = (key(2 * number), key(2 * number + 1));
            ranges.add(
                KeyRange { keyspace: MAIN, from: &from, to: Some(&to) },
                u64::from(number),
                u64::from(number),
            );
        }
        assert!(ranges.bytes() < 100_000 * 200);
        assert_eq!(ranges.newest(MAIN, &key(50_000), 99_999), Some(25_000));
        assert_eq!(ranges.newest(MAIN, &key(50_001), 99_999), None);
    }

    /// Each had a number in every range before it.
    #[test]
    fn a_group_takes_no_more_than_its_ranges() {
        let key = |number: u32| number.to_be_bytes();
        type Range = fn(u32) -> (u32, Option<u32>);
        let kinds: [Range; 4] = [
            |number| (0, Some(number + 1)),
            |number| (0, Some(30_000 - number)),
            |number| (number, None),
            |number| (number, Some(number + 20_000)),
        ];
        for range in kinds {
            let ranges = RangeRemovals::default();
            for number in 0..20_000 {
                let (from, to) = range(number);
                let (from, to) = (key(from), to.map(key));
                let range =
                    KeyRange { keyspace: MAIN, from: &from, to: to.as_ref().map(<[u8; 4]>::as_slice) };
                ranges.add(range, 100 + u64::from(number), 100);
            }
            assert!(ranges.bytes() < 20_000 * 200, "{}", ranges.bytes());
            assert!(ranges.newest(MAIN, &key(5_000), 20_099).is_some());
        }
    }
}
