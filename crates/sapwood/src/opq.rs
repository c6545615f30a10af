//! OPQ, the operation queue: holds changes in memory, in key order, until a flush applies them to the trees as
//! one sorted batch. (PIO B-tree, VLDB 2011, section 3.2. There it is an array that is sorted now and then.
//! Here it is an ordered map with lock-free reads and a version per change, since readers search it all the
//! time.)
//!
//! A queue is first *active* (the committer adds to it), then *frozen* (nothing is added, the flush reads it), then
//! dropped.
//!
//! Invariants:
//! 1. Entries are in order of keyspace, key, and then newest first: the entry that a reader at sequence number `s`
//!    must see is the first at or after (keyspace, key, `s`).
//! 2. Entries are never changed or removed: a snapshot that holds the queue sees what it saw.
//! 3. Sequence numbers in a frozen queue are all below those in the active one.
//! 4. Entries that are older than a removal of their range count as removals of their keys.
//! 5. What was merged has all that lies beneath it in the queue, as [`operands`] says.

pub(crate) mod empty_ranges;
pub(crate) mod map;
pub(crate) mod operands;
pub(crate) mod range_removals;
mod samples;

use crate::lock_order::{RankedMutex, rank};
use crate::merging::{Merging, is_operands};
use crate::operation::{KeyRange, KeyspaceId, Operation, OperationRef, SeqNo};
use crate::opq::empty_ranges::Keys;
use crate::opq::map::{Entry, FreeList, Insertion, Map, Passed};
use crate::opq::operands::{Chained, Folded, MergingOf};
use crate::opq::range_removals::RangeRemovals;
use bytes::Bytes;
pub(crate) use samples::Sampled;
use samples::Samples;
use std::borrow::Cow;
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

/// What a queue holds for a key: a value, or `None` for "removed".
pub(crate) type Change = Option<Bytes>;

/// How many versions of a key (about a leaf of them) a walk passes over before it searches for the position
/// behind them. A counter may have a million versions.
const PASSED_MAX: usize = 29;

/// A chunk ends when it has so many bytes of keys and values: a scan holds it for as long as it stands still.
const CHUNK_BYTES: usize = 32 << 10;

/// Entries that [`Opq::may_have_newer`] looks at before it gives up.
const LOOKED_AT_MAX: usize = 1024;

/// How far a reader of a keyspace may go in the queue without meeting a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum EmptyUntil {
    /// There may be one right here.
    Nowhere,
    /// To this key, in whichever direction.
    To(Bytes),
    /// To the end.
    End,
}

/// The entry at which what lies at or above `from` in a keyspace begins: the newest change of a key comes first.
fn begin_of(keyspace: KeyspaceId, from: Bound<&[u8]>) -> (KeyspaceId, &[u8], SeqNo) {
    match from {
        Bound::Unbounded => (keyspace, &[], SeqNo::MAX),
        Bound::Included(key) => (keyspace, key, SeqNo::MAX),
        Bound::Excluded(key) => (keyspace, key, SeqNo::MIN),
    }
}

/// Keyspace and key of the first entry behind what lies below `from` in a keyspace; `None` if nothing can lie there.
fn end_of(keyspace: KeyspaceId, from: Bound<&[u8]>) -> Option<(KeyspaceId, Cow<'_, [u8]>)> {
    match from {
        Bound::Unbounded => {
            keyspace.0.checked_add(1).map(|above| (KeyspaceId(above), Cow::Borrowed(&[][..])))
        }
        Bound::Included(key) => Some((keyspace, Cow::Owned([key, &[0]].concat()))),
        Bound::Excluded(key) => Some((keyspace, Cow::Borrowed(key))),
    }
}

/// The operation queue.
#[derive(Debug)]
#[cfg_attr(test, derive(Default))]
pub(crate) struct Opq {
    entries: Map,
    range_removals: RangeRemovals,
    count: AtomicU64,
    removals: AtomicU64,
    bytes: AtomicU64,
    /// Where operands must not be combined, ascending.
    begun_flushes: Vec<SeqNo>,
    chained: RankedMutex<rank::OpqChained, Chained>,
    /// Bytes of its keys.
    chained_bytes: AtomicUsize,
    folded: OnceLock<Folded>,
}

