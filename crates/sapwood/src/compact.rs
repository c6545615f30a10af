//! Cleansing outside of a flush: all blocks for [`Database::compact`](crate::Database::compact), or some, portion by portion,
//! each an edit of its own, while others read and write.

use crate::engine::Engine;
use crate::error::Result;
use crate::flush::PORTION;
use crate::operation::KeyspaceId;
use crate::store::attempt::Attempt;
use crate::store::writer::Writer;
use crate::tree::bupdate::bupdate;
use crate::tree::cleanse;
use crate::tree::view::TreeView;
use bytes::Bytes;
use std::sync::Arc;

impl Engine {
    /// Brings all changes of log areas to their leaves, if they are at least `share` percent of the leaves' bytes, and
    /// gives back the space that this sets free.
    pub fn cleanse_all(&self, share: u64) -> Result<()> {
        let _work = self.work();
        let keyspaces: Vec<_> = self.state.load().version.trees.keys().copied().collect();
        for keyspace in keyspaces {
            let mut from = Some(Bytes::new());
            while let Some(at) = from.take() {
                let mut guard = self.writer()?;
                from = self.cleanse_some_or_poison(guard.get()?, keyspace, at, share)?;
            }
        }
        Ok(())
    }

    /// Cleanses some blocks at and above `from`; says where to go on. After an error other than a full disk writes are
    /// refused.
    pub fn cleanse_some_or_poison(
        &self,
        writer: &mut Writer,
        keyspace: KeyspaceId,
        from: Bytes,
        share: u64,
    ) -> Result<Option<Bytes>> {
        let cleansed = self.check_writable().and_then(|()| self.cleanse_some(writer, keyspace, from, share));
        cleansed.inspect_err(|error| self.yield_to(error))
    }

    /// As [`Engine::cleanse_some_or_poison`], and leaves it to the caller what an error means.
    pub fn cleanse_some(
        &self,
        writer: &mut Writer,
        keyspace: KeyspaceId,
        from: Bytes,
        share: u64,
    ) -> Result<Option<Bytes>> {
        let base = Arc::clone(&self.state.load().version);
        let budget = (base.live_bytes() / 8).clamp(*PORTION.start(), self.shares.hold.max(*PORTION.start()));
        let mut attempt = Attempt::begin(Arc::clone(&base), &self.pager, writer);
        let view = TreeView { pager: &self.pager, version: &base, keyspace };
        let (changes, next) = cleanse::next(view, &mut attempt, from, share, budget)?;
        if !changes.is_empty() {
            bupdate(&mut attempt, keyspace, &mut changes.into_iter().peekable(), self.shares.node_len)?;
            self.commit_attempt(attempt, false)?;
            self.collect(writer)?;
            self.reclaim(self.slots_to_keep());
        }
        Ok(next)
    }
}
