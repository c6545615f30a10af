//! Cleansing of what a flush has found due, when its queue is in the trees.
//!
//! Invariant: the next frozen queue, and closing, wait for one portion at most.

use crate::engine::Engine;
use crate::error::Result;
use crate::publish::Trees;
use crate::space::portion;
use crate::store::attempt::Attempt;
use crate::store::rent::price;
use crate::store::writer::Writer;
use crate::tree::cleanse::Paid;
use crate::tree::sweep::Due;
use crate::tree::sweep_ahead::sweep_ahead;
use crate::tree::to_leaves::{Logged, to_leaves};
use crate::tree::view::{Block, TreeView};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

impl Engine {
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
            let work = move || sweep_ahead(stage, &self.pager, due, version, limit / 4);
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
            let budget = portion(base.live_bytes());
            let view = TreeView { pager: &self.pager, version: &base, keyspace: first.keyspace };
            let mut blocks: Vec<Logged> = Vec::new();
            let mut paid = Vec::new();
            let (mut leaves, mut logged) = (0, 0);
            while let Some((next, rest)) = due.split_first()
                && next.keyspace == first.keyspace
                && leaves + logged < budget
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
                    blocks.push(Logged { block: id, area: Arc::clone(area) });
                }
            }
            let count = blocks.len() as u64;
            if count > 0 {
                let mut attempt = Attempt::begin(Arc::clone(&base), &self.pager, writer);
                to_leaves(view, &mut attempt, blocks, self.shares.node_len)?;
                written += attempt.bytes();
                self.commit_attempt(attempt, Trees::Same)?;
                self.flush.counters.blocks_cleansed.fetch_add(count, Relaxed);
                self.flush.counters.cleansed_for_scans(&self.pager.rents, &paid);
                self.flush.counters.portions.fetch_add(1, Relaxed);
            }
            self.pace.report(written, expected);
            if let Some(next) = due.first() {
                self.pager.stage.pass((next.keyspace, next.low.clone()));
            }
            self.tidy_up(writer)?;
        }
        Ok(due.len())
    }
}
