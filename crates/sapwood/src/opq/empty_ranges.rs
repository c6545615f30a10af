//! Ranges of keys that are known to have no record, whatever tombstones and removed records lie in them. A scan that
//! has crossed many of these notes the range; later scans go around it. This is what keeps a queue on top of the store
//! fast: each `first()` would have to pass over all that was consumed before.
//!
//! ```text
//!        removed  removed  removed  …  removed   record       a scan goes all the way, once
//!        [────────── empty since 4711 ────────)  │            the next begins here
//!                    new                                      an insertion cuts it in two
//! ```
//! A range is valid for readers that came at its sequence number or later. For those, everything that was in it then
//! is removed, and whatever was inserted since has cut the range before it became visible.
//!
//! Invariants:
//! 1. Ranges do not overlap, nor touch one another.
//! 2. A range is noted only while insertions are locked out, and only if none came since the reader's time. An
//!    insertion cuts ranges after it is in the queue, and before it is visible. So either the thread that notes finds it
//!    in the queue, or it finds the range.
//! 3. Memory: [`BYTES_MAX`].

use crate::bounds::successor;
use crate::lock_order::{RankedRwLock, rank};
use crate::operation::{KeyspaceId, Operation, OperationRef, SeqNo};
use bytes::Bytes;
use std::collections::{BTreeMap, HashMap};
use std::ops::Bound::{self, Excluded, Included, Unbounded};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst, fence};

/// Bytes of all ranges, some 2000 with short keys: so few that the least database can spare them.
const BYTES_MAX: usize = 256 << 10;
/// Bytes that a range takes besides its keys (two allocations and a slot of a B-tree).
const OVERHEAD: usize = 96;

/// The keys from the first one (including it) up to the second one (without it); `None` is the keyspace's end.
pub(crate) type Keys<'a> = (&'a [u8], Option<&'a [u8]>);

/// See the module documentation.
#[derive(Default)]
pub(crate) struct EmptyRanges {
    /// Number of ranges, and one more while one is noted. Zero where nothing is removed, and then no thread takes the
    /// lock.
    count: AtomicUsize,
    inner: RankedRwLock<rank::EmptyRanges, Inner>,
}

#[derive(Default)]
struct Inner {
    keyspaces: HashMap<KeyspaceId, BTreeMap<Bytes, EmptyRange>>,
    bytes: usize,
}

struct EmptyRange {
    end: Option<Bytes>,
    since: SeqNo,
    was_used: AtomicBool,
}

impl EmptyRange {
    fn reaches(&self, key: &[u8]) -> bool {
        self.end.as_ref().is_none_or(|end| &end[..] >= key)
    }
}

fn up_to(key: &[u8]) -> (Bound<&[u8]>, Bound<&[u8]>) {
    (Unbounded, Included(key))
}

impl EmptyRanges {
    /// Where a scan upwards from `from` goes on, if a range is in its way: behind it, or (`None`) nowhere.
    pub fn above(&self, keyspace: KeyspaceId, from: &[u8], seq: SeqNo) -> Option<Option<Bytes>> {
        if self.is_empty() {
            return None;
        }
        let inner = self.inner.read();
        let (_, range) = inner.keyspaces.get(&keyspace)?.range::<[u8], _>(up_to(from)).next_back()?;
        let is_in = range.end.as_ref().is_none_or(|end| &end[..] > from) && range.since <= seq;
        is_in.then(|| range.used().end.clone())
    }

    /// Where a scan downwards goes on that has everything from `to` on behind it, or nothing (`None`), if a range is in
    /// its way: below this key.
    pub fn below(&self, keyspace: KeyspaceId, to: Option<&[u8]>, seq: SeqNo) -> Option<Bytes> {
        if self.is_empty() {
            return None;
        }
        let inner = self.inner.read();
        let ranges = inner.keyspaces.get(&keyspace)?;
        let (low, range) = match to {
            Some(to) => ranges.range::<[u8], _>((Unbounded, Excluded(to))).next_back()?,
            None => ranges.last_key_value()?,
        };
        let is_in = match to {
            Some(to) => range.reaches(to),
            None => range.end.is_none(),
        };
        (is_in && range.since <= seq).then(|| {
            range.used();
            low.clone()
        })
    }

    pub fn is_empty(&self) -> bool {
        self.count.load(Relaxed) == 0
    }

    /// The same, for a thread that has inserted something: one that notes a range finds it in the queue, or is found here.
    pub fn is_empty_still(&self) -> bool {
        fence(SeqCst);
        self.is_empty()
    }