impl Opq {
    /// An empty queue, which uses memory from `spare` as far as there is any. `begun_flushes`: sequence numbers, ascending, up to which
    /// earlier flushes may have brought some keys' operands to the trees, and no further ([`operands`]).
    pub fn new(spare: &Arc<FreeList>, begun_flushes: &[SeqNo]) -> Self {
        Self {
            entries: Map::new(spare),
            range_removals: RangeRemovals::default(),
            count: AtomicU64::new(0),
            removals: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            begun_flushes: begun_flushes.to_vec(),
            chained: RankedMutex::default(),
            chained_bytes: AtomicUsize::new(0),
            folded: OnceLock::new(),
        }
    }

    #[cfg(test)]
    pub fn with_begun_flushes(begun_flushes: &[SeqNo]) -> Self {
        let mut begun_flushes = begun_flushes.to_vec();
        begun_flushes.sort_unstable();
        Self { begun_flushes, ..Self::default() }
    }

    /// Adds changes; the first gets sequence number `first_seq`. Called by one thread at a time, with ascending
    /// sequence numbers. Until the call returns, readers at these numbers may miss some of the changes. Operands of a keyspace
    /// without an operator, which was dropped, are left out.
    pub fn insert_all<'a, O: Into<Operation<'a>>>(
        &self,
        operations: impl IntoIterator<Item = O>,
        first_seq: SeqNo,
        merging: MergingOf<'_>,
    ) {
        let mut seq = first_seq;
        let mut adding = Adding::to(self);
        for operation in operations {
            match operation.into() {
                Operation::Change(change) => adding.change(change, seq),
                Operation::RemoveRange(range) => adding.remove_range(range, seq, first_seq),
                Operation::Merge(merge) => {
                    if let Some(merging) = merging(merge.keyspace) {
                        // It may build on what comes before.
                        adding.end();
                        let stored = self.operand(merge, seq, &merging);
                        adding = Adding::to(self);
                        adding.change(OperationRef { value: Some(&stored), ..merge }, seq);
                    }
                }
            }
            seq += 1;
        }
        adding.end();
        // There is no other writer, so load and store suffice.
        self.count.store(self.count() + (seq - first_seq), Relaxed);
    }

    /// Bytes of memory taken.
    pub fn memory(&self) -> usize {
        self.entries.memory() + self.range_removals.bytes() + self.chained_bytes.load(Relaxed)
    }

    /// Like [`Opq::memory`], without the memory taken in advance. Decides whether the queue is full.
    pub fn fill(&self) -> usize {
        self.entries.fill() + self.range_removals.bytes() + self.chained_bytes.load(Relaxed)
    }

    /// Bytes of keys and values.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    /// Number of changes, counting all versions of a key.
    pub fn count(&self) -> u64 {
        self.count.load(Relaxed)
    }

    /// Number of changes that are removals.
    pub fn removals(&self) -> u64 {
        self.removals.load(Relaxed)
    }

    /// The changes of a keyspace in the queue's sample.
    pub fn sample(&self, keyspace: KeyspaceId) -> Vec<Sampled> {
        self.entries.with_samples(|samples| samples.of(keyspace))
    }

    /// Keys out of those that were removed one by one, without those that were changed again, and how many removals each stands for.
    pub fn sample_of_removed(&self) -> (Vec<(KeyspaceId, Bytes)>, f64) {
        let (removals, weight) = self.entries.with_samples(Samples::removals);
        let is_last = |(keyspace, key, seq): &(_, Bytes, _)| self.newest_seq(*keyspace, key) == Some(*seq);
        let removed = removals.into_iter().filter(is_last);
        (removed.map(|(keyspace, key, _)| (keyspace, key)).collect(), weight)
    }

    /// The sequence number of the newest change to a key, by itself or with a range.
    pub fn newest_seq(&self, keyspace: KeyspaceId, key: &[u8]) -> Option<SeqNo> {
        let of_key = self.entries.get((keyspace, key, SeqNo::MAX)).map(|entry| entry.key().2);
        of_key.max(self.range_removals.newest(keyspace, key, SeqNo::MAX))
    }

