//! Splits: a node's upper half becomes a ghost in the same block (rules N.a and B.d), which one log record says; a block that
//! may not take one more node is divided first (rule B.c).
//!
//! Invariant: what the old node's log sector holds and the record of the split reach flash as one group (rule 3).

use super::DynamicLog;
use crate::page::log_unit::Record;
use crate::page::{Key, NodeId};
use crate::update::logged_nodes::{LoggedNodes, Scheme};
use crate::update::split_merge::{self, Pair};
use crate::{Error, Result};
use std::sync::Arc;

/// Divides a full node.
pub(super) fn split(nodes: &mut LoggedNodes<DynamicLog>, id: NodeId) -> Result<(Key, NodeId)> {
    let block = nodes.directory.member(id)?.block;
    if nodes.directory.block(block)?.members() >= DynamicLog::members_max(&nodes.blocks.layout) {
        split_block(nodes, block)?;
    }
    let whole = nodes.node(id)?;
    let level = whole.level();
    let Pair { left, fence, right } = split_merge::split(whole.as_ref().clone());
    let new_id = nodes.allocate()?;
    let (block, records) = nodes.with_room(id, &|nodes| {
        let member = nodes.directory.member(id)?;
        let new = nodes.directory.block(member.block)?.slots.len() as u8;
        let record = Record::Split { slot: member.slot, key: fence, id: new_id, new };
        Ok(nodes.sector(id)?.into_iter().chain([record]).collect())
    })?;
    let slot = nodes.directory.member(id)?.slot;
    nodes.details.split_units += nodes.append(block, &records)?;
    nodes.details.groups += 1;
    nodes.details.ghosts += 1;
    let regular = nodes.directory.block(block)?.regular.len();
    nodes.details.ghosts_of_ghosts += u64::from(usize::from(slot) >= regular);
    nodes.directory.add_to_block(new_id, level, fence, block)?;
    nodes.frames.put(id, Arc::new(left));
    nodes.frames.put(new_id, Arc::new(right));
    nodes.evict()?;
    Ok((fence, new_id))
}

/// Divides a block: each half of its nodes is written to a fresh one.
fn split_block(nodes: &mut LoggedNodes<DynamicLog>, block: u32) -> Result<()> {
    let mut left = nodes.directory.members(block)?;
    if left.len() < 2 {
        return Err(Error::broken(format!("block {block} has {} nodes and is full", left.len())));
    }
    let right = left.split_off(left.len().div_ceil(2));
    nodes.details.block_splits += 1;
    let new = nodes.directory.next_block();
    nodes.rewrite(&[(block, left), (new, right)], &[block])
}
