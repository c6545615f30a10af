//! Ranges of keys that are known to have no record, whatever tombstones, removed and expired records lie in them. A scan that
//! has crossed many of these notes the range; later scans go around it. This is what keeps a queue on top of the store
//! fast: each `first()` would have to pass over all that was consumed before.
//!
//! ```text
//!        removed  removed  removed  …  removed   record       a scan goes all the way, once
//!        [────────── empty since 4711 ────────)  │            the next begins here
//!                    new                                      an insertion cuts it in two
//! ```
//! A range is valid for readers that came at its sequence number or later. For those, everything that was in it then
//! is removed or has expired, and whatever was inserted since has cut the range before it became visible.
//!
//! Invariants:
//! 1. Ranges do not overlap, nor touch one another.
//! 2. A range is noted only while insertions are locked out, and only if none came since the reader's time. An
//!    insertion cuts ranges after it is in the queue, and before it is visible. So either the thread that notes finds it
//!    in the queue, or it finds the range.
//! 3. Records that come to a keyspace without the queue (ingestion) end its ranges. One is noted only by a reader whose
//!    state has these records.
//! 4. Memory: [`BYTES_MAX`], and a few numbers.

use crate::bounds::successor;
use crate::lock_order::{RankedRwLock, rank};
use crate::operation::{KeyspaceId, Operation, OperationRef, SeqNo};
use bytes::Bytes;
use std::borrow::Borrow;
use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap};
use std::ops::Bound::{self, Excluded, Included, Unbounded};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst, fence};

/// Bytes of all ranges, some 1400 with short keys: so few that the least database can spare them.
const BYTES_MAX: usize = 256 << 10;
/// Bytes that a range takes besides its keys: two allocations and a slot of a B-tree that is two thirds full. There is one tree for all
/// keyspaces: with one for each, the first range of a keyspace would take a node.
const OVERHEAD: usize = 160;
/// Keyspaces of which it is remembered one by one when records came to them without the queue (count): a few KiB.
const GROWN_MAX: usize = 100;

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
    ranges: BTreeMap<Low, EmptyRange>,
    bytes: usize,
    grown: Grown,
}

/// The last ingestion, by [`State::ingested`](crate::current_state::State::ingested), ...
#[derive(Default)]
struct Grown {
    /// ... into each of the keyspaces that had the latest,
    last: HashMap<KeyspaceId, u64>,
    /// and at most into any other.
    others: u64,
}

impl Grown {
    fn of(&self, keyspace: KeyspaceId) -> u64 {
        self.last.get(&keyspace).copied().unwrap_or(self.others)
    }
}

/// Where a range begins.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Low(KeyspaceId, Bytes);

/// The same, wherever the key is: it is looked for without a copy.
trait Place {
    fn place(&self) -> (KeyspaceId, &[u8]);
}

impl Place for Low {
    fn place(&self) -> (KeyspaceId, &[u8]) {
        (self.0, &self.1)
    }
}

impl Place for (KeyspaceId, &[u8]) {
    fn place(&self) -> (KeyspaceId, &[u8]) {
        *self
    }
}

impl<'p> Borrow<dyn Place + 'p> for Low {
    fn borrow(&self) -> &(dyn Place + 'p) {
        self
    }
}

impl PartialEq for dyn Place + '_ {
    fn eq(&self, other: &Self) -> bool {
        self.place() == other.place()
    }
}

impl Eq for dyn Place + '_ {}