    /// Whether it has neither entries nor removals of ranges.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.range_removals.is_empty()
    }

    /// The ranges that were removed at once.
    pub fn range_removals(&self) -> &RangeRemovals {
        &self.range_removals
    }

    /// The change that an entry stands for, to a reader at `seq`: a removal, if it is older than one of its range.
    /// `merging`: how operands are put together, if the keyspace has any.
    fn change_at(&self, entry: &Entry<'_>, seq: SeqNo, merging: Option<&Merging>) -> Change {
        let value = self.value_at(entry, seq)?;
        match merging.filter(|_| is_operands(value)) {
            Some(merging) => self.follow(entry, merging),
            None => Some(Bytes::copy_from_slice(value)),
        }
    }

    fn value_at<'e>(&self, entry: &Entry<'e>, seq: SeqNo) -> Option<&'e [u8]> {
        let (keyspace, key, at) = entry.key();
        let is_older = || self.range_removals.newest(keyspace, key, seq).is_some_and(|removed| removed > at);
        if !self.range_removals.is_empty() && is_older() { None } else { entry.value() }
    }

    /// What a reader at `seq` sees for the key; `None` if the queue has nothing. Marks the entry as asked for.
    pub fn get(
        &self,
        keyspace: KeyspaceId,
        key: &[u8],
        seq: SeqNo,
        merging: Option<&Merging>,
    ) -> Option<Change> {
        let Some(entry) = self.entries.get((keyspace, key, seq)) else {
            return self.range_removals.newest(keyspace, key, seq).map(|_| None);
        };
        entry.ask();
        Some(self.change_at(&entry, seq, merging))
    }

    /// Appends to `out` up to `max` keys at or after `from`, with what a reader at `seq` sees of them,
    /// including removals; fewer, if they have [`CHUNK_BYTES`] already. Returns false if the keyspace has no more.
    pub fn chunk(
        &self,
        keyspace: KeyspaceId,
        from: Bound<&[u8]>,
        seq: SeqNo,
        max: usize,
        out: &mut Vec<(Bytes, Change)>,
        merging: Option<&Merging>,
    ) -> bool {
        let excluded = if let Bound::Excluded(key) = from { Some(key) } else { None };
        let from = begin_of(keyspace, from);
        let (limit, mut bytes) = (out.len() + max, 0);
        let (mut entries, mut passed) = (self.entries.from(from), 0);
        while let Some(entry) = entries.next() {
            let at = entry.key();
            if at.0 != keyspace {
                return false;
            }
            let seen = out.last().is_some_and(|(last, _)| last == at.1) || excluded == Some(at.1);
            if at.2 <= seq && !seen {
                if out.len() == limit || bytes >= CHUNK_BYTES {
                    return true;
                }
                let change = self.change_at(&entry, seq, merging);
                bytes += at.1.len() + change.as_ref().map_or(0, Bytes::len);
                out.push((Bytes::copy_from_slice(at.1), change));
                passed = 0;
                continue;
            }
            passed += 1;
            if passed == PASSED_MAX {
                // Skip versions that are too new for the reader by seeking to `seq`; skip older ones by seeking
                // to the end of the key.
                entries = self.entries.from((keyspace, at.1, if seen { SeqNo::MIN } else { seq }));
                passed = 0;
            }
        }
        false
    }

    /// Like [`Opq::chunk`], in descending order from `from`.
    pub fn chunk_back(
        &self,
        keyspace: KeyspaceId,
        from: Bound<&[u8]>,
        seq: SeqNo,
        max: usize,
        out: &mut Vec<(Bytes, Change)>,
        merging: Option<&Merging>,
    ) -> bool {
        // Within a key, the oldest version comes last.
        let end = end_of(keyspace, from);
        let before = end.as_ref().map(|(keyspace, key)| (*keyspace, &key[..], SeqNo::MAX));
        let (limit, mut bytes) = (out.len() + max, 0);
        let mut entries = self.entries.back_from(before).peekable();
        while let Some(oldest) = entries.next() {
            let (found, key, version) = oldest.key();
            if found != keyspace {
                return false;
            }
            let is_of_it = |entry: &Entry<'_>| (entry.key().0, entry.key().1) == (keyspace, key);
            // The reader sees the newest version up to `seq`. Walking from old to new, that is the last one
            // that qualifies.
            let (mut seen, mut passed) = ((version <= seq).then_some(oldest), 0);
            while let Some(newer) = entries.next_if(is_of_it) {
                if newer.key().2 <= seq {
                    seen = Some(newer);
                }
                passed += 1;
                if passed == PASSED_MAX {
                    seen = self.entries.at_or_after((keyspace, key, seq)).filter(is_of_it);
                    entries = self.entries.back_from(Some((keyspace, key, SeqNo::MAX))).peekable();
                    break;
                }
            }
            if let Some(seen) = seen {
                if out.len() == limit || bytes >= CHUNK_BYTES {
                    return true;
                }
                let change = self.change_at(&seen, seq, merging);
                bytes += key.len() + change.as_ref().map_or(0, Bytes::len);
                out.push((Bytes::copy_from_slice(key), change));
            }
        }
        false
    }

    /// Whether it has any change at or above `from` in a keyspace, or may have removed a range there.
    pub fn has_any(&self, keyspace: KeyspaceId, from: Bound<&[u8]>) -> bool {
        let key = match from {
            Bound::Included(key) | Bound::Excluded(key) => key,
            Bound::Unbounded => &[],
        };
        let first = self.entries.from(begin_of(keyspace, from)).next();
        first.is_some_and(|first| first.key().0 == keyspace) || self.range_removals.reach(keyspace, key)
    }

    /// The first keyspace from this one on that has changes other than removed ranges.
    pub fn next_keyspace(&self, from: KeyspaceId) -> Option<KeyspaceId> {
        self.entries.at_or_after((from, &[], SeqNo::MAX)).map(|first| first.key().0)
    }

    /// How far a reader at `seq` may go upwards without meeting a value, in a few steps. There may be removals.
    pub fn past_tombstones(&self, keyspace: KeyspaceId, from: Bound<&[u8]>, seq: SeqNo) -> EmptyUntil {
        onward(self.entries.past_tombstones(begin_of(keyspace, from), seq), keyspace)
    }

    /// The same downwards.
    pub fn past_tombstones_back(&self, keyspace: KeyspaceId, from: Bound<&[u8]>, seq: SeqNo) -> EmptyUntil {
        let end = end_of(keyspace, from);
        let before = end.as_ref().map(|(keyspace, key)| (*keyspace, &key[..], SeqNo::MAX));
        onward(self.entries.past_tombstones_back(before, seq), keyspace)
    }

    /// Whether a value may have come for one of these keys after `seq`. Of values there is none up to then.
    pub fn may_have_newer(&self, keyspace: KeyspaceId, (low, end): Keys<'_>, seq: SeqNo) -> bool {
        let (mut from, mut looked_at) = ((keyspace, low, SeqNo::MAX), 0);
        let is_behind = |entry: &Entry<'_>| {
            let (found, key, _) = entry.key();
            found != keyspace || end.is_some_and(|end| key >= end)
        };
        loop {
            // Nodes that had a value since are not passed over, though they may be dead by now.
            match self.entries.past_tombstones(from, seq) {
                Passed::Nothing => {}
                Passed::To(entry) if is_behind(&entry) => return false,
                Passed::To(entry) => from = entry.key(),
                Passed::All => return false,
            }
            let (mut last, mut is_old): (Option<Entry<'_>>, bool) = (None, false);
            for entry in self.entries.from(from).take(2 * PASSED_MAX) {
                if is_behind(&entry) {
                    return false;
                }
                if entry.key().2 > seq && entry.value().is_some() {
                    return true;
                }
                // Older versions of a key count as one with it.
                let is_same = last.is_some_and(|last| last.key().1 == entry.key().1);
                looked_at += usize::from(!(is_old && is_same));
                (is_old, last) = (entry.key().2 <= seq, Some(entry));
            }
            let Some(last) = last else { return false };
            if looked_at > LOOKED_AT_MAX {
                return true;
            }
            from = last.key();
            // The position right behind it: sequence numbers descend, and what is older than an old one is old.
            match from.2.checked_sub(1) {
                Some(_) if is_old => from.2 = SeqNo::MIN,
                Some(older) => from.2 = older,
                None => return true,
            }
        }
    }

    /// All keys at and above `from` (or from the beginning), in order, each with its newest change, borrowed
    /// from the queue. This is what a flush applies. The queue must be frozen.
    pub fn newest(&self, from: Option<(KeyspaceId, Bytes)>) -> impl Iterator<Item = OperationRef<'_>> + '_ {
        self.newest_and_asked(from).map(|(newest, _)| newest)
    }

    /// Like [`Opq::newest`], with whether a reader has asked for the key.
    pub fn newest_and_asked(
        &self,
        from: Option<(KeyspaceId, Bytes)>,
    ) -> impl Iterator<Item = (OperationRef<'_>, bool)> + '_ {
        let from = from.as_ref().map(|(keyspace, key)| (*keyspace, &key[..], SeqNo::MAX));
        let mut entries = self.entries.ahead(from).peekable();
        let folded = self.folded();
        std::iter::from_fn(move || {
            let newest = entries.next()?;
            let (keyspace, key, _) = newest.key();
            let mut is_asked = newest.is_asked();
            // The older versions of the key follow.
            while let Some(older) = entries.next_if(|older| (older.key().0, older.key().1) == (keyspace, key))
            {
                is_asked |= older.is_asked();
            }
            let value = match (folded, self.value_at(&newest, SeqNo::MAX)) {
                (Some(folded), Some(value)) => Some(with_all(folded, (keyspace, key), value)),
                (_, value) => value,
            };
            Some((OperationRef { keyspace, key, value }, is_asked))
        })
    }
}

