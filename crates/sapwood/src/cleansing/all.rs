//! Cleansing of all blocks, or of those from a key on: for [`Database::compact`](crate::Database::compact), and where ingestion begins.

use crate::budget::Need;
use crate::engine::Engine;
use crate::error::Result;
use crate::operation::KeyspaceId;
use crate::publish::Trees;
use crate::space::PORTION;
use crate::store::attempt::Attempt;
use crate::store::writer::Writer;
use crate::tree::bupdate::bupdate;
use crate::tree::cleanse;
use crate::tree::view::TreeView;
use bytes::Bytes;
use std::sync::Arc;

impl Engine {
    /// Memory that a cleansing takes now, at most: no more is held back than log areas have.
    pub fn cleansing_max(&self) -> Need {
        let logged = self.state.load().version.logs.totals().bytes;
        self.shares.work(logged, u64::MAX, u64::MAX)
    }

    /// Brings all changes of log areas to their leaves. The space that this sets free goes back as soon as nobody writes.
    pub fn cleanse_all(&self) -> Result<()> {
        let _work = self.work(self.cleansing_max());
        let keyspaces: Vec<_> = self.state.load().version.trees.keys().copied().collect();
        for keyspace in keyspaces {
            let mut from = Some(Bytes::new());
            while let Some(at) = from.take() {
                let mut guard = self.writer(Need::default())?;
                let writer = guard.get()?;
                from = self.or_poison(|| self.cleanse_some(writer, keyspace, at))?;
            }
        }
        self.flush.notify();
        Ok(())
    }

    /// Cleanses some blocks at and above `from`; says where to go on.
    pub fn cleanse_some(
        &self,
        writer: &mut Writer,
        keyspace: KeyspaceId,
        from: Bytes,
    ) -> Result<Option<Bytes>> {
        let base = Arc::clone(&self.state.load().version);
        let budget = (base.live_bytes() / 8).clamp(*PORTION.start(), self.shares.hold.max(*PORTION.start()));
        let mut attempt = Attempt::begin(Arc::clone(&base), &self.pager, writer);
        let view = TreeView { pager: &self.pager, version: &base, keyspace };
        let (changes, next) = cleanse::next(view, &mut attempt, from, budget)?;
        if !changes.is_empty() {
            bupdate(&mut attempt, keyspace, &mut changes.into_iter().peekable(), self.shares.node_len)?;
            self.commit_attempt(attempt, Trees::Same)?;
            self.tidy_up(writer)?;
        }
        Ok(next)
    }
}
