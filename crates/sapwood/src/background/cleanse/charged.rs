//! Cleanses blocks that scans have charged enough, or merges their runs: one portion of the listed blocks.
//! [`crate::background::idle`] decides when; [`crate::log_area::read_cost`] defines what is charged.

use super::Cleanser;
use crate::background::garbage_collection::GcUrgency;
use crate::error::Result;
use crate::publish::TreesChange;
use crate::storage::mapping_table::Position;
use crate::storage::node::NodeId;
use crate::storage::writer::Writer;
use crate::tree::candidates;
use crate::tree::candidates::ChargedBlocks;
use crate::tree::cleanse::to_leaves;
use crate::tree::merge_runs::to_one_run;
use crate::tree::view::TreeView;
use crate::version::builder::VersionBuilder;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

impl Cleanser {
    /// Cleanses or merges a portion of the listed blocks, as far as they were charged for it. See
    /// [`Cleanser::or_poison`].
    pub fn cleanse_listed_or_poison(
        &self,
        writer: &mut Writer,
        listed: &mut impl Iterator<Item = (Position, NodeId)>,
    ) -> Result<()> {
        self.ctx.or_poison(|| self.cleanse_listed(writer, listed))
    }

    fn cleanse_listed(
        &self,
        writer: &mut Writer,
        listed: &mut impl Iterator<Item = (Position, NodeId)>,
    ) -> Result<()> {
        let base = self.ctx.state.version();
        let write = self.ctx.cleansing_portion(base.live_bytes());
        let listed = &mut listed.map(|(_, block)| block);
        let chosen = candidates::charged(&self.ctx.pager, &base, listed, write, self.ctx.memory.shares.hold)?;
        let mut builder = VersionBuilder::begin(Arc::clone(&base), &self.ctx.pager, &mut *writer);
        let (mut charged, mut merged) = (Vec::new(), Vec::new());
        for (keyspace, ChargedBlocks { cleansed, merged: of_tree }) in chosen {
            let view = TreeView { pager: &self.ctx.pager, version: &base, keyspace };
            if !cleansed.blocks.is_empty() {
                to_leaves(view, &mut builder, cleansed.blocks, self.ctx.memory.shares.node_len)?;
            }
            to_one_run(view, &mut builder, &of_tree.blocks)?;
            charged.extend(cleansed.charged);
            merged.extend(of_tree.charged);
        }
        if !charged.is_empty() || !merged.is_empty() {
            self.ctx.publisher.commit_version(builder, TreesChange::Same)?;
            let counters = &self.ctx.flush.counters;
            counters.blocks_cleansed.fetch_add(charged.len() as u64, Relaxed);
            counters.cleansed_for_scans(&self.ctx.pager.read_costs, &charged);
            counters.merged_for_scans(&self.ctx.pager.read_costs, &merged);
            drop(base);
            self.collector.tidy_up(writer, GcUrgency::AtWork)?;
        }
        Ok(())
    }
}
