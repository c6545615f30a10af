//! What a transaction has written and not committed yet, and its savepoints.
//!
//! ```text
//! written     a=1   b=2  ▷ savepoint 1   b=3   c=4  ▷ savepoint 2   c=†
//! undo                     level 1: b=2, c unwritten  level 2: c=4
//! ```
//! Invariants:
//! 1. A level has, for each key written since its savepoint and before the next one, what was written before; once, however often
//!    the key is written.
//! 2. What is refused has changed nothing.
//! 3. An iterator keeps the writes that it began with: they are copied if there is one.

use crate::error::{Error, Result};
use crate::operation::{KeyspaceId, put_insert, put_remove};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bytes of an operation in a log record beside key and value, at most: kind, keyspace, and two lengths.
const OPERATION: usize = 16;

/// Bytes that a write takes in memory beside key and value: two allocations and their place in a B-tree that is two thirds full.
const ENTRY: usize = 128;

/// A value, or `None` for "removed".
type Change = Option<Bytes>;

/// What is written in one keyspace.
pub(super) type Written = BTreeMap<Bytes, Change>;

/// A place in a transaction to which it can be rolled back. Made by
/// [`Transaction::savepoint`](crate::Transaction::savepoint).
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
        self.count == 0
    }

    /// Number of keys written.
    pub fn len(&self) -> usize {
        self.count
    }

    /// What was written for a key.
    pub fn get(&self, keyspace: KeyspaceId, key: &[u8]) -> Option<&Change> {
        self.keyspaces.get(&keyspace)?.get(key)
    }

    /// What is written in a keyspace now.
    pub fn of(&self, keyspace: KeyspaceId) -> Arc<Written> {
        self.keyspaces.get(&keyspace).cloned().unwrap_or_default()
    }

    /// Writes a change.
    pub fn write(&mut self, keyspace: KeyspaceId, key: &[u8], value: Option<&[u8]>) -> Result<()> {
        let size = key.len() + value.map_or(0, <[u8]>::len);
        let before = self.get(keyspace, key).map(|change| bytes_of(key, change));
        let encoded = self.encoded + size + OPERATION - before.map_or(0, |before| before + OPERATION);
        let is_kept = self.levels.last().is_some_and(|level| {
            let place = (keyspace, Bytes::copy_from_slice(key));
            !level.undo.contains_key(&place)
        });
        let kept = if is_kept { before.unwrap_or(key.len()) + ENTRY } else { 0 };
        let memory = self.memory + size + ENTRY + kept - before.map_or(0, |before| before + ENTRY);
        for (len, max) in [(encoded, self.max.encoded), (memory, self.max.memory)] {
            if len > max {
                return Err(Error::BatchTooLarge { len, max });
            }
        }
        let key = Bytes::copy_from_slice(key);
        let written = Arc::make_mut(self.keyspaces.entry(keyspace).or_default());
        let before = written.insert(key.clone(), value.map(Bytes::copy_from_slice));
        self.count += usize::from(before.is_none());
        if let Some(level) = self.levels.last_mut().filter(|_| is_kept) {
            level.undo.insert((keyspace, key), before);
        }
        (self.encoded, self.memory) = (encoded, memory);
        Ok(())
    }

    pub fn savepoint(&mut self) -> Savepoint {
        let savepoint = Savepoint::fresh();
        self.levels.push(Level { savepoint, undo: Undo::new() });
        savepoint
    }

    fn level_of(&self, savepoint: Savepoint) -> Result<usize> {
        self.levels.iter().position(|level| level.savepoint == savepoint).ok_or(Error::NoSavepoint)
    }

    /// Takes back what was written since a savepoint. The savepoint stays, later ones are gone.
    pub fn roll_back_to(&mut self, savepoint: Savepoint) -> Result<()> {
        let level = self.level_of(savepoint)?;
        for Level { undo, .. } in self.levels.drain(level..).rev() {
            for ((keyspace, key), before) in undo {
                self.memory -= before.as_ref().map_or(key.len(), |before| bytes_of(&key, before)) + ENTRY;
                let written = Arc::make_mut(self.keyspaces.entry(keyspace).or_default());
                let size = |change: Option<&Change>| change.map(|change| bytes_of(&key, change));
                let (now, then) = (size(written.get(&key)), size(before.as_ref()));
                self.encoded -= now.map_or(0, |now| now + OPERATION);
                self.encoded += then.map_or(0, |then| then + OPERATION);
                self.memory -= now.map_or(0, |now| now + ENTRY);
                self.memory += then.map_or(0, |then| then + ENTRY);
                match before {
                    Some(before) => _ = written.insert(key, before),
                    None => self.count -= usize::from(written.remove(&key).is_some()),
                }
            }
        }
        self.levels.push(Level { savepoint, undo: Undo::new() });
        Ok(())
    }

    /// Forgets a savepoint and those after it. What was written stays.
    pub fn release(&mut self, savepoint: Savepoint) -> Result<()> {
        let level = self.level_of(savepoint)?;
        for Level { undo, .. } in self.levels.split_off(level) {
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
        let mut body = Vec::with_capacity(self.encoded);
        for (keyspace, written) in &self.keyspaces {
            for (key, change) in &**written {
                match change {
                    Some(value) => put_insert(&mut body, *keyspace, key, value),
                    None => put_remove(&mut body, *keyspace, key),
                }
            }
        }
        (body, self.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::Operations;
    use proptest::prelude::*;

    const MAIN: KeyspaceId = KeyspaceId(1);
    const LARGE: WritesMax = WritesMax { encoded: 1 << 30, memory: 1 << 30 };

    #[derive(Clone, Debug)]
    enum Step {
        Write(u8, Option<u8>),
        Savepoint,
        RollBack(prop::sample::Index),
        Release(prop::sample::Index),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            6 => (0u8..8, any::<Option<u8>>()).prop_map(|(key, value)| Step::Write(key, value)),
            2 => Just(Step::Savepoint),
            1 => any::<prop::sample::Index>().prop_map(Step::RollBack),
            1 => any::<prop::sample::Index>().prop_map(Step::Release),
        ]
    }

    fn content(writes: &Writes) -> Vec<(Vec<u8>, Option<Vec<u8>>)> {
        let (body, count) = writes.encode();
        let found: Vec<_> = Operations::new(&body)
            .map(|operation| operation.unwrap().as_change().unwrap())
            .map(|operation| (operation.key.to_vec(), operation.value.map(<[u8]>::to_vec)))
            .collect();
        assert_eq!((found.len(), found.len()), (count, writes.len()));
        found
    }

    proptest! {
        #[test]
        fn savepoints_bring_back_what_was_written(steps in prop::collection::vec(step(), 0..60)) {
            let mut writes = Writes::new(LARGE);
            let mut model = BTreeMap::new();
            let mut marks: Vec<(Savepoint, BTreeMap<_, _>)> = Vec::new();
            for step in steps {
                match step {
                    Step::Write(key, value) => {
                        let value = value.map(|value| vec![value; usize::from(value)]);
                        writes.write(MAIN, &[key], value.as_deref()).unwrap();
                        model.insert(vec![key], value);
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
                    Step::RollBack(_) | Step::Release(_) => {}
                }
                prop_assert_eq!(content(&writes), model.clone().into_iter().collect::<Vec<_>>());
            }
            // What is counted is what is there.
            let sizes = model.iter().map(|(key, value)| key.len() + value.as_ref().map_or(0, Vec::len));
            let size = |overhead| sizes.clone().map(move |size| size + overhead);
            prop_assert_eq!(writes.encoded, size(OPERATION).sum::<usize>());
            if let Some((first, _)) = marks.first() {
                writes.release(*first).unwrap();
            }
            prop_assert_eq!(writes.memory, size(ENTRY).sum::<usize>());
        }
    }

    #[test]
    fn a_write_for_which_there_is_no_room_changes_nothing() {
        for max in [WritesMax { encoded: 200, memory: 1 << 20 }, WritesMax { encoded: 1 << 20, memory: 400 }]
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
}
