//! What a transaction has written and not committed yet, and its savepoints.
//!
//! ```text
//! written     a=1   b=2  ▷ savepoint 1   b=3   c=4  ▷ savepoint 2   c=†
//! undo                     level 1: b=2, c unwritten  level 2: c=4
//! ```
//! A removed range takes what was written in it out of the changes; what is written in it later comes after it. So the ranges
//! of a keyspace come before its changes in the log.
//!
//! Invariants:
//! 1. A level has, for each key written since its savepoint and before the next one, what was written before; once, however often
//!    the key is written.
//! 2. What is refused has changed nothing.
//! 3. An iterator keeps the writes that it began with: they are copied if there is one.

use crate::conflict::key_ranges::KeyRanges;
use crate::db::merging::{self, is_several};
use crate::error::{Error, Result};
use crate::merging::Stored;
use crate::operation::{KeyRange, KeyspaceId, put_insert, put_merge, put_remove, put_remove_range};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bytes of an operation in a log record beside key and value, at most: kind, keyspace, and two lengths.
const OPERATION: usize = 16;

/// Bytes that a write takes in memory beside key and value: two allocations and their place in a B-tree that is two thirds full.
const ENTRY: usize = 128;

/// Bytes that the first write of a keyspace takes beyond that: a node of its B-tree has room for eleven of 64 bytes, and a list of its own.
const FIRST: usize = 800;

/// A value, or `None` for "removed".
type Change = Option<Bytes>;

/// What is written in one keyspace.
#[derive(Clone, Debug, Default)]
pub(super) struct Written {
    pub changes: BTreeMap<Bytes, Change>,
    /// Ranges that were removed; what `changes` has in them is newer.
    pub removed: KeyRanges,
    /// Whether values may be operands.
    has_operands: bool,
}

impl Written {
    fn is_empty(&self) -> bool {
        self.changes.is_empty() && self.removed.len() == 0
    }
}

/// A place in a transaction to which it can be rolled back. Made by
/// [`Transaction::savepoint`](crate::Transaction::savepoint).
///
/// ```
/// # fn main() -> sapwood::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
/// # let ships = db.keyspace("ships")?;
/// let mut tx = db.transaction()?;
/// let mark: sapwood::Savepoint = tx.savepoint();
/// tx.insert(&ships, "fram", "1892")?;
/// tx.roll_back_to(mark)?;
/// assert!(tx.get(&ships, "fram")?.is_none());
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Savepoint(u64);

impl Savepoint {
    /// One that there was not before, in any transaction.
    fn fresh() -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        Self(COUNT.fetch_add(1, Relaxed))
    }
}

/// What was written before a savepoint; `None` if nothing was.
type Undo = BTreeMap<(KeyspaceId, Bytes), Option<Change>>;

#[derive(Debug)]
struct Level {
    savepoint: Savepoint,
    undo: Undo,
    /// The removed ranges of keyspaces before the first one was added.
    removed: BTreeMap<KeyspaceId, KeyRanges>,
}

impl Level {
    fn new(savepoint: Savepoint) -> Self {
        Self { savepoint, undo: Undo::new(), removed: BTreeMap::new() }
    }
}

/// The greatest sizes of the writes of a transaction, in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct WritesMax {
    /// In the log.
    pub encoded: usize,
    /// In memory, with what savepoints keep.
    pub memory: usize,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Writes {
    keyspaces: BTreeMap<KeyspaceId, Arc<Written>>,
    levels: Vec<Level>,
    count: usize,
    encoded: usize,
    memory: usize,
    max: WritesMax,
}

fn bytes_of(key: &[u8], change: &Change) -> usize {
    key.len() + change.as_ref().map_or(0, Bytes::len)
}