    /// Notes that a reader at `since` found no record between these keys. `is_sound` says whether nothing was inserted
    /// there since; while it does, no insertion becomes visible.
    pub fn note(
        &self,
        keyspace: KeyspaceId,
        (low, end): Keys<'_>,
        since: SeqNo,
        is_sound: impl FnOnce() -> bool,
    ) {
        if end.is_some_and(|end| end <= low) {
            return;
        }
        let inner = &mut *self.inner.write();
        // From here on a thread that inserts waits for the lock. What was inserted before is found in the queue.
        self.count.store(inner.count() + 1, Relaxed);
        fence(SeqCst);
        if !is_sound() {
            self.count.store(inner.count(), Relaxed);
            return;
        }
        let Inner { keyspaces, bytes } = inner;
        let ranges = keyspaces.entry(keyspace).or_default();
        let (mut low, mut end) = (Bytes::copy_from_slice(low), end.map(Bytes::copy_from_slice));
        let mut since = since;
        // Those that it overlaps or touches become one with it.
        let first = ranges.range::<[u8], _>(up_to(&low)).next_back();
        let first = first.filter(|(_, range)| range.reaches(&low)).map(|(first, _)| first.clone());
        low = first.unwrap_or(low);
        loop {
            let next =
                ranges.range::<[u8], _>((Included(&low[..]), Unbounded)).next().map(|(next, _)| next.clone());
            let Some(next) = next.filter(|next| end.as_ref().is_none_or(|end| next <= end)) else { break };
            let Some(range) = ranges.remove(&next) else { break };
            *bytes -= range.bytes(&next);
            since = since.max(range.since);
            end = end.zip(range.end).map(|(a, b)| a.max(b));
        }
        let range = EmptyRange { end, since, was_used: AtomicBool::new(true) };
        *bytes += range.bytes(&low);
        ranges.insert(low, range);
        if inner.bytes > BYTES_MAX {
            inner.forget_some();
        }
        self.count.store(inner.count(), Relaxed);
    }

    /// These operations are in the queue, and not visible yet.
    pub fn inserted<'a>(&self, operations: impl Iterator<Item = Operation<'a>>) {
        let inner = &mut *self.inner.write();
        let added = operations.filter(Operation::adds).filter_map(Operation::as_change);
        for OperationRef { keyspace, key, .. } in added {
            inner.cut(keyspace, key);
        }
        if inner.bytes > BYTES_MAX {
            inner.forget_some();
        }
        self.count.store(inner.count(), Relaxed);
    }

    /// Forgets everything, and lets no thread ask or note while `work` makes records visible that were never in the queue.
    pub fn forget_while<T>(&self, work: impl FnOnce() -> T) -> T {
        let inner = &mut *self.inner.write();
        *inner = Inner::default();
        self.count.store(0, Relaxed);
        work()
    }
}

impl EmptyRange {
    fn bytes(&self, low: &Bytes) -> usize {
        OVERHEAD + low.len() + self.end.as_ref().map_or(0, Bytes::len)
    }

    fn used(&self) -> &Self {
        if !self.was_used.load(Relaxed) {
            self.was_used.store(true, Relaxed);
        }
        self
    }
}

impl Inner {
    fn count(&self) -> usize {
        self.keyspaces.values().map(BTreeMap::len).sum()
    }

    /// A record comes.
    fn cut(&mut self, keyspace: KeyspaceId, key: &[u8]) {
        let Some(ranges) = self.keyspaces.get_mut(&keyspace) else { return };
        let Some((low, range)) = ranges.range_mut::<[u8], _>(up_to(key)).next_back() else { return };
        if range.end.as_ref().is_some_and(|end| &end[..] <= key) {
            return;
        }
        let before = range.bytes(low);
        let (low, above) = (low.clone(), successor(key));
        let (end, since) = (range.end.replace(Bytes::copy_from_slice(key)), range.since);
        self.bytes = self.bytes - before + range.bytes(&low);
        if low == key {
            let range = ranges.remove(&low);
            self.bytes -= range.map_or(0, |range| range.bytes(&low));
        }
        if end.as_ref().is_none_or(|end| *end > above) {
            let range = EmptyRange { end, since, was_used: AtomicBool::new(true) };
            self.bytes += range.bytes(&above);
            ranges.insert(above, range);
        }
    }