impl Opq {
    /// What was folded, if anything was.
    fn folded(&self) -> Option<&Folded> {
        self.folded.get().filter(|folded| !folded.is_empty())
    }
}

/// The newest value of a key with all that it builds on.
fn with_all<'v>(folded: &'v Folded, (keyspace, key): (KeyspaceId, &[u8]), value: &'v [u8]) -> &'v [u8] {
    if !is_operands(value) {
        return value;
    }
    folded.get(&(keyspace, Bytes::copy_from_slice(key))).map_or(value, |folded| &folded[..])
}

/// Adds changes to a queue one by one, so that the loop over a batch is compiled as one.
struct Adding<'q> {
    queue: &'q Opq,
    entries: Insertion<'q>,
    bytes: usize,
    removals: u64,
}

impl<'q> Adding<'q> {
    fn to(queue: &'q Opq) -> Self {
        Self { queue, entries: queue.entries.begin(), bytes: 0, removals: 0 }
    }

    #[inline]
    fn change(&mut self, OperationRef { keyspace, key, value }: OperationRef<'_>, seq: SeqNo) {
        self.removals += u64::from(value.is_none());
        self.bytes += key.len() + value.map_or(0, <[u8]>::len);
        self.entries.push((keyspace, key, seq), value);
    }

    /// `group`: the first number of those that become visible together.
    fn remove_range(&mut self, range: KeyRange<'_>, seq: SeqNo, group: SeqNo) {
        self.queue.range_removals.add(range, seq, group);
        self.bytes += range.from.len() + range.to.map_or(0, <[u8]>::len);
        self.removals += 1;
    }

