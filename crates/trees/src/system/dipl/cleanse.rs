//! Cleansing: the nodes of a block are written to a fresh one as they are, ghosts included, and what is left is its log area.
//!
//! Invariant: a block that is cleansed has room for at least one node's worth of log units.

use super::DynamicLog;
use crate::Result;
use crate::page::NodeId;
use crate::update::logged_nodes::{LoggedNodes, Scheme};

/// Cleanses a block; together with a neighbour, if both hold little enough for one block.
pub(super) fn cleanse(nodes: &mut LoggedNodes<DynamicLog>, block: u32) -> Result<()> {
    let members = nodes.directory.members(block)?;
    if let Some((neighbour, joined)) = partner(nodes, &members)? {
        nodes.details.block_merges += 1;
        return nodes.rewrite(&[(block, joined)], &[block, neighbour]);
    }
    nodes.details.cleansings += 1;
    nodes.rewrite(&[(block, members)], &[block])
}

/// A neighbouring block that fits into one with these nodes, two slots left for the log; and the nodes of both, in order.
fn partner(nodes: &LoggedNodes<DynamicLog>, members: &[NodeId]) -> Result<Option<(u32, Vec<NodeId>)>> {
    let limit = DynamicLog::members_max(&nodes.blocks.layout) - 1;
    let [before, behind] = nodes.directory.neighbours(members)?;
    for (neighbour, is_before) in [(before, true), (behind, false)] {
        let Some(neighbour) = neighbour else { continue };
        let block = nodes.directory.member(neighbour)?.block;
        let others = nodes.directory.members(block)?;
        if others.len() + members.len() <= limit {
            let joined = if is_before { [&others, members].concat() } else { [members, &others].concat() };
            return Ok(Some((block, joined)));
        }
    }
    Ok(None)
}