impl PartialOrd for dyn Place + '_ {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for dyn Place + '_ {
    fn cmp(&self, other: &Self) -> Ordering {
        self.place().cmp(&other.place())
    }
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

impl EmptyRanges {
    /// Where a scan upwards from `from` goes on, if a range is in its way: behind it, or (`None`) nowhere.
    pub fn above(&self, keyspace: KeyspaceId, from: &[u8], seq: SeqNo) -> Option<Option<Bytes>> {
        if self.is_empty() {
            return None;
        }
        let inner = self.inner.read();
        let (_, range) = inner.up_to(keyspace, Included(from))?;
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
        let (low, range) = inner.up_to(keyspace, to.map_or(Unbounded, Excluded))?;
        let is_in = match to {
            Some(to) => range.reaches(to),
            None => range.end.is_none(),
        };
        (is_in && range.since <= seq).then(|| {
            range.used();
            low.1.clone()
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
    /// there since, given the number of the last ingestion into the keyspace; while it does, no insertion becomes visible.
    pub fn note(
        &self,
        keyspace: KeyspaceId,
        (low, end): Keys<'_>,
        since: SeqNo,
        is_sound: impl FnOnce(u64) -> bool,
    ) {
        if end.is_some_and(|end| end <= low) {
            return;
        }
        let inner = &mut *self.inner.write();
        // From here on a thread that inserts waits for the lock. What was inserted before is found in the queue.
        self.count.store(inner.ranges.len() + 1, Relaxed);
        fence(SeqCst);
        if !is_sound(inner.grown.of(keyspace)) {
            self.count.store(inner.ranges.len(), Relaxed);
            return;
        }
        let (mut low, mut end) =
            (Low(keyspace, Bytes::copy_from_slice(low)), end.map(Bytes::copy_from_slice));
        let mut since = since;
        // Those that it overlaps or touches become one with it.
        let first = inner.up_to(keyspace, Included(&low.1)).filter(|(_, range)| range.reaches(&low.1));
        low = first.map(|(first, _)| first.clone()).unwrap_or(low);
        while let Some(next) = inner.next_from(low.0, &low.1)
            && end.as_ref().is_none_or(|end| next.1 <= end)
            && let Some(range) = inner.remove(&next)
        {
            since = since.max(range.since);
            end = end.zip(range.end).map(|(a, b)| a.max(b));
        }
        inner.insert(low, EmptyRange { end, since, was_used: AtomicBool::new(true) });
        if inner.bytes > BYTES_MAX {
            inner.forget_some();
        }
        self.count.store(inner.ranges.len(), Relaxed);
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
        self.count.store(inner.ranges.len(), Relaxed);
    }

    /// Forgets the ranges of some keyspaces, and lets no thread ask or note while `work` makes records of these visible that were never
    /// in the queue, and returns the number of the ingestion.
    pub fn forget_while(&self, keyspaces: impl Iterator<Item = KeyspaceId>, work: impl FnOnce() -> u64) {
        let inner = &mut *self.inner.write();
        let forgotten: Vec<_> = keyspaces.inspect(|keyspace| inner.forget(*keyspace)).collect();
        self.count.store(inner.ranges.len(), Relaxed);
        let ingested = work();
        if inner.grown.last.len() + forgotten.len() > GROWN_MAX {
            inner.grown = Grown { others: ingested, ..Grown::default() };
        } else {
            inner.grown.last.extend(forgotten.into_iter().map(|keyspace| (keyspace, ingested)));
        }
    }

    /// The same of all keyspaces.
    pub fn forget_all_while(&self, work: impl FnOnce() -> u64) {
        let inner = &mut *self.inner.write();
        inner.clear();
        self.count.store(0, Relaxed);
        inner.grown = Grown { others: work(), ..Grown::default() };
    }
}

impl EmptyRange {
    fn bytes(&self, low: &Low) -> usize {
        OVERHEAD + low.1.len() + self.end.as_ref().map_or(0, Bytes::len)
    }

    fn used(&self) -> &Self {
        if !self.was_used.load(Relaxed) {
            self.was_used.store(true, Relaxed);
        }
        self
    }
}

impl Inner {
    /// The last range of a keyspace that begins up to this key.
    fn up_to(&self, keyspace: KeyspaceId, key: Bound<&[u8]>) -> Option<(&Low, &EmptyRange)> {
        let (included, excluded);
        let end: Bound<&dyn Place> = match key {
            Included(key) => {
                included = (keyspace, key);
                Included(&included)
            }
            Excluded(key) => {
                excluded = (keyspace, key);
                Excluded(&excluded)
            }
            Unbounded => {
                excluded = (KeyspaceId(keyspace.0 + 1), &[][..]);
                Excluded(&excluded)
            }
        };
        let last = self.ranges.range::<dyn Place + '_, _>((Unbounded, end)).next_back();
        last.filter(|(low, _)| low.0 == keyspace)
    }

    /// Where the first range of a keyspace begins that does so at a key or above it.
    fn next_from(&self, keyspace: KeyspaceId, key: &[u8]) -> Option<Low> {
        let from: &dyn Place = &(keyspace, key);
        let next = self.ranges.range::<dyn Place + '_, _>((Included(from), Unbounded)).next();
        next.map(|(low, _)| low.clone()).filter(|low| low.0 == keyspace)
    }

    fn insert(&mut self, low: Low, range: EmptyRange) {
        self.bytes += range.bytes(&low);
        self.ranges.insert(low, range);
    }

    fn remove(&mut self, low: &Low) -> Option<EmptyRange> {
        let range = self.ranges.remove(low)?;
        self.bytes -= range.bytes(low);
        Some(range)
    }

    fn clear(&mut self) {
        self.ranges.clear();
        self.bytes = 0;
    }

    fn forget(&mut self, keyspace: KeyspaceId) {
        while let Some(low) = self.next_from(keyspace, &[]) {
            self.remove(&low);
        }
    }

    /// A record comes.
    fn cut(&mut self, keyspace: KeyspaceId, key: &[u8]) {
        let Some((low, range)) = self.up_to(keyspace, Included(key)) else { return };
        if range.end.as_ref().is_some_and(|end| &end[..] <= key) {
            return;
        }
        let low = low.clone();
        let Some(EmptyRange { end, since, was_used }) = self.remove(&low) else { return };
        let above = successor(key);
        if end.as_ref().is_none_or(|end| *end > above) {
            let was_used = AtomicBool::new(true);
            self.insert(Low(keyspace, above), EmptyRange { end, since, was_used });
        }
        if low.1 != key {
            let end = Some(Bytes::copy_from_slice(key));
            self.insert(low, EmptyRange { end, since, was_used });
        }
    }

    /// Forgets what was not used since the last time; if that is too little, everything.
    fn forget_some(&mut self) {
        let mut bytes = 0;
        self.ranges.retain(|low, range| {
            let was_used = std::mem::take(range.was_used.get_mut());
            bytes += if was_used { range.bytes(low) } else { 0 };
            was_used
        });
        self.bytes = bytes;
        if bytes > BYTES_MAX / 4 * 3 {
            self.clear();
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
        assert_eq!(inner.ranges.len(), ranges.count.load(Relaxed));
        assert_eq!(inner.ranges.iter().map(|(low, range)| range.bytes(low)).sum::<usize>(), inner.bytes);
        (0..=255u8)
            .map(|key| {
                let found = inner.up_to(KEYSPACE, Included(&[key]))?.1;
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
                    ranges.note(KEYSPACE, keys, seq, |_| true);
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
        ranges.note(KEYSPACE, (b"a", Some(b"m")), 10, |_| true);
        assert_eq!(ranges.above(KEYSPACE, b"b", 9), None);
        assert_eq!(ranges.above(KEYSPACE, b"b", 10), Some(Some(Bytes::from("m"))));
        assert_eq!(ranges.below(KEYSPACE, Some(b"m"), 9), None);
        assert_eq!(ranges.below(KEYSPACE, Some(b"m"), 10), Some(Bytes::from("a")));
        assert_eq!(ranges.above(KeyspaceId(2), b"b", 10), None);
        ranges.note(KEYSPACE, (b"p", None), 10, |_| false);
        assert_eq!(ranges.above(KEYSPACE, b"q", 10), None);
        ranges.note(KEYSPACE, (b"p", None), 10, |_| true);
        assert_eq!(ranges.above(KEYSPACE, b"q", 10), Some(None));
        assert_eq!(ranges.below(KEYSPACE, None, 10), Some(Bytes::from("p")));
        ranges.forget_all_while(|| 1);
        assert!(ranges.is_empty() && ranges.above(KEYSPACE, b"q", 10).is_none());
    }

    #[test]
    fn an_ingestion_ends_the_ranges_of_its_keyspace_alone() {
        let ranges = EmptyRanges::default();
        let keyspaces: Vec<_> = (1..=7).map(KeyspaceId).collect();
        let is_noted = |keyspace: KeyspaceId| ranges.above(keyspace, b"b", 10).is_some();
        let note = |ingested: u64| {
            for keyspace in &keyspaces {
                ranges.note(*keyspace, (b"a", Some(b"m")), 10, |last| last <= ingested);
            }
            keyspaces.iter().map(|keyspace| is_noted(*keyspace)).collect::<Vec<_>>()
        };
        assert_eq!(note(0), [true; 7]);
        ranges.forget_while([KeyspaceId(2), KeyspaceId(9)].into_iter(), || 1);
        ranges.forget_while(std::iter::once(KeyspaceId(5)), || 2);
        assert_eq!(ranges.inner.read().ranges.len(), 5);
        // By a reader whose state is from before both, from between them, and from behind them.
        assert_eq!(note(0), [true, false, true, true, false, true, true]);
        assert_eq!(note(1), [true, true, true, true, false, true, true]);
        assert_eq!(note(2), [true; 7]);
        // Of many it is not remembered which they were.
        for number in 3..1000 {
            ranges.forget_while(std::iter::once(KeyspaceId(number as u32 + 100)), || number);
        }
        assert!(ranges.inner.read().grown.last.len() <= GROWN_MAX);
        assert_eq!(ranges.inner.read().ranges.len(), 7);
        ranges.forget_while(keyspaces.iter().copied(), || 1000);
        assert!(ranges.is_empty() && note(999).iter().all(|is_noted| !is_noted));
        assert_eq!(note(1000), [true; 7]);
        ranges.forget_all_while(|| 1001);
        assert!(ranges.is_empty() && note(1000).iter().all(|is_noted| !is_noted));
        assert_eq!(ranges.inner.read().bytes, 0);
    }

    /// The first range of each keyspace took a node of its own, which did not count.
    #[test]
    fn a_thousand_keyspaces_have_room() {
        let ranges = EmptyRanges::default();
        let keyspaces = || (1..=1000).map(KeyspaceId);
        keyspaces().for_each(|keyspace| ranges.note(keyspace, (b"a", None), 10, |_| true));
        for keyspace in keyspaces() {
            assert_eq!(ranges.below(keyspace, None, 10), Some(Bytes::from("a")));
            assert_eq!(ranges.above(keyspace, b"b", 10), Some(None));
            assert_eq!(ranges.above(keyspace, b"", 10), None, "what is in another keyspace says nothing");
            assert_eq!(ranges.below(keyspace, Some(b"a"), 10), None);
        }
        assert!(ranges.inner.read().bytes <= BYTES_MAX);
    }

    #[test]
    fn unused_ranges_are_forgotten_before_memory_is_short() {
        let ranges = EmptyRanges::default();
        let key = |number: u32| [&number.to_be_bytes()[..], &[0; 60]].concat();
        for number in 0..100_000u32 {
            ranges.note(KEYSPACE, (&key(2 * number), Some(&key(2 * number + 1))), 1, |_| true);
            assert!(ranges.inner.read().bytes <= BYTES_MAX);
            assert!(ranges.above(KEYSPACE, &key(0), 1).is_some() || number > 0);
        }
        assert!(!ranges.is_empty());
        ranges.note(KEYSPACE, (&[], None), 1, |_| true);
        assert_eq!(ranges.count.load(Relaxed), 1);
        for number in 0..100_000u32 {
            insert(&ranges, &key(number));
            assert!(ranges.inner.read().bytes <= BYTES_MAX);
        }
    }
}
