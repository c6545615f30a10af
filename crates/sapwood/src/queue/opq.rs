//! OPQ, the operation queue: changes wait here, in memory and in key order, until a flush takes them to the trees as
//! one sorted batch. (PIO B-tree, VLDB 2011, section 3.2. Theirs is an array that is sorted now and then; this is a
//! lock-free ordered map with a version for each change, since readers look into it all the time.)
//!
//! A queue is *active* (the one committer adds to it), then *frozen* (nobody does, the flush reads it), then gone.
//!
//! Invariants:
//! 1. Entries are in order of keyspace, key, and then newest first: the entry that a reader at sequence number `s`
//!    must see is the first at or after (keyspace, key, `s`).
//! 2. Entries are never changed or removed: a snapshot that holds the queue sees what it saw.
//! 3. Sequence numbers in a frozen queue are all below those in the active one.

use crate::operation::{KeyspaceId, Operation, SeqNo};
use bytes::Bytes;
use crossbeam_skiplist::SkipMap;
use crossbeam_skiplist::map::Entry;
use std::borrow::Borrow;
use std::cmp::Ordering;
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// What an entry takes in memory besides its key and value: two `Bytes`, a node of the map with its tower, and the
/// allocator's share.
const OVERHEAD: usize = 152;

/// Where an entry stands. Compared through [`View`], so that a search needs no owned key.
#[derive(Debug)]
struct Position {
    keyspace: KeyspaceId,
    key: Bytes,
    seq: SeqNo,
}

trait View {
    fn view(&self) -> (KeyspaceId, &[u8], SeqNo);
}

impl View for Position {
    fn view(&self) -> (KeyspaceId, &[u8], SeqNo) {
        (self.keyspace, &self.key, self.seq)
    }
}

impl View for (KeyspaceId, &[u8], SeqNo) {
    fn view(&self) -> (KeyspaceId, &[u8], SeqNo) {
        *self
    }
}

impl Ord for dyn View + '_ {
    fn cmp(&self, other: &Self) -> Ordering {
        let ((keyspace, key, seq), (other_keyspace, other_key, other_seq)) = (self.view(), other.view());
        keyspace.cmp(&other_keyspace).then_with(|| key.cmp(other_key)).then_with(|| other_seq.cmp(&seq))
    }
}

impl PartialOrd for dyn View + '_ {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for dyn View + '_ {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for dyn View + '_ {}

impl<'a> Borrow<dyn View + 'a> for Position {
    fn borrow(&self) -> &(dyn View + 'a) {
        self
    }
}

impl Ord for Position {
    fn cmp(&self, other: &Self) -> Ordering {
        (self as &dyn View).cmp(other as &dyn View)
    }
}

impl PartialOrd for Position {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Position {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Position {}

/// What a queue says about a key: a value, or `None` for "removed".
pub(crate) type Change = Option<Bytes>;

/// The operation queue.
#[derive(Debug, Default)]
pub(crate) struct Opq {
    entries: SkipMap<Position, Change>,
    memory: AtomicUsize,
    count: AtomicU64,
}

impl Opq {
    /// Adds a change. Called by one thread at a time, with growing sequence numbers.
    pub fn insert(&self, operation: Operation, seq: SeqNo) {
        let Operation { keyspace, key, value } = operation;
        let bytes = OVERHEAD + key.len() + value.as_ref().map_or(0, Bytes::len);
        self.entries.insert(Position { keyspace, key, seq }, value);
        self.memory.fetch_add(bytes, Relaxed);
        self.count.fetch_add(1, Relaxed);
    }

    /// Bytes of memory, overhead included.
    pub fn memory(&self) -> usize {
        self.memory.load(Relaxed)
    }

    /// Bytes of keys and values.
    pub fn bytes(&self) -> u64 {
        (self.memory() as u64).saturating_sub(self.count() * OVERHEAD as u64)
    }

    /// Changes in it, all versions of a key counted.
    pub fn count(&self) -> u64 {
        self.count.load(Relaxed)
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn first_at(&self, at: (KeyspaceId, &[u8], SeqNo)) -> Option<Entry<'_, Position, Change>> {
        self.entries.lower_bound(Bound::Included(&at as &dyn View))
    }

    /// What the queue says about the key to a reader at `seq`; `None` if nothing.
    pub fn get(&self, keyspace: KeyspaceId, key: &[u8], seq: SeqNo) -> Option<Change> {
        let entry = self.first_at((keyspace, key, seq))?;
        let found = entry.key();
        (found.keyspace == keyspace && found.key == key).then(|| entry.value().clone())
    }

    /// Appends to `out` up to `max` keys at or after `from` with what a reader at `seq` sees of them, removals
    /// included. Returns false when the keyspace has no more.
    pub fn chunk(
        &self,
        keyspace: KeyspaceId,
        from: Bound<&[u8]>,
        seq: SeqNo,
        max: usize,
        out: &mut Vec<(Bytes, Change)>,
    ) -> bool {
        let mut next = match from {
            Bound::Unbounded => self.first_at((keyspace, &[], SeqNo::MAX)),
            Bound::Included(key) => self.first_at((keyspace, key, SeqNo::MAX)),
            Bound::Excluded(key) => {
                self.entries.lower_bound(Bound::Excluded(&(keyspace, key, SeqNo::MIN) as &dyn View))
            }
        };
        let limit = out.len() + max;
        while let Some(entry) = next {
            let at = entry.key();
            if at.keyspace != keyspace {
                return false;
            }
            let seen = out.last().is_some_and(|(last, _)| *last == at.key);
            if at.seq <= seq && !seen {
                if out.len() == limit {
                    return true;
                }
                out.push((at.key.clone(), entry.value().clone()));
            }
            next = entry.next();
        }
        false
    }

