//! Bulk ingestion: appends sorted records directly to the right edge of a tree, in full leaves, with one
//! attempt and one edit. Records bypass the log and the queue, so they are written only once. (CB-tree: no leaf
//! is split while keys ascend.)
//!
//! Invariants:
//! 1. All records become visible and durable in one step, or none do.
//! 2. Memory: one run of leaves in the packer, and the list of new leaves (100 to 300 bytes each).

use crate::db::batch::check_key;
use crate::db::engine::Engine;
use crate::error::{Error, Result};
use crate::flow::shares::QUEUE_ENTRY;
use crate::lock_order::UserIter;
use crate::operation::KeyspaceId;
use crate::storage::writer::Writer;
use crate::tree::bupdate::bupdate;
use crate::version::builder::VersionBuilder;
use crate::version::manifest::EDIT_MAX;
use bytes::Bytes;
use std::ops::Bound;

/// The maximum bytes of keys and values per call: the list of new leaves must fit into memory and into one edit.
const MAX: u64 = 8 << 30;
/// How often (count) the queue is flushed at most for changes above the last key, which may come again and again: one removal beside the
/// call is usual, and more than a few are another thread's work at this very place.
const FLUSHES: usize = 8;
/// Records of so many bytes, each with [`QUEUE_ENTRY`] more, are few: their keys are kept, so that the record cache need not be looked through for
/// what they replace. The least database can spare as much.
const FEW: u64 = 256 << 10;

fn too_large(len: u64, max: u64) -> Error {
    let bytes = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
    Error::BatchTooLarge { len: bytes(len), max: bytes(max) }
}

impl Engine {
    /// Ingests records whose keys ascend and are greater than `last`, the keyspace's last key. `last` is called
    /// once the writer lock is held, when nothing else can be flushed. Returns the number of records, or what is wrong with one: also the error that stands
    /// in the place of one, which says nothing of this database.
    pub fn ingest(
        &self,
        keyspace: KeyspaceId,
        last: impl Fn() -> Result<Option<Bytes>>,
        mut records: impl Iterator<Item = Result<(Bytes, Bytes)>>,
    ) -> Result<Result<u64>> {
        for _ in 0..FLUSHES {
            self.commits.flush_all()?;
            let ingested = self.write_tree(keyspace, |writer| {
                let last = last()?;
                // The last record may have been removed since the flush: what is ingested at its key would lie beneath that.
                let above = last.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
                if self.state.load().queues().any(|queue| queue.has_any(keyspace, above)) {
                    return Ok(None);
                }
                let mut sorted = Sorted { last, count: 0, bytes: 0, failed: None, keys: Some(Vec::new()) };
                let ingested = self.ingest_sorted(writer, keyspace, &mut sorted, &mut records)?;
                if ingested.is_err() {
                    self.give_back_attempt();
                }
                Ok(Some(ingested))
            })?;
            if let Some(ingested) = ingested {
                return Ok(ingested);
            }
        }
        Ok(Err(Error::NotSorted { record: 0 }))
    }

    /// The space of an abandoned attempt may be gigabytes, and other threads that write nodes wait meanwhile.
    fn give_back_attempt(&self) {
        self.background.ctx.reclaim_by_steps(true);
    }

    /// Has `work` write to the tree of a keyspace, when nothing else can.
    fn write_tree<T>(&self, keyspace: KeyspaceId, work: impl FnOnce(&mut Writer) -> Result<T>) -> Result<T> {
        let mut guard = self.writer().lock(self.shares.work(u64::MAX, u64::MAX))?;
        let writer = guard.get()?;
        self.health.check_writable()?;
        self.state.load().version.check_there(keyspace)?;
        let done = work(writer).inspect_err(|error| {
            let is_ours = matches!(error, Error::Io(_) | Error::DiskFull(_) | Error::Corrupt { .. });
            if is_ours && !error.is_of_reading() {
                self.background.ctx.yield_to(error);
            } else {
                self.give_back_attempt();
            }
        });
        // Wakes the background thread, which gives the freed space back once no writes come.
        self.flush.notify();
        done
    }

