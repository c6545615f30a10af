//! Cleansing: what a flush has found due, all blocks for [`Database::compact`](crate::Database::compact), or some, portion by portion,
//! each an edit of its own, while others read and write.

use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::flush::PORTION;
use crate::operation::KeyspaceId;
use crate::store::attempt::Attempt;
use crate::store::writer::Writer;
use crate::tree::bupdate::bupdate;
use crate::tree::cleanse::{self, Cleansing};
use crate::tree::sweep::Due;
use crate::tree::sweep_ahead::sweep_ahead;
use crate::tree::view::{Block, TreeView};
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

impl Engine {
    /// Brings all changes of log areas to their leaves, if they are at least `share` percent of the leaves' bytes, and
    /// gives back the space that this sets free.
    pub fn cleanse_all(&self, share: u64) -> Result<()> {
        let keyspaces: Vec<_> = self.state.load().version.trees.keys().copied().collect();
        for keyspace in keyspaces {
            let mut from = Some(Bytes::new());
            while let Some(at) = from.take() {
                let mut guard = self.writer.lock();
                let writer = guard.as_mut().ok_or(Error::Closed)?;
                from = self.cleanse_some_or_poison(writer, keyspace, at, share)?;
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

    /// Cleanses what a flush has found due, until the next queue is frozen or the database is to be closed. `written` is what the
    /// flush has written before. Says how many blocks are left.
    pub fn cleanse_due(&self, writer: &mut Writer, due: &[Due], written: u64) -> Result<usize> {
        if !self.flush.in_background() || due.is_empty() {
            return self.cleanse_in_turn(writer, due, written);
        }
        let (stage, limit) = (&self.pager.stage, self.shares.stage);
        std::thread::scope(|scope| {
            let open = stage.open(limit);
            let version = || Arc::clone(&self.state.load().version);
            let work = move || sweep_ahead(stage, &self.pager, due, version, limit / 8);
            // Without a thread nothing is read ahead.
            let thread = std::thread::Builder::new().name("sapwood-ahead".into());
            let reader = thread.spawn_scoped(scope, work).ok();
            let left = self.cleanse_in_turn(writer, due, written);
            drop(open);
            // If it panicked, nothing was read ahead.
            reader.map(std::thread::ScopedJoinHandle::join);
            left
        })
    }

    fn cleanse_in_turn(&self, writer: &mut Writer, mut due: &[Due], mut written: u64) -> Result<usize> {
        let expected = written + due.iter().map(|due| due.leaves).sum::<u64>();
        while let Some(first) = due.first()
            && !self.flush.stops()
            && self.state.load().frozen.is_none()
        {
            self.check_writable()?;
            let base = Arc::clone(&self.state.load().version);
            let budget = (base.live_bytes() / 8).clamp(*PORTION.start(), *PORTION.end());
            let mut attempt = Attempt::begin(Arc::clone(&base), &self.pager, writer);
            let view = TreeView { pager: &self.pager, version: &base, keyspace: first.keyspace };
            let mut blocks: Vec<Cleansing> = Vec::new();
            let (mut leaves, mut logged) = (0, 0);
            while let Some((next, rest)) = due.split_first()
                && next.keyspace == first.keyspace
                && leaves + logged < budget
                && logged < self.shares.hold
            {
                due = rest;
                // It may have been cleansed meanwhile.
                if let Some(Block { id, .. }) = view.block_at(&next.low)?
                    && let Some(area) = view.log(id)
                    && blocks.last().is_none_or(|last| last.block != id)
                {
                    leaves += next.leaves;
                    logged += area.bytes();
                    blocks.push(Cleansing { block: id, area: Some(Arc::clone(area)), changes: Vec::new() });
                }
            }
            self.flush.blocks_cleansed.fetch_add(blocks.len() as u64, Relaxed);
            let mut changes = Vec::new();
            cleanse::cleanse(view, &mut attempt, blocks, &mut changes)?;
            if changes.is_empty() {
                drop(attempt);
            } else {
                let changes = &mut changes.into_iter().peekable();
                bupdate(&mut attempt, first.keyspace, changes, self.shares.node_len)?;
                written += attempt.bytes();
                self.commit_attempt(attempt, false)?;
                self.flush.portions.fetch_add(1, Relaxed);
            }
            self.pace.report(written, expected);
            if let Some(next) = due.first() {
                self.pager.stage.pass((next.keyspace, next.low.clone()));
            }
            self.collect(writer)?;
            self.reclaim(self.slots_to_keep());
        }
        Ok(due.len())
    }
}
