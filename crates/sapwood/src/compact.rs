//! Cleansing outside of a flush: all blocks for [`Database::compact`](crate::Database::compact), or those that scans have paid
//! for, portion by portion, each an edit of its own, while others read and write.

use crate::engine::Engine;
use crate::error::Result;
use crate::flush::PORTION;
use crate::node::NodeId;
use crate::operation::KeyspaceId;
use crate::store::attempt::Attempt;
use crate::store::mapping_table::Position;
use crate::store::writer::Writer;
use crate::tree::bupdate::bupdate;
use crate::tree::cleanse;
use crate::tree::held::Held;
use crate::tree::route::Budget;
use crate::tree::view::TreeView;
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

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
                let writer = guard.get()?;
                let cleansed =
                    self.check_writable().and_then(|()| self.cleanse_some(writer, keyspace, at, share));
                from = cleansed.inspect_err(|error| self.yield_to(error))?;
            }
        }
        Ok(())
    }

    /// Cleanses some blocks at and above `from`; says where to go on.
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
            self.tidy_up(writer)?;
        }
        Ok(next)
    }

    /// Cleanses the first of the listed blocks, one portion of them, as far as they have paid for it. After an error other than a
    /// full disk writes are refused.
    pub fn cleanse_listed_or_poison(
        &self,
        writer: &mut Writer,
        listed: &mut impl Iterator<Item = (Position, NodeId)>,
    ) -> Result<()> {
        let cleansed = self.check_writable().and_then(|()| self.cleanse_listed(writer, listed));
        cleansed.inspect_err(|error| self.yield_to(error))
    }

    fn cleanse_listed(
        &self,
        writer: &mut Writer,
        listed: &mut impl Iterator<Item = (Position, NodeId)>,
    ) -> Result<()> {
        let base = Arc::clone(&self.state.load().version);
        let budget = Budget {
            write: (base.live_bytes() / 8).clamp(*PORTION.start(), *PORTION.end()),
            hold: self.shares.hold,
        };
        let portion = cleanse::paid(&self.pager, &base, &mut listed.map(|(_, block)| block), budget)?;
        let mut attempt = Attempt::begin(Arc::clone(&base), &self.pager, writer);
        let mut paid = Vec::new();
        for (keyspace, blocks) in portion {
            let view = TreeView { pager: &self.pager, version: &base, keyspace };
            let mut changes = Held::new(keyspace, self.pager.buffers().clone());
            cleanse::cleanse(view, &mut attempt, blocks.cleansings, &mut changes)?;
            bupdate(&mut attempt, keyspace, &mut changes.into_iter().peekable(), self.shares.node_len)?;
            paid.extend(blocks.paid);
        }
        if !paid.is_empty() {
            self.commit_attempt(attempt, false)?;
            self.flush.cleansed_for_scans(&self.pager.rents, &paid);
            self.tidy_up(writer)?;
        }
        Ok(())
    }

    /// After an attempt has made nodes dead.
    fn tidy_up(&self, writer: &mut Writer) -> Result<()> {
        self.collect(writer)?;
        self.reclaim(self.slots_to_keep());
        self.flush.data_bytes.store(writer.bytes_written(), Relaxed);
        Ok(())
    }
}