    /// Adds records behind all others of a keyspace, or nearly so: keys ascend, and no commit changes any of them before this
    /// returns. Nothing is flushed for it. A full disk takes what is kept for other work. All of them become visible and durable in one step, or none do.
    pub fn ingest_beside(&self, keyspace: KeyspaceId, records: Vec<(Bytes, Bytes)>) -> Result<()> {
        let (Some((first, _)), Some((last, _))) = (records.first().cloned(), records.last().cloned()) else {
            return Ok(());
        };
        let add = |writer: &mut Writer| {
            self.add_beside(writer, keyspace, (first.clone(), last.clone()), records.iter().cloned())
        };
        self.space.with_kept_space(|| self.write_tree(keyspace, add))
    }

    fn add_beside(
        &self,
        writer: &mut Writer,
        keyspace: KeyspaceId,
        (first, last): (Bytes, Bytes),
        records: impl Iterator<Item = (Bytes, Bytes)>,
    ) -> Result<()> {
        // No log area may be above the leaves that change.
        let mut from = Some(first);
        while let Some(at) = from.take_if(|at| *at <= last) {
            from = self.cleanse_before_adding(writer, keyspace, at)?;
        }
        let base = self.state.version();
        // A drop waits for no writer. From here on the nodes go with the tree.
        base.check_there(keyspace)?;
        let mut builder = VersionBuilder::begin(base, &self.pager, writer);
        let mut records = records.peekable();
        bupdate(&mut builder, keyspace, &mut records, self.shares.node_len)?;
        let list = builder.edit_mut().lists_len();
        // Opening copies the manifest, with this list in it.
        self.space.with_kept_space(|| self.space.reserve.grow(list))?;
        let _shows = self.commits.show_ingested(keyspace);
        self.publisher.commit_ingested(builder, None)
    }

    /// Cleanses some blocks of a keyspace at and above a key. Returns where to continue.
    fn cleanse_before_adding(
        &self,
        writer: &mut Writer,
        keyspace: KeyspaceId,
        at: Bytes,
    ) -> Result<Option<Bytes>> {
        let next = self.background.cleanser.cleanse_from(writer, (keyspace, at), keyspace, u64::MAX)?;
        Ok(next.map(|(_, key)| key))
    }

    /// The error within is one of the records: it does not concern other users of the database.
    fn ingest_sorted(
        &self,
        writer: &mut Writer,
        keyspace: KeyspaceId,
        sorted: &mut Sorted,
        records: impl Iterator<Item = Result<(Bytes, Bytes)>>,
    ) -> Result<Result<u64>> {
        // Leaves that are about to be rewritten must have no log area above them: the last leaf, and leaves
        // whose records behind it were removed.
        let mut from = Some(sorted.last.clone().unwrap_or_default());
        while let Some(at) = from.take() {
            from = self.cleanse_before_adding(writer, keyspace, at)?;
        }
        let base = self.state.version();
        // A drop waits for no writer. From here on the nodes go with the tree.
        base.check_there(keyspace)?;
        let mut builder = VersionBuilder::begin(base, &self.pager, writer);
        let records = UserIter::new(records).map_while(|record| sorted.check(record));
        let mut records = records.fuse().peekable();
        if records.peek().is_some() {
            bupdate(&mut builder, keyspace, &mut records, self.shares.node_len)?;
        }
        drop(records);
        if let Some(error) = sorted.failed.take() {
            return Ok(Err(error));
        }
        let list = builder.edit_mut().lists_len();
        if list > EDIT_MAX as u64 {
            return Ok(Err(too_large(sorted.bytes, sorted.bytes / list.div_ceil(EDIT_MAX as u64))));
        }
        if sorted.count > 0 {
            // Opening copies the manifest, with this list in it.
            self.space.with_kept_space(|| self.space.reserve.grow(list))?;
            self.note_events(builder.edit_mut(), Some(keyspace))?;
            let _shows = self.commits.show_ingested(keyspace);
            self.publisher.commit_ingested(builder, sorted.keys.as_deref())?;
        }
        Ok(Ok(sorted.count))
    }
}

/// Checks the records: keys, their order, and total size.
struct Sorted {
    last: Option<Bytes>,
    count: u64,
    bytes: u64,
    failed: Option<Error>,
    /// The keys of all records so far, while these are few.
    keys: Option<Vec<Bytes>>,
}