    fn end(self) {
        self.entries.end();
        self.queue.bytes.store(self.queue.bytes() + self.bytes as u64, Relaxed);
        self.queue.removals.store(self.queue.removals() + self.removals, Relaxed);
    }
}

fn onward(passed: Passed<'_>, keyspace: KeyspaceId) -> EmptyUntil {
    match passed {
        Passed::Nothing => EmptyUntil::Nowhere,
        Passed::To(entry) if entry.key().0 == keyspace => {
            EmptyUntil::To(Bytes::copy_from_slice(entry.key().1))
        }
        Passed::To(_) | Passed::All => EmptyUntil::End,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::opq::map::pages_of;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const NONE: MergingOf<'_> = &|_| None;

    fn model_at(log: &[(u32, u8, Option<u8>)], keyspace: u32, seq: u64) -> BTreeMap<u8, Option<u8>> {
        let mut model = BTreeMap::new();
        for (index, (ks, key, value)) in log.iter().enumerate() {
            if *ks == keyspace && index as u64 <= seq {
                model.insert(*key, *value);
            }
        }
        model
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 256 }))]

        #[test]
        fn readers_see_the_newest_change_of_their_time(
            log in prop::collection::vec((0u32..3, 0u8..12, prop::option::of(any::<u8>())), 1..if cfg!(miri) { 60 } else { 400 }),
            keys in 1u8..13,
            seq in 0u64..400,
            from in 0u8..12,
            max in 1usize..9,
            batch in 1usize..120,
        ) {
            let queue = Opq::default();
            let log: Vec<_> = log.into_iter().map(|(keyspace, key, value)| (keyspace, key % keys, value)).collect();
            for (batch, first_seq) in log.chunks(batch).zip((0..).step_by(batch)) {
                queue.insert_all(batch.iter().map(|(keyspace, key, value)| OperationRef {
                    keyspace: KeyspaceId(*keyspace),
                    key: std::slice::from_ref(key),
                    value: value.as_ref().map(std::slice::from_ref),
                }), first_seq, NONE);
            }
            prop_assert_eq!(queue.count(), log.len() as u64);
            let valued = log.iter().filter(|(_, _, value)| value.is_some()).count();
            prop_assert_eq!(queue.bytes(), (log.len() + valued) as u64);
            for keyspace in 0..3 {
                let model = model_at(&log, keyspace, seq);
                let id = KeyspaceId(keyspace);
                for key in 0..12u8 {
                    let found = queue.get(id, &[key], seq, None).map(|change| change.map(|v| v[0]));
                    prop_assert_eq!(found, model.get(&key).copied());
                }
                let plain = |out: Vec<(Bytes, Change)>| -> Vec<(u8, Option<u8>)> {
                    out.into_iter().map(|(k, v)| (k[0], v.map(|v| v[0]))).collect()
                };
                for (bound, first) in [(Bound::Included(&[from][..]), from), (Bound::Excluded(&[from][..]), from + 1), (Bound::Unbounded, 0)] {
                    let mut out = Vec::new();
                    let more = queue.chunk(id, bound, seq, max, &mut out, None);
                    let expected: Vec<_> = model.range(first..).map(|(k, v)| (*k, *v)).collect();
                    prop_assert!(more || out.len() == expected.len());
                    prop_assert_eq!(plain(out), expected.into_iter().take(max).collect::<Vec<_>>());
                }
                for (bound, end) in [(Bound::Included(&[from][..]), from + 1), (Bound::Excluded(&[from][..]), from), (Bound::Unbounded, 255)] {
                    let mut out = Vec::new();
                    let more = queue.chunk_back(id, bound, seq, max, &mut out, None);
                    let expected: Vec<_> = model.range(..end).rev().map(|(k, v)| (*k, *v)).collect();
                    prop_assert!(more || out.len() == expected.len());
                    prop_assert_eq!(plain(out), expected.into_iter().take(max).collect::<Vec<_>>());
                }
            }
            let newest: Vec<_> = queue.newest(None).map(|op| (op.keyspace.0, op.key[0], op.value.map(|v| v[0]))).collect();
            let expected: Vec<_> = (0..3).flat_map(|ks| model_at(&log, ks, u64::MAX).into_iter().map(move |(k, v)| (ks, k, v))).collect();
            for at in 0..expected.len() {
                let from = (KeyspaceId(expected[at].0), Bytes::copy_from_slice(&[expected[at].1]));
                prop_assert_eq!(queue.newest(Some(from)).count(), expected.len() - at);
            }
            prop_assert_eq!(newest, expected);
        }
    }

    /// Such as that of a commit in which an operation turns out to be damaged.
    #[test]
    fn what_an_iterator_says_behind_its_end_is_not_asked_for() {
        let (queue, mut calls) = (Opq::default(), 0);
        let some = std::iter::from_fn(|| {
            calls += 1;
            let change = OperationRef { keyspace: KeyspaceId(1), key: b"key", value: None };
            (calls != 3 && calls < 10).then_some(change)
        });
        queue.insert_all(some, 1, NONE);
        assert_eq!(
            (queue.count(), queue.removals(), queue.newest_seq(KeyspaceId(1), b"key")),
            (2, 2, Some(2))
        );
    }

    /// A counter: each reader's step went through all versions of it.
    #[test]
    fn readers_pass_over_the_versions_of_a_key() {
        const VERSIONS: u64 = if cfg!(miri) { 200 } else { 20_000 };
        let queue = Opq::default();
        let (keyspace, value) = (KeyspaceId(1), Some(&b"value"[..]));
        let operation = |key| OperationRef { keyspace, key, value };
        queue.insert_all([&b"above"[..], b"zero"].map(operation), 0, NONE);
        queue.insert_all((0..VERSIONS).map(|_| operation(b"counter")), 2, NONE);
        for seq in [0, 1, 2, 10, 40, VERSIONS / 2, VERSIONS, u64::MAX] {
            let mut there = vec![&b"above"[..], b"counter", b"zero"];
            there.retain(|key| queue.get(keyspace, key, seq, None).is_some());
            for is_down in [false, true] {
                let mut found = Vec::new();
                let pages = pages_of(|| match is_down {
                    false => assert!(!queue.chunk(keyspace, Bound::Unbounded, seq, 9, &mut found, None)),
                    true => assert!(!queue.chunk_back(keyspace, Bound::Unbounded, seq, 9, &mut found, None)),
                });
                assert!(pages <= 12, "{pages} leaves for {seq}, downwards: {is_down}");
                let mut keys: Vec<_> = found.iter().map(|(key, _)| &key[..]).collect();
                if is_down {
                    keys.reverse();
                }
                assert_eq!(keys, there, "{seq}, downwards: {is_down}");
            }
        }
    }

    /// Prints what insertions and readers cost; run it optimised:
    /// `cargo test --release -p sapwood --lib what_a_queue_costs -- --ignored --nocapture`.
    #[test]
    #[ignore = "measures"]
    fn what_a_queue_costs() {
        const ENTRIES: u64 = 200_000;
        const READS: u64 = 5_000;
        let mix = |n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31);
        let key = |n: u64| [mix(mix(n)).to_be_bytes(), n.to_le_bytes()].concat();
        let best = |what: &str, count: u64, work: &mut dyn FnMut()| {
            let took = (0..7).map(|_| {
                let began = std::time::Instant::now();
                work();
                began.elapsed()
            });
            let took = took.min().unwrap_or_default();
            println!("{what}: {:.0} ns", took.as_nanos() as f64 / count as f64);
        };
        let keyspace = KeyspaceId(1);
        let (keys, others): (Vec<_>, Vec<_>) = (0..ENTRIES).map(|n| (key(n), key(n + ENTRIES))).unzip();
        let fill = |batch: usize| {
            let queue = Opq::default();
            for (keys, seq) in keys.chunks(batch).zip((0..).step_by(batch)) {
                let value = Some(&[7; 100][..]);
                queue.insert_all(keys.iter().map(|key| OperationRef { keyspace, key, value }), seq, NONE);
            }
            queue
        };
        for batch in [1, 1000] {
            best(&format!("insertion, {batch} at a time"), ENTRIES, &mut || drop(fill(batch)));
        }
        let queue = fill(1);
        println!("{:.1} bytes an entry of 116", queue.entries.fill() as f64 / ENTRIES as f64);
        for (what, keys) in [("a get", &keys), ("a get of what is not there", &others)] {
            let mut get = |n| {
                assert_eq!(
                    queue.get(keyspace, &keys[(mix(n) % ENTRIES) as usize], u64::MAX, None).is_some(),
                    what == "a get"
                )
            };
            best(what, ENTRIES, &mut || (0..ENTRIES).for_each(&mut get));
        }
        let mut out = Vec::new();
        for max in [1, 5, 64, 256] {
            best(&format!("{max} keys from one on"), READS, &mut || {
                for n in 0..READS {
                    out.clear();
                    let from = Bound::Included(&keys[(mix(n) % ENTRIES) as usize][..]);
                    queue.chunk(keyspace, from, u64::MAX, max, &mut out, None);
                }
            });
        }
        best("5 keys from one on downwards", READS, &mut || {
            for n in 0..READS {
                out.clear();
                let from = Bound::Included(&keys[(mix(n) % ENTRIES) as usize][..]);
                queue.chunk_back(keyspace, from, u64::MAX, 5, &mut out, None);
            }
        });
        best("all in order, an entry", ENTRIES, &mut || {
            assert_eq!(queue.newest(None).count() as u64, ENTRIES)
        });
    }
}
