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

/// Trees of which nodes are read that one edit takes apart (count): one read after the other, while the writer is held.
const READ_MAX: usize = 256;

impl WorkContext {
    /// Takes a portion of dropped trees apart, on a full disk with the reserve.
    pub fn take_portion_apart(&self) -> Result<()> {
        self.space.with_reserve(|| {
            let mut guard = self.writer.lock(Need::default())?;
            self.or_poison(|| self.take_some_apart(guard.get()?))
        })?;
        // There may be space to give back.
        self.flush.notify();
        Ok(())
    }

    /// Takes dropped trees apart, on a full disk with the reserve, until there are none.
    pub fn take_dropped_apart(&self) -> Result<()> {
        while self.has_dropped_trees() {
            self.take_portion_apart()?;
        }
        Ok(())
    }

    /// Takes the trees apart that are dropped now, also those that are left alone, on a full disk with the reserve. Returns the first
    /// error in reading one: it keeps no other from being taken apart.
    pub fn take_all_apart(&self) -> Result<Option<Error>> {
        let mut first = None;
        // Those that are dropped meanwhile are not waited for, or this might never end.
        let mut left: BTreeSet<_> = self.state.load().version.dropped.iter().map(|(id, _)| id).collect();
        self.space.with_reserve(|| {
            while !left.is_empty() {
                let mut guard = self.writer_unless_closing()?;
                let done = self.or_poison(|| self.take_apart(guard.get()?, left.iter().copied()))?;
                left.retain(|keyspace| self.state.load().version.dropped.contains(keyspace));
                if let Err((keyspace, error)) = done {
                    left.remove(&keyspace);
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
        let version = &self.state.load().version;
        version.dropped.len() > 0 && self.wanted(version).next().is_some()
    }

    /// The dropped trees that are not left alone.
    fn wanted(&self, version: &Version) -> impl Iterator<Item = KeyspaceId> {
        let left_alone: BTreeSet<_> = self.unreadable_trees.now();
        version.dropped.iter().map(|(id, _)| id).filter(move |id| !left_alone.contains(id))
    }

    /// Drops some nodes of dropped trees.
    pub fn take_some_apart(&self, writer: &mut Writer) -> Result<()> {
        let version = self.state.version();
        self.take_apart(writer, self.wanted(&version)).map(drop)
    }

    /// Drops some nodes of these dropped trees, with one edit. If one cannot be read, nothing is dropped, its tree is left alone, and it
    /// and the error are returned as what was found.
    fn take_apart(
        &self,
        writer: &mut Writer,
        keyspaces: impl Iterator<Item = KeyspaceId>,
    ) -> Result<std::result::Result<(), (KeyspaceId, Error)>> {
        let base = self.state.version();
        let mut builder = VersionBuilder::begin(Arc::clone(&base), &self.pager, writer);
        let (mut is_changed, mut read) = (false, 0);
        for keyspace in keyspaces {
            let Some(tree) = base.dropped.get(&keyspace) else { continue };
            let range = KeyRange { keyspace, from: &[], to: None };
            match drop_blocks(&mut builder, tree, &[range], self.memory.shares.node_len) {
                Ok(has_more) => {
                    is_changed = true;
                    read += usize::from(tree.height > 0);
                    // Closing is no reason for shorter edits: each has its syncs.
                    let is_wanted = self.state.load().frozen.is_some();
                    if has_more || builder.is_long() || read == READ_MAX || is_wanted {
                        break;
                    }
                }
                // With what was done before it: some of the nodes of this tree may have been dropped, and its root still leads to them.
                Err(error) if error.is_of_reading() => {
                    self.leave_tree_alone(keyspace, &error);
                    return Ok(Err((keyspace, error)));
                }
                Err(error) => return Err(error),
            }
        }
        if is_changed {
            self.publisher.commit_version(builder, TreesChange::Same)?;
        }
        Ok(Ok(()))
    }

    fn leave_tree_alone(&self, keyspace: KeyspaceId, error: &Error) {
        tracing::error!(%error, path = %self.health.path(), ?keyspace, "a dropped keyspace is not taken apart for now");
        self.unreadable_trees.leave_alone(keyspace);
    }
}

#[cfg(test)]
mod tests {
    use crate::background::cleanse::tests::damage;
    use crate::background::idle::Idle;
    use crate::background::pick::Job;
    use crate::tree::view::TreeView;
    use crate::{Database, Durability, Error, Keyspace};
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
        let version = engine.state.version();
        let tree = version.trees.get(&one.id()).unwrap();
        assert!(tree.height > 0);
        damage(&volume, &db, version.table.address(tree.root.unwrap()).unwrap());
        assert!(db.drop_keyspace("one").unwrap() && db.drop_keyspace("other").unwrap());
        for round in 0..3u32 {
            kept.insert(round.to_be_bytes(), "v").unwrap();
            db.flush().unwrap();
        }
        let version = engine.state.version();
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
        let version = engine.state.version();
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
        let version = || engine.state.version();
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
        let version = engine.state.version();
        let root = version.trees.get(&one.id()).unwrap().root.unwrap();
        engine.pager.forget(version.table.address(root).unwrap().position);
        assert!(db.drop_keyspace("one").unwrap());
        let reads = Filter::kinds([OperationKind::Read]).file("data");
        volume.fail_nth(reads, 1, Fault::Error, Repeat::Once);
        engine.background.ctx.take_dropped_apart().unwrap();
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
        let records = [Ok(("k".into(), "v".into()))].into_iter();
        let ingested = engine.ingest(keyspace.id(), last, records);
        assert!(matches!(ingested, Err(crate::Error::KeyspaceDropped { .. })), "{ingested:?}");
        db.keyspace("other").unwrap().insert("k", "v").unwrap();
        db.flush().unwrap();
    }

    /// What was dropped of the second tree before that came with the edit of the first, and its root led to what was gone.
    #[test]
    fn of_a_tree_that_cannot_be_read_nothing_is_dropped() {
        let volume = Simulated::new(1);
        let builder = Database::builder().memory(4 << 20).leaf_len(512).background_threads(0);
        let db = builder.open_on(Arc::new(volume.clone()) as Arc<dyn Volume>).unwrap();
        db.keyspace("first").unwrap().ingest([("k", "v")]).unwrap();
        let (second, kept) = (filled(&db, "second"), db.keyspace("kept").unwrap());
        let engine = &db.handle.engine;
        let version = || engine.state.version();
        let now = version();
        let view = TreeView { pager: &engine.pager, version: &now, keyspace: second.id() };
        let (root, height) = view.root().unwrap();
        let node = view.node(root, height).unwrap();
        let above = view.node(node.child(0), height - 1).unwrap();
        assert!(height == 3 && above.count() > 70, "{height}, {} blocks", above.count());
        damage(&volume, &db, now.table.address(above.child(above.count() - 1)).unwrap());
        assert!(db.drop_keyspace("first").unwrap() && db.drop_keyspace("second").unwrap());
        engine.background.ctx.take_dropped_apart().unwrap();
        let left = version();
        assert!(left.dropped.contains(&second.id()) && left.dropped.len() == 1);
        assert!((0..above.count()).all(|child| left.table.address(above.child(child)).is_some()));
        assert!(matches!(db.compact(), Err(Error::Corrupt { file, .. }) if file == "data"));
        kept.insert("k", "v").unwrap();
        db.flush().unwrap();
    }

    /// It tried twice in one call, and said that it was done before the second time: on a full disk it went on like that for ever.
    #[test]
    fn a_drop_that_finds_no_space_uses_the_reserve() {
        let volume = Simulated::new(1);
        let db = open(&volume);
        drop(filled(&db, "one"));
        let engine = &db.handle.engine;
        engine.space.restore_reserve();
        assert!(engine.space.reserve.is_whole());
        assert!(db.drop_keyspace("one").unwrap());
        let writes = Filter::kinds([OperationKind::Write]).file("manifest");
        volume.fail_nth(writes, 1, Fault::NoSpace, Repeat::Once);
        engine.background.idle_work.run(Job::TakeApart, &mut Idle::default());
        assert_eq!(engine.state.load().version.dropped.len(), 0);
    }

    /// Each had an edit of its own, with its syncs, also when the database was closed.
    #[test]
    fn small_trees_are_taken_apart_with_one_edit() {
        let volume = Simulated::new(1);
        let db = open(&volume);
        for number in 0..200 {
            let keyspace = db.keyspace(&format!("small {number}")).unwrap();
            keyspace.ingest((0..50u32).map(|number| (number.to_be_bytes(), [7; 100]))).unwrap();
        }
        for number in 0..200 {
            assert!(db.drop_keyspace(&format!("small {number}")).unwrap());
        }
        let epoch = || db.handle.engine.state.load().version.epoch;
        let (before, engine) = (epoch(), &db.handle.engine);
        assert_eq!(engine.state.load().version.dropped.len(), 200);
        // As when it is closed.
        engine.flush.stop();
        engine.background.ctx.take_dropped_apart().unwrap();
        assert_eq!((engine.state.load().version.dropped.len(), epoch() - before), (0, 1));
    }
}
