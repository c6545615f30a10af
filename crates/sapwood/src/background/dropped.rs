//! Takes the trees of dropped keyspaces apart, so that their space comes back: portion by portion, without reading a leaf.
//!
//! Invariants:
//! 1. Readers that still see such a tree, by a snapshot, keep their version, and with it the segments.
//! 2. A tree with a node that cannot be read is left alone for a time, and keeps no other work from being done.

use crate::background::context::WorkContext;
use crate::error::{Error, Result};
use crate::flow::memory::Need;
use crate::operation::{KeyRange, KeyspaceId};
use crate::publish::TreesChange;
use crate::storage::writer::Writer;
use crate::tree::remove_blocks::drop_blocks;
use crate::version::Version;
use crate::version::builder::VersionBuilder;
use std::collections::BTreeSet;
use std::sync::Arc;

impl WorkContext {
    /// Takes dropped trees apart, on a full disk with the reserve, until there are none or `is_wanted` says that other work
    /// waits.
    pub fn take_dropped_apart(&self, mut is_wanted: impl FnMut() -> bool) -> Result<()> {
        self.space.with_reserve(|| {
            while self.has_dropped_trees() && !is_wanted() {
                let mut guard = self.writer.lock(Need::default())?;
                self.or_poison(|| self.take_some_apart(guard.get()?))?;
            }
            Ok(())
        })?;
        // There may be space to give back.
        self.flush.notify();
        Ok(())
    }

    /// Takes all dropped trees apart, also those that are left alone, on a full disk with the reserve. Returns the first error in
    /// reading one: it keeps no other from being taken apart.
    pub fn take_all_apart(&self) -> Result<Option<Error>> {
        let (mut unread, mut first) = (BTreeSet::new(), None);
        self.space.with_reserve(|| {
            while let Some(keyspace) = first_but(&self.state.load().version, &unread) {
                let mut guard = self.writer_unless_closing()?;
                if let Some(error) = self.or_poison(|| self.take_apart(guard.get()?, keyspace))? {
                    unread.insert(keyspace);
                    first.get_or_insert(error);
                }
            }
            Ok(())
        })?;
        self.flush.notify();
        Ok(first)
    }

    /// Whether dropped trees still have nodes, as far as they can be read.
    pub fn has_dropped_trees(&self) -> bool {
        self.next_dropped(&self.state.load().version).is_some()
    }

    /// The next tree to take apart.
    fn next_dropped(&self, version: &Version) -> Option<KeyspaceId> {
        if version.dropped.len() == 0 {
            return None;
        }
        first_but(version, &self.unreadable_trees.now())
    }

    /// Drops some nodes of a dropped tree.
    pub fn take_some_apart(&self, writer: &mut Writer) -> Result<()> {
        match self.next_dropped(&self.state.load().version) {
            Some(keyspace) => self.take_apart(writer, keyspace).map(drop),
            None => Ok(()),
        }
    }

    /// Drops some nodes of this dropped tree. If one cannot be read, the tree is left alone, and the error is returned as what was
    /// found.
    fn take_apart(&self, writer: &mut Writer, keyspace: KeyspaceId) -> Result<Option<Error>> {
        let base = Arc::clone(&self.state.load().version);
        let Some(tree) = base.dropped.get(&keyspace) else { return Ok(None) };
        let mut builder = VersionBuilder::begin(Arc::clone(&base), &self.pager, writer);
        let range = KeyRange { keyspace, from: &[], to: None };
        match drop_blocks(&mut builder, tree, &[range], self.memory.shares.node_len) {
            Ok(_) => self.publisher.commit_version(builder, TreesChange::Same).map(|()| None),
            Err(error) if error.is_of_reading() => {
                self.leave_tree_alone(keyspace, &error);
                Ok(Some(error))
            }
            Err(error) => Err(error),
        }
    }

    fn leave_tree_alone(&self, keyspace: KeyspaceId, error: &Error) {
        tracing::error!(%error, path = %self.health.path(), ?keyspace, "a dropped keyspace is not taken apart for now");
        self.unreadable_trees.leave_alone(keyspace);
    }
}

/// The first dropped tree that is none of these.
fn first_but(version: &Version, these: &BTreeSet<KeyspaceId>) -> Option<KeyspaceId> {
    version.dropped.iter().map(|(keyspace, _)| keyspace).find(|keyspace| !these.contains(keyspace))
}

#[cfg(test)]
mod tests {
    use crate::background::cleanse::tests::damage;
    use crate::{Database, Durability, Keyspace};
    use psync::{Fault, Filter, OperationKind, Repeat, Simulated, Volume};
    use std::sync::Arc;

    fn open(volume: &Simulated) -> Database {
        let builder =
            Database::builder().memory(4 << 20).background_threads(0).durability(Durability::Buffered);
        builder.open_on(Arc::new(volume.clone()) as Arc<dyn Volume>).unwrap()
    }