    /// As [`Opq::chunk`], downwards from `from`.
    pub fn chunk_back(
        &self,
        keyspace: KeyspaceId,
        from: Bound<&[u8]>,
        seq: SeqNo,
        max: usize,
        out: &mut Vec<(Bytes, Change)>,
    ) -> bool {
        let mut next = match from {
            Bound::Unbounded => match keyspace.0.checked_add(1) {
                Some(above) => {
                    self.entries
                        .upper_bound(Bound::Excluded(&(KeyspaceId(above), &[][..], SeqNo::MAX) as &dyn View))
                }
                None => self.entries.back(),
            },
            Bound::Included(key) => {
                self.entries.upper_bound(Bound::Included(&(keyspace, key, SeqNo::MIN) as &dyn View))
            }
            Bound::Excluded(key) => {
                self.entries.upper_bound(Bound::Excluded(&(keyspace, key, SeqNo::MAX) as &dyn View))
            }
        };
        // Within a key the walk meets the oldest version first, so the last one at or below `seq` counts, and a key
        // is finished only when the next one is met.
        let limit = out.len() + max;
        let mut candidate: Option<(Bytes, Change)> = None;
        while let Some(entry) = next {
            let at = entry.key();
            if at.keyspace != keyspace {
                break;
            }
            if at.seq <= seq {
                if candidate.as_ref().is_some_and(|(key, _)| *key != at.key) {
                    out.extend(candidate.take());
                    if out.len() == limit {
                        return true;
                    }
                }
                candidate = Some((at.key.clone(), entry.value().clone()));
            }
            next = entry.prev();
        }
        out.extend(candidate);
        false
    }

    /// All keys at and above `from` (or from the beginning) with their newest change, in order: what a flush applies.
    pub fn newest(&self, from: Option<(KeyspaceId, Bytes)>) -> impl Iterator<Item = Operation> + '_ {
        let mut next = match &from {
            None => self.entries.front(),
            Some((keyspace, key)) => self.first_at((*keyspace, key, SeqNo::MAX)),
        };
        let mut last: Option<(KeyspaceId, Bytes)> = None;
        std::iter::from_fn(move || {
            loop {
                let entry = next.take()?;
                next = entry.next();
                let at = entry.key();
                if last.as_ref().is_some_and(|(keyspace, key)| *keyspace == at.keyspace && *key == at.key) {
                    continue;
                }
                last = Some((at.keyspace, at.key.clone()));
                return Some(Operation {
                    keyspace: at.keyspace,
                    key: at.key.clone(),
                    value: entry.value().clone(),
                });
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn operation(keyspace: u32, key: &[u8], value: Option<&[u8]>) -> Operation {
        Operation {
            keyspace: KeyspaceId(keyspace),
            key: Bytes::copy_from_slice(key),
            value: value.map(Bytes::copy_from_slice),
        }
    }

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
        #[test]
        fn readers_see_the_newest_change_of_their_time(
            log in prop::collection::vec((0u32..3, 0u8..12, prop::option::of(any::<u8>())), 1..120),
            seq in 0u64..120,
            from in 0u8..12,
            max in 1usize..9,
        ) {
            let queue = Opq::default();
            for (index, (keyspace, key, value)) in log.iter().enumerate() {
                queue.insert(operation(*keyspace, &[*key], value.as_ref().map(std::slice::from_ref)), index as u64);
            }
            for keyspace in 0..3 {
                let model = model_at(&log, keyspace, seq);
                let id = KeyspaceId(keyspace);
                for key in 0..12u8 {
                    let found = queue.get(id, &[key], seq).map(|change| change.map(|v| v[0]));
                    prop_assert_eq!(found, model.get(&key).copied());
                }
                let plain = |out: Vec<(Bytes, Change)>| -> Vec<(u8, Option<u8>)> {
                    out.into_iter().map(|(k, v)| (k[0], v.map(|v| v[0]))).collect()
                };
                for (bound, first) in [(Bound::Included(&[from][..]), from), (Bound::Excluded(&[from][..]), from + 1), (Bound::Unbounded, 0)] {
                    let mut out = Vec::new();
                    let more = queue.chunk(id, bound, seq, max, &mut out);
                    let expected: Vec<_> = model.range(first..).map(|(k, v)| (*k, *v)).collect();
                    prop_assert!(more || out.len() == expected.len());
                    prop_assert_eq!(plain(out), expected.into_iter().take(max).collect::<Vec<_>>());
                }
                for (bound, end) in [(Bound::Included(&[from][..]), from + 1), (Bound::Excluded(&[from][..]), from), (Bound::Unbounded, 255)] {
                    let mut out = Vec::new();
                    let more = queue.chunk_back(id, bound, seq, max, &mut out);
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
}
