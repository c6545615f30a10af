//! Takes the trees of dropped keyspaces apart, so that their space comes back: portion by portion, without reading a leaf.
//!
//! Invariant: readers that still see such a tree, by a snapshot, keep their version, and with it the segments.

use crate::background::context::WorkContext;
use crate::error::Result;
use crate::flow::memory::Need;
use crate::operation::KeyRange;
use crate::publish::TreesChange;
use crate::storage::writer::Writer;
use crate::tree::remove_blocks::drop_blocks;
use crate::version::builder::VersionBuilder;
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

    /// Whether dropped trees still have nodes.
    pub fn has_dropped_trees(&self) -> bool {
        self.state.load().version.dropped.len() > 0
    }

    /// Drops some nodes of a dropped tree.
    pub fn take_some_apart(&self, writer: &mut Writer) -> Result<()> {
        let base = Arc::clone(&self.state.load().version);
        let Some((keyspace, tree)) = base.dropped.iter().next() else { return Ok(()) };
        let mut builder = VersionBuilder::begin(Arc::clone(&base), &self.pager, writer);
        let range = KeyRange { keyspace, from: &[], to: None };
        drop_blocks(&mut builder, tree, range, self.memory.shares.node_len)?;
        self.publisher.commit_version(builder, TreesChange::Same)
    }
}