    fn filled(db: &Database, name: &str) -> Keyspace {
        let keyspace = db.keyspace(name).unwrap();
        keyspace.ingest((0..60_000u32).map(|number| (number.to_be_bytes(), [7; 100]))).unwrap();
        keyspace
    }

    #[test]
    fn a_tree_that_cannot_be_read_keeps_no_other_from_being_taken_apart() {
        let volume = Simulated::new(1);
        let db = open(&volume);
        let (one, other, kept) = (filled(&db, "one"), filled(&db, "other"), db.keyspace("kept").unwrap());
        let engine = &db.handle.engine;
        let version = Arc::clone(&engine.state.load().version);
        let tree = version.trees.get(&one.id()).unwrap();
        assert!(tree.height > 0);
        damage(&volume, &db, version.table.address(tree.root.unwrap()).unwrap());
        assert!(db.drop_keyspace("one").unwrap() && db.drop_keyspace("other").unwrap());
        for round in 0..3u32 {
            kept.insert(round.to_be_bytes(), "v").unwrap();
            db.flush().unwrap();
        }
        let version = Arc::clone(&engine.state.load().version);
        assert!(version.dropped.contains(&one.id()) && !version.dropped.contains(&other.id()));
        // Also when it is left alone.
        for _ in 0..2 {
            assert!(db.compact().unwrap_err().is_damage());
        }
        kept.insert("k", "v").unwrap();
        db.flush().unwrap();
    }

    /// What is asked for is done where it can be done, and what was not done is told.
    #[test]
    fn compaction_tells_of_a_dropped_tree_that_cannot_be_read_after_all_else() {
        let volume = Simulated::new(1);
        let db = open(&volume);
        let (one, other, kept) = (filled(&db, "one"), filled(&db, "other"), filled(&db, "kept"));
        let engine = &db.handle.engine;
        let version = Arc::clone(&engine.state.load().version);
        let root = version.trees.get(&one.id()).unwrap().root.unwrap();
        let root = version.table.address(root).unwrap();
        for number in (0..60_000u32).step_by(300) {
            kept.insert(number.to_be_bytes(), "another").unwrap();
        }
        assert!(db.drop_keyspace("one").unwrap() && db.drop_keyspace("other").unwrap());
        engine.pager.forget(root.position);
        // An outage: the root cannot be read the first time.
        let reads = Filter::kinds([OperationKind::Read]).file("data");
        volume.fail_nth(reads, 1, Fault::Error, Repeat::Once);
        let taken = engine.background.ctx.take_all_apart().unwrap();
        assert!(taken.is_some_and(|error| error.is_of_reading()));
        let version = || Arc::clone(&engine.state.load().version);
        assert!(version().dropped.contains(&one.id()) && !version().dropped.contains(&other.id()));
        assert!(!engine.background.ctx.has_dropped_trees(), "it is left alone");
        damage(&volume, &db, root);
        assert!(db.compact().unwrap_err().is_damage());
        assert_eq!(db.stats().space.logged_changes, 0, "the rest is done");
        kept.insert("k", "v").unwrap();
        db.close().unwrap();
    }

    #[test]
    fn compaction_tries_a_tree_again_that_was_left_alone() {
        let volume = Simulated::new(1);
        let db = open(&volume);
        let one = filled(&db, "one");
        let engine = &db.handle.engine;
        let version = Arc::clone(&engine.state.load().version);
        let root = version.trees.get(&one.id()).unwrap().root.unwrap();
        engine.pager.forget(version.table.address(root).unwrap().position);
        assert!(db.drop_keyspace("one").unwrap());
        let reads = Filter::kinds([OperationKind::Read]).file("data");
        volume.fail_nth(reads, 1, Fault::Error, Repeat::Once);
        engine.background.ctx.take_dropped_apart(|| false).unwrap();
        assert!(!engine.background.ctx.has_dropped_trees(), "it is left alone");
        assert!(engine.state.load().version.dropped.contains(&one.id()));
        db.compact().unwrap();
        assert_eq!(engine.state.load().version.dropped.len(), 0);
    }

    /// A drop takes neither the writer nor a lock of what works with it.
    #[test]
    fn a_keyspace_that_is_dropped_while_records_are_ingested_is_told_so() {
        let volume = Simulated::new(1);
        let db = open(&volume);
        let keyspace = filled(&db, "main");
        let engine = &db.handle.engine;
        let last = || {
            std::thread::scope(|scope| scope.spawn(|| db.drop_keyspace("main").unwrap()).join().unwrap());
            Ok(None)
        };
        let records = [("k".into(), "v".into())].into_iter();
        let ingested = engine.ingest(keyspace.id(), last, records);
        assert!(matches!(ingested, Err(crate::Error::KeyspaceDropped { .. })), "{ingested:?}");
        db.keyspace("other").unwrap().insert("k", "v").unwrap();
        db.flush().unwrap();
    }
}