impl Sorted {
    /// Returns the record, or `None` if it is invalid; `failed` then holds the error.
    fn check(&mut self, record: Result<(Bytes, Bytes)>) -> Option<(Bytes, Bytes)> {
        let checked = record.and_then(|(key, value)| {
            check_key(&key)?;
            self.bytes += (key.len() + value.len()) as u64;
            if self.last.as_ref().is_some_and(|last| *last >= key) {
                return Err(Error::NotSorted { record: self.count });
            }
            if self.bytes > MAX { Err(too_large(self.bytes, MAX)) } else { Ok((key, value)) }
        });
        match checked {
            Ok((key, value)) => {
                self.count += 1;
                if self.bytes + self.count * QUEUE_ENTRY as u64 > FEW {
                    self.keys = None;
                }
                self.keys.iter_mut().for_each(|keys| keys.push(key.clone()));
                self.last = Some(key.clone());
                Some((key, value))
            }
            Err(error) => {
                self.failed = Some(error);
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::flow::memory::Need;
    use crate::{Database, Durability, Error};
    use psync::Simulated;
    use std::sync::Arc;
    use std::time::Duration;

    /// Where values are merged a few bytes fewer are allowed, and ingestion took more: the next merge failed, and its failure was stored. Then it took
    /// no more than a commit with little memory does, though the tree of the same database had longer ones: there was no copy of those.
    #[test]
    fn values_are_as_long_as_those_that_a_tree_has() {
        let db = Database::builder().memory(4 << 20).background_threads(0);
        let db = db.open_on(Arc::new(Simulated::new(1))).unwrap();
        let merging = crate::KeyspaceOptions::new().merge(crate::merge::Max);
        let expiring = crate::KeyspaceOptions::new().expiring();
        for (name, options) in [("plain", Default::default()), ("merged", merging), ("expiring", expiring)] {
            let keyspace = db.keyspace_with(name, options).unwrap();
            let Err(Error::ValueTooLong { max, most, .. }) = keyspace.insert("k", vec![9; 1 << 20]) else {
                panic!("{name}: no limit");
            };
            assert!(max < most, "{name}: {max}, {most}");
            let refused = keyspace.ingest([("k", vec![9; most + 1])]);
            let is_it = |len: usize, max: usize| (len, max) == (most + 1, most);
            assert!(
                matches!(refused, Err(Error::ValueTooLong { len, max, .. }) if is_it(len, max)),
                "{name}: {refused:?}"
            );
            assert_eq!(keyspace.ingest([("k", vec![9; most]), ("l", vec![8; max])]).unwrap(), 2);
            if name == "merged" {
                keyspace.merge("k", [9]).unwrap();
            }
            db.compact().unwrap();
            assert_eq!(keyspace.get("k").unwrap().unwrap().len(), most);
            assert_eq!(keyspace.iter().count(), 2);
        }
        db.check().unwrap();
    }

    /// The last record is removed while an ingestion waits for the writer: what it brought at this key was acknowledged, and never seen.
    #[test]
    fn what_is_ingested_at_a_key_that_was_removed_meanwhile_is_there() {
        for is_range in [false, true] {
            let db = Database::builder().memory(4 << 20).open_on(Arc::new(Simulated::new(1))).unwrap();
            let keyspace = db.keyspace("main").unwrap().with_durability(Durability::Buffered);
            keyspace.insert("a", "old").unwrap();
            keyspace.insert("z", "old").unwrap();
            db.flush().unwrap();
            std::thread::scope(|scope| {
                let guard = db.handle.engine.writer().lock(Need::default()).unwrap();
                let ingests = scope.spawn(|| keyspace.ingest([("z", "new")]));
                // It has flushed, and waits for the writer.
                std::thread::sleep(Duration::from_millis(100));
                let remove = || if is_range { keyspace.remove_range("b"..) } else { keyspace.remove("z") };
                scope.spawn(remove).join().unwrap().unwrap();
                drop(guard);
                assert_eq!(ingests.join().unwrap().unwrap(), 1);
            });
            assert_eq!(keyspace.get("z").unwrap().as_deref(), Some(&b"new"[..]), "a range: {is_range}");
            db.flush().unwrap();
            assert_eq!(keyspace.get("z").unwrap().as_deref(), Some(&b"new"[..]), "a range: {is_range}");
            assert!(matches!(keyspace.ingest([("z", "newer")]), Err(Error::NotSorted { record: 0 })));
            db.check().unwrap();
        }
    }
}
