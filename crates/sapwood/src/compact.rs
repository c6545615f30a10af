//! Cleansing: what a flush has found due, all blocks for [`Database::compact`](crate::Database::compact), or those that scans have
//! paid for, portion by portion, each an edit of its own, while others read and write.

use crate::engine::Engine;
use crate::error::Result;
use crate::flush::PORTION;
use crate::node::NodeId;
use crate::operation::KeyspaceId;
use crate::publish::Trees;
use crate::store::attempt::Attempt;
use crate::store::mapping_table::Position;
use crate::store::rent::price;
use crate::store::writer::Writer;
use crate::tree::bupdate::bupdate;
use crate::tree::cleanse::{self, Cleansing, Paid};
use crate::tree::held::Held;
use crate::tree::sweep::Due;
use crate::tree::sweep_ahead::sweep_ahead;
use crate::tree::view::{Block, TreeView};
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

impl Engine {
    /// Brings all changes of log areas to their leaves, and gives back the space that this sets free.
    pub fn cleanse_all(&self) -> Result<()> {
        let _work = self.work();
        let keyspaces: Vec<_> = self.state.load().version.trees.keys().copied().collect();
        for keyspace in keyspaces {
            let mut from = Some(Bytes::new());
            while let Some(at) = from.take() {
                let mut guard = self.writer()?;
                let writer = guard.get()?;
                from = self.or_poison(|| self.cleanse_some(writer, keyspace, at))?;
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
            let mut paid = Vec::new();
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
                    let price = price(next.leaves, area.bytes());
                    if next.is_paid && area.rent().has_reached(price) {
                        paid.push(Paid { area: Arc::clone(area), price });
                    }
                    blocks.push(Cleansing { block: id, area: Some(Arc::clone(area)), changes: Vec::new() });
                }
            }
            let count = blocks.len() as u64;
            let mut changes = Held::new(first.keyspace, self.pager.buffers().clone());
            cleanse::cleanse(view, &mut attempt, blocks, &mut changes)?;
            if changes.is_empty() {
                drop(attempt);
            } else {
                let changes = &mut changes.into_iter().peekable();
                bupdate(&mut attempt, first.keyspace, changes, self.shares.node_len)?;
                written += attempt.bytes();
                self.commit_attempt(attempt, Trees::Same)?;
                self.flush.blocks_cleansed.fetch_add(count, Relaxed);
                self.flush.cleansed_for_scans(&self.pager.rents, &paid);
                self.flush.portions.fetch_add(1, Relaxed);
            }
            self.pace.report(written, expected);
            if let Some(next) = due.first() {
                self.pager.stage.pass((next.keyspace, next.low.clone()));
            }
            self.tidy_up(writer)?;
        }
        Ok(due.len())
    }

    /// Cleanses the first of the listed blocks, one portion of them, as far as they have paid for it. After an error other than a
    /// full disk writes are refused.
    pub fn cleanse_listed_or_poison(
        &self,
        writer: &mut Writer,
        listed: &mut impl Iterator<Item = (Position, NodeId)>,
    ) -> Result<()> {
        self.or_poison(|| self.cleanse_listed(writer, listed))
    }

    fn cleanse_listed(
        &self,
        writer: &mut Writer,
        listed: &mut impl Iterator<Item = (Position, NodeId)>,
    ) -> Result<()> {
        let base = Arc::clone(&self.state.load().version);
        let write = (base.live_bytes() / 8).clamp(*PORTION.start(), *PORTION.end());
        let listed = &mut listed.map(|(_, block)| block);
        let portion = cleanse::paid(&self.pager, &base, listed, write, self.shares.hold)?;
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
            self.commit_attempt(attempt, Trees::Same)?;
            self.flush.blocks_cleansed.fetch_add(paid.len() as u64, Relaxed);
            self.flush.cleansed_for_scans(&self.pager.rents, &paid);
            self.tidy_up(writer)?;
        }
        Ok(())
    }

    /// Work that is refused where writes are, and after whose failure, a full disk aside, they are.
    fn or_poison<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        self.check_writable().and_then(|()| work()).inspect_err(|error| self.yield_to(error))
    }

    /// After an attempt has made nodes dead.
    fn tidy_up(&self, writer: &mut Writer) -> Result<()> {
        self.collect(writer)?;
        self.reclaim(self.slots_to_keep(false));
        self.flush.data_bytes.store(writer.bytes_written(), Relaxed);
        Ok(())
    }
}