impl Writes {
    pub fn new(max: WritesMax) -> Self {
        Self { keyspaces: BTreeMap::new(), levels: Vec::new(), count: 0, encoded: 0, memory: 0, max }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of keys written and ranges removed.
    pub fn len(&self) -> usize {
        self.count + self.keyspaces.values().map(|written| written.removed.len()).sum::<usize>()
    }

    /// What was written for a key, or that it was removed with a range.
    pub fn get(&self, keyspace: KeyspaceId, key: &[u8]) -> Option<&Change> {
        let written = self.keyspaces.get(&keyspace)?;
        written.changes.get(key).or_else(|| written.removed.contains(key).then_some(&None))
    }

    /// What is written in a keyspace now.
    pub fn of(&self, keyspace: KeyspaceId) -> Arc<Written> {
        self.keyspaces.get(&keyspace).cloned().unwrap_or_default()
    }

    /// Bytes of the first nodes of all keyspaces once something is written in this one.
    fn nodes_with(&self, keyspace: KeyspaceId) -> usize {
        (self.keyspaces.len() + usize::from(!self.keyspaces.contains_key(&keyspace))) * FIRST
    }

    /// Writes a change.
    pub fn write(&mut self, keyspace: KeyspaceId, key: &[u8], value: Option<&[u8]>) -> Result<()> {
        let size = key.len() + value.map_or(0, <[u8]>::len);
        let written = self.keyspaces.get(&keyspace);
        let before = written.and_then(|written| written.changes.get(key)).map(|change| bytes_of(key, change));
        let encoded = self.encoded + size + OPERATION - before.map_or(0, |before| before + OPERATION);
        let is_kept = self.levels.last().is_some_and(|level| {
            let place = (keyspace, Bytes::copy_from_slice(key));
            !level.undo.contains_key(&place)
        });
        let kept = if is_kept { before.unwrap_or(key.len()) + ENTRY } else { 0 };
        let memory = self.memory + size + ENTRY + kept - before.map_or(0, |before| before + ENTRY);
        let nodes = self.nodes_with(keyspace);
        for (len, max) in [(encoded, self.max.encoded), (memory + nodes, self.max.memory)] {
            if len > max {
                return Err(Error::BatchTooLarge { len, max });
            }
        }
        let key = Bytes::copy_from_slice(key);
        let written = Arc::make_mut(self.keyspaces.entry(keyspace).or_default());
        let before = written.changes.insert(key.clone(), value.map(Bytes::copy_from_slice));
        self.count += usize::from(before.is_none());
        if let Some(level) = self.levels.last_mut().filter(|_| is_kept) {
            level.undo.insert((keyspace, key), before);
        }
        (self.encoded, self.memory) = (encoded, memory);
        Ok(())
    }

    /// From now on values written in this keyspace may be operands.
    pub fn has_operands(&mut self, keyspace: KeyspaceId) {
        Arc::make_mut(self.keyspaces.entry(keyspace).or_default()).has_operands = true;
    }

    /// Removes a range.
    pub fn remove_range(&mut self, range: KeyRange<'_>) -> Result<()> {
        let (from, to) = (Bytes::copy_from_slice(range.from), range.to.map(Bytes::copy_from_slice));
        let removed = self.keyspaces.get(&range.keyspace).map(|written| &written.removed);
        // What was removed so far is kept for the savepoint, if there is one.
        let keeping = self.levels.last().is_some_and(|level| !level.removed.contains_key(&range.keyspace));
        let kept = removed.filter(|_| keeping).map_or(0, KeyRanges::bytes);
        let bytes = KeyRanges::bytes_of(&from, to.as_ref());
        let memory = self.memory + bytes + kept + self.nodes_with(range.keyspace);
        for (len, max) in [(self.encoded + bytes, self.max.encoded), (memory, self.max.memory)] {
            if len > max {
                return Err(Error::BatchTooLarge { len, max });
            }
        }
        let written = Arc::make_mut(self.keyspaces.entry(range.keyspace).or_default());
        if let Some(level) = self.levels.last_mut().filter(|_| keeping) {
            level.removed.insert(range.keyspace, written.removed.clone());
        }
        let high = to.clone().map_or(Bound::Unbounded, Bound::Excluded);
        let inner = written.changes.range((Bound::Included(from.clone()), high));
        let inner: Vec<_> = inner.map(|(key, _)| key.clone()).collect();
        let grown = written.removed.add(from, to);
        self.encoded = self.encoded.saturating_add_signed(grown);
        self.memory = self.memory.saturating_add_signed(grown) + kept;
        for key in inner {
            let Some(change) = written.changes.remove(&key) else { continue };
            let size = bytes_of(&key, &change);
            self.count -= 1;
            self.encoded -= size + OPERATION;
            self.memory -= size + ENTRY;
            let place = (range.keyspace, key);
            if let Some(level) = self.levels.last_mut().filter(|level| !level.undo.contains_key(&place)) {
                level.undo.insert(place, Some(change));
                self.memory += size + ENTRY;
            }
        }
        Ok(())
    }

    pub fn savepoint(&mut self) -> Savepoint {
        let savepoint = Savepoint::fresh();
        self.levels.push(Level::new(savepoint));
        savepoint
    }

    fn level_of(&self, savepoint: Savepoint) -> Result<usize> {
        self.levels.iter().position(|level| level.savepoint == savepoint).ok_or(Error::NoSavepoint)
    }

    /// Takes back what was written since a savepoint. The savepoint stays, later ones are gone.
    pub fn roll_back_to(&mut self, savepoint: Savepoint) -> Result<()> {
        let level = self.level_of(savepoint)?;
        for Level { undo, removed, .. } in self.levels.drain(level..).rev() {
            let mut touched: Vec<KeyspaceId> = removed.keys().copied().collect();
            for (keyspace, before) in removed {
                let written = Arc::make_mut(self.keyspaces.entry(keyspace).or_default());
                let (now, then) = (written.removed.bytes(), before.bytes());
                self.encoded = self.encoded - now + then;
                // It was counted where it was kept, too.
                self.memory -= now;
                written.removed = before;
            }
            for ((keyspace, key), before) in undo {
                self.memory -= before.as_ref().map_or(key.len(), |before| bytes_of(&key, before)) + ENTRY;
                let written = Arc::make_mut(self.keyspaces.entry(keyspace).or_default());
                let size = |change: Option<&Change>| change.map(|change| bytes_of(&key, change));
                let (now, then) = (size(written.changes.get(&key)), size(before.as_ref()));
                self.encoded -= now.map_or(0, |now| now + OPERATION);
                self.encoded += then.map_or(0, |then| then + OPERATION);
                self.memory -= now.map_or(0, |now| now + ENTRY);
                self.memory += then.map_or(0, |then| then + ENTRY);
                match before {
                    Some(before) => self.count += usize::from(written.changes.insert(key, before).is_none()),
                    None => self.count -= usize::from(written.changes.remove(&key).is_some()),
                }
                if touched.last() != Some(&keyspace) {
                    touched.push(keyspace);
                }
            }
            // Those in which nothing is written any more would count for ever.
            for keyspace in touched {
                if self.keyspaces.get(&keyspace).is_some_and(|written| written.is_empty()) {
                    self.keyspaces.remove(&keyspace);
                }
            }
        }
        self.levels.push(Level::new(savepoint));
        Ok(())
    }

    /// Forgets a savepoint and those after it. What was written stays.
    pub fn release(&mut self, savepoint: Savepoint) -> Result<()> {
        let level = self.level_of(savepoint)?;
        for Level { undo, removed, .. } in self.levels.split_off(level) {
            for (keyspace, before) in removed {
                let size = before.bytes();
                match self.levels.last_mut().map(|below| below.removed.entry(keyspace)) {
                    Some(std::collections::btree_map::Entry::Vacant(place)) => _ = place.insert(before),
                    Some(std::collections::btree_map::Entry::Occupied(_)) | None => self.memory -= size,
                }
            }
            for ((keyspace, key), before) in undo {
                let size = before.as_ref().map_or(key.len(), |before| bytes_of(&key, before)) + ENTRY;
                let below = self.levels.last_mut().map(|below| below.undo.entry((keyspace, key)));
                match below {
                    Some(std::collections::btree_map::Entry::Vacant(place)) => _ = place.insert(before),
                    // What was written before the savepoint below counts.
                    Some(std::collections::btree_map::Entry::Occupied(_)) | None => self.memory -= size,
                }
            }
        }
        Ok(())
    }

    /// The body of a batch with all changes, and how many they are.
    pub fn encode(&self) -> (Vec<u8>, usize) {
        let (mut body, mut count) = (Vec::with_capacity(self.encoded), self.len());
        for (keyspace, written) in &self.keyspaces {
            for (from, to) in written.removed.iter() {
                let to = to.map(|to| &to[..]);
                put_remove_range(&mut body, KeyRange { keyspace: *keyspace, from, to });
            }
            for (key, change) in &written.changes {
                let merged = change.as_deref().filter(|_| written.has_operands);
                match (change, merged.and_then(Stored::decode)) {
                    (Some(several), _) if merged.is_some_and(is_several) => {
                        body.extend_from_slice(&several[1..]);
                        count += merging::several(several).count() - 1;
                    }
                    // One: others are several operations.
                    (_, Some(Stored::Operands(parts))) => {
                        parts.iter().for_each(|part| put_merge(&mut body, *keyspace, key, part.operand));
                    }
                    (Some(value), _) => put_insert(&mut body, *keyspace, key, value),
                    (None, _) => put_remove(&mut body, *keyspace, key),
                }
            }
        }
        (body, count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::{Operation, Operations};
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    const MAIN: KeyspaceId = KeyspaceId(1);
    const LARGE: WritesMax = WritesMax { encoded: 1 << 30, memory: 1 << 30 };

    #[derive(Clone, Debug)]
    enum Step {
        Write(u8, Option<u8>),
        RemoveRange(u8, u8),
        Savepoint,
        RollBack(prop::sample::Index),
        Release(prop::sample::Index),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            6 => (0u8..8, any::<Option<u8>>()).prop_map(|(key, value)| Step::Write(key, value)),
            2 => (0u8..8, 1u8..9).prop_map(|(from, to)| Step::RemoveRange(from, to)),
            2 => Just(Step::Savepoint),
            1 => any::<prop::sample::Index>().prop_map(Step::RollBack),
            1 => any::<prop::sample::Index>().prop_map(Step::Release),
        ]
    }

    /// The removed keys, and what is written beside.
    type Content = (BTreeSet<u8>, BTreeMap<Vec<u8>, Option<Vec<u8>>>);

    fn content(writes: &Writes) -> Content {
        let (body, count) = writes.encode();
        let (mut found, mut content) = (0, Content::default());
        for operation in Operations::new(&body) {
            found += 1;
            match operation.unwrap() {
                Operation::Merge(_) => unreachable!("nothing is merged"),
                Operation::Change(change) => {
                    content.1.insert(change.key.to_vec(), change.value.map(<[u8]>::to_vec));
                }
                Operation::RemoveRange(range) => {
                    assert!(content.1.is_empty(), "ranges come first");
                    content.0.extend(range.from[0]..range.to.map_or(9, |to| to[0]));
                }
            }
        }
        assert_eq!((found, found), (count, writes.len()));
        content
    }

    proptest! {
        #[test]
        fn savepoints_bring_back_what_was_written(steps in prop::collection::vec(step(), 0..60)) {
            let mut writes = Writes::new(LARGE);
            let mut model = Content::default();
            let mut marks: Vec<(Savepoint, Content)> = Vec::new();
            for step in steps {
                match step {
                    Step::Write(key, value) => {
                        let value = value.map(|value| vec![value; usize::from(value)]);
                        writes.write(MAIN, &[key], value.as_deref()).unwrap();
                        model.1.insert(vec![key], value);
                    }
                    Step::RemoveRange(from, to) if from < to => {
                        let to = (to < 8).then_some([to]);
                        let to = to.as_ref().map(|to| &to[..]);
                        writes.remove_range(KeyRange { keyspace: MAIN, from: &[from], to }).unwrap();
                        model.0.extend(from..to.map_or(9, |to| to[0]));
                        model.1.retain(|key, _| key[0] < from || to.is_some_and(|to| key[0] >= to[0]));
                    }
                    Step::Savepoint => marks.push((writes.savepoint(), model.clone())),
                    Step::RollBack(index) if !marks.is_empty() => {
                        let index = index.index(marks.len());
                        let gone: Vec<_> = marks.drain(index + 1..).collect();
                        model = marks[index].1.clone();
                        writes.roll_back_to(marks[index].0).unwrap();
                        for (mark, _) in gone {
                            prop_assert!(matches!(writes.roll_back_to(mark), Err(Error::NoSavepoint)));
                        }
                    }
                    Step::Release(index) if !marks.is_empty() => {
                        let gone = marks.split_off(index.index(marks.len()));
                        writes.release(gone[0].0).unwrap();
                        for (mark, _) in gone {
                            prop_assert!(matches!(writes.release(mark), Err(Error::NoSavepoint)));
                        }
                    }
                    Step::RollBack(_) | Step::Release(_) | Step::RemoveRange(..) => {}
                }
                prop_assert_eq!(content(&writes), model.clone());
                prop_assert_eq!(writes.keyspaces.is_empty(), model == Content::default());
                for key in 0..8 {
                    let expected = model.1.get(&vec![key]).cloned();
                    let expected = expected.or_else(|| model.0.contains(&key).then_some(None));
                    let found = writes.get(MAIN, &[key]).cloned();
                    prop_assert_eq!(found.map(|value| value.map(|value| value.to_vec())), expected);
                }
            }
            // What is counted is what is there.
            let ranges = writes.of(MAIN).removed.bytes();
            let sizes = model.1.iter().map(|(key, value)| key.len() + value.as_ref().map_or(0, Vec::len));
            let size = |overhead| sizes.clone().map(move |size| size + overhead);
            prop_assert_eq!(writes.encoded, size(OPERATION).sum::<usize>() + ranges);
            if let Some((first, _)) = marks.first() {
                writes.release(*first).unwrap();
            }
            prop_assert_eq!(writes.memory, size(ENTRY).sum::<usize>() + ranges);
        }
    }

    #[test]
    fn a_write_for_which_there_is_no_room_changes_nothing() {
        for max in
            [WritesMax { encoded: 200, memory: 1 << 20 }, WritesMax { encoded: 1 << 20, memory: FIRST + 400 }]
        {
            let mut writes = Writes::new(max);
            writes.write(MAIN, b"key", Some(&[1; 100])).unwrap();
            let mark = writes.savepoint();
            let before = content(&writes);
            let refused = writes.write(MAIN, b"other", Some(&[1; 100]));
            assert!(matches!(refused, Err(Error::BatchTooLarge { .. })), "{refused:?}");
            assert_eq!(content(&writes), before);
            writes.roll_back_to(mark).unwrap();
            writes.write(MAIN, b"key", None).unwrap();
            assert_eq!(writes.len(), 1);
        }
    }

    /// One in each of many keyspaces took six times what was counted.
    #[test]
    fn the_first_write_of_a_keyspace_counts_with_its_node() {
        let mut writes = Writes::new(WritesMax { encoded: 1 << 20, memory: 100 << 10 });
        let all = (0..1000).map(KeyspaceId);
        let written =
            all.take_while(|keyspace| writes.write(*keyspace, b"key", Some(b"value")).is_ok()).count();
        assert!((80..=128).contains(&written), "{written}");
        let range = |keyspace| KeyRange { keyspace, from: b"a", to: None };
        assert!(writes.remove_range(range(KeyspaceId(2000))).is_err());
        writes.remove_range(range(KeyspaceId(7))).unwrap();
        assert_eq!(writes.keyspaces.len(), written);
    }

    /// Nothing was written any more, and for that there was no room.
    #[test]
    fn keyspaces_whose_writes_were_taken_back_do_not_count() {
        let mut writes = Writes::new(WritesMax { encoded: 1 << 20, memory: 100 << 10 });
        for keyspace in (0..1000).map(KeyspaceId) {
            let mark = writes.savepoint();
            writes.write(keyspace, b"key", Some(b"value")).unwrap();
            writes.remove_range(KeyRange { keyspace, from: b"a", to: None }).unwrap();
            writes.roll_back_to(mark).unwrap();
            writes.release(mark).unwrap();
        }
        assert!(writes.is_empty() && writes.memory == 0 && writes.encoded == 0);
    }
}