    /// Forgets what was not used since the last time; if that is too little, everything.
    fn forget_some(&mut self) {
        let mut bytes = 0;
        for ranges in self.keyspaces.values_mut() {
            ranges.retain(|low, range| {
                let was_used = std::mem::take(range.was_used.get_mut());
                bytes += if was_used { range.bytes(low) } else { 0 };
                was_used
            });
        }
        self.keyspaces.retain(|_, ranges| !ranges.is_empty());
        self.bytes = bytes;
        if bytes > BYTES_MAX / 4 * 3 {
            *self = Self::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KEYSPACE: KeyspaceId = KeyspaceId(1);

    fn insert(ranges: &EmptyRanges, key: &[u8]) {
        let change = OperationRef { keyspace: KEYSPACE, key, value: Some(b"value") };
        ranges.inserted(std::iter::once(change.into()));
    }

    /// Each key from here to there, since when nothing is in it.
    fn model_of(ranges: &EmptyRanges) -> Vec<Option<SeqNo>> {
        let inner = ranges.inner.read();
        let count: usize = inner.keyspaces.values().map(BTreeMap::len).sum();
        assert_eq!(count, ranges.count.load(Relaxed));
        let bytes: usize = inner.keyspaces.values().flatten().map(|(low, range)| range.bytes(low)).sum();
        assert_eq!(bytes, inner.bytes);
        (0..=255u8)
            .map(|key| {
                let found = inner.keyspaces.get(&KEYSPACE)?.range::<[u8], _>(up_to(&[key])).next_back()?.1;
                found.end.as_ref().is_none_or(|end| end[..] > [key][..]).then_some(found.since)
            })
            .collect()
    }

    proptest! {
        #[test]
        fn ranges_are_what_was_noted_and_not_inserted(
            steps in prop::collection::vec((any::<bool>(), any::<u8>(), prop::option::of(any::<u8>())), 1..60),
        ) {
            let (ranges, mut model) = (EmptyRanges::default(), vec![None; 256]);
            for (seq, (is_insertion, low, end)) in steps.into_iter().enumerate() {
                let seq = seq as SeqNo;
                if is_insertion {
                    insert(&ranges, &[low]);
                    model[usize::from(low)] = None;
                } else {
                    let end_key = end.map(|end| [end]);
                    let keys = (&[low][..], end_key.as_ref().map(|end| &end[..]));
                    ranges.note(KEYSPACE, keys, seq, || true);
                    let end = end.map_or(256, usize::from);
                    model.iter_mut().take(end).skip(usize::from(low)).for_each(|since| *since = Some(seq));
                }
                let found = model_of(&ranges);
                for key in 0..256 {
                    prop_assert_eq!(found[key].is_some(), model[key].is_some(), "key {}", key);
                    // Ranges become one, and then hold since the later of their times.
                    prop_assert!(found[key] >= model[key]);
                }
                for key in (0..=255u8).step_by(5) {
                    let is_free = |key: &u8| model[usize::from(*key)].is_none();
                    let next = (key..=255).find(is_free);
                    let above = ranges.above(KEYSPACE, &[key], seq);
                    let above = above.map(|above| above.map(|above| above[..] == [next.unwrap_or(0)]));
                    prop_assert_eq!(above.is_some(), next != Some(key));
                    prop_assert!(above.is_none_or(|above| above.is_none_or(|above| above)));
                    let before = (0..key).rev().find(is_free);
                    let below = ranges.below(KEYSPACE, Some(&[key]), seq);
                    if key > 0 && before == Some(key - 1) {
                        // What lies between these two keys is not a key here.
                        prop_assert!(below.is_none_or(|below| below == successor(&[key - 1])));
                    } else if key > 0 {
                        let below = below.expect("a range lies before");
                        prop_assert!(below.len() == 2 || before.is_none_or(|before| below[..] > [before][..]));
                    }
                }
            }
        }
    }

    #[test]
    fn readers_of_earlier_see_what_was_there() {
        let ranges = EmptyRanges::default();
        ranges.note(KEYSPACE, (b"a", Some(b"m")), 10, || true);
        assert_eq!(ranges.above(KEYSPACE, b"b", 9), None);
        assert_eq!(ranges.above(KEYSPACE, b"b", 10), Some(Some(Bytes::from("m"))));
        assert_eq!(ranges.below(KEYSPACE, Some(b"m"), 9), None);
        assert_eq!(ranges.below(KEYSPACE, Some(b"m"), 10), Some(Bytes::from("a")));
        assert_eq!(ranges.above(KeyspaceId(2), b"b", 10), None);
        ranges.note(KEYSPACE, (b"p", None), 10, || false);
        assert_eq!(ranges.above(KEYSPACE, b"q", 10), None);
        ranges.note(KEYSPACE, (b"p", None), 10, || true);
        assert_eq!(ranges.above(KEYSPACE, b"q", 10), Some(None));
        assert_eq!(ranges.below(KEYSPACE, None, 10), Some(Bytes::from("p")));
        ranges.forget_while(|| ());
        assert!(ranges.is_empty() && ranges.above(KEYSPACE, b"q", 10).is_none());
    }

    #[test]
    fn unused_ranges_are_forgotten_before_memory_is_short() {
        let ranges = EmptyRanges::default();
        let key = |number: u32| [&number.to_be_bytes()[..], &[0; 60]].concat();
        for number in 0..100_000u32 {
            ranges.note(KEYSPACE, (&key(2 * number), Some(&key(2 * number + 1))), 1, || true);
            assert!(ranges.inner.read().bytes <= BYTES_MAX);
            assert!(ranges.above(KEYSPACE, &key(0), 1).is_some() || number > 0);
        }
        assert!(!ranges.is_empty());
        ranges.note(KEYSPACE, (&[], None), 1, || true);
        assert_eq!(ranges.count.load(Relaxed), 1);
        for number in 0..100_000u32 {
            insert(&ranges, &key(number));
            assert!(ranges.inner.read().bytes <= BYTES_MAX);
        }
    }
}
