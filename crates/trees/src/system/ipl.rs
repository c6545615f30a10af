//! The IPL B+-tree (in-page logging: Lee and Moon, SIGMOD 2007; as a B+-tree: section 2 of the d-IPL paper, CIKM 2009): the last
//! slot of every block is its log. What is split off a node goes to any block that has room, and since that block and the
//! node's are written anew independently, it is logged there entry by entry.
//!
//! Invariants:
//! 1. A block's log is in its last slot, whatever the others hold. Once it begins, slots that are free are lost until the block
//!    is written anew ("page evaporation").
//! 2. What moves from one node to another is on flash at its new place before it is taken off the old one. In between, power
//!    loss may find it twice; recovery takes it off then. A page that it was logged in is not programmed again: a torn program
//!    would take it along.
//!
//! Where the sources are silent: nodes are merged as they are split, entry by entry; a block that has lost all its nodes takes
//! new ones.

use crate::Result;
use crate::page::log_unit::Record;
use crate::page::node::Node;
use crate::page::node_change::{Change, contents};
use crate::page::{Key, NodeId};
use crate::store::flash_block::Layout;
use crate::system::in_page_logging::InPageLogging;
use crate::update::logged_nodes::{LoggedNodes, Scheme};
use crate::update::split_merge::{self, Pair};
use std::sync::Arc;

/// The IPL B+-tree. See the module.
pub type IplTree = InPageLogging<FixedLog>;

/// The log of a block is its last slot.
pub struct FixedLog;

impl Scheme for FixedLog {
    const TAG: u8 = 1;
    const NAME: &'static str = "IPL B+-tree";
    const TRIMS: bool = true;
    const SIBLINGS: bool = false;

    fn log_begins(layout: &Layout, _regular: usize) -> u32 {
        layout.pages_per_block - layout.node_pages
    }

    fn members_max(layout: &Layout) -> usize {
        layout.slots() - 1
    }

    /// The "merge" of the IPL papers: what stands in the log goes into the nodes.
    fn make_room(nodes: &mut LoggedNodes<Self>, block: u32) -> Result<()> {
        let members = nodes.directory.members(block)?;
        nodes.details.cleansings += 1;
        nodes.rewrite(&[(block, members)], &[block])
    }

    fn split(nodes: &mut LoggedNodes<Self>, id: NodeId) -> Result<(Key, NodeId)> {
        let Pair { left, fence, right } = split_merge::split(nodes.node(id)?.as_ref().clone());
        let new_id = nodes.allocate()?;
        let before = nodes.details.units;
        Self::plant(nodes, new_id, fence, right)?;
        nodes.frames.put_changed(id, Arc::new(left), Change::Cut(fence));
        nodes.write_sector(id)?;
        nodes.details.split_units += nodes.details.units - before;
        nodes.evict()?;
        Ok((fence, new_id))
    }

    fn may_merge(_: &LoggedNodes<Self>, _: NodeId, _: NodeId) -> Result<bool> {
        Ok(true)
    }

    fn merge(
        nodes: &mut LoggedNodes<Self>,
        left: NodeId,
        fence: Key,
        right: NodeId,
        joined: Node,
    ) -> Result<()> {
        let taken = nodes.node(right)?;
        let mut moved = Vec::new();
        if let Node::Inner(inner) = &*taken {
            moved.push(Change::Put(fence, inner.children[0].0));
        }
        moved.extend(contents(&taken));
        let all = |nodes: &LoggedNodes<Self>| -> Result<(u32, Vec<Record>)> {
            let member = nodes.directory.member(left)?;
            let moved = moved.iter().map(|change| change.record(member.slot));
            Ok((member.block, nodes.sector(left)?.into_iter().chain(moved).collect()))
        };
        let (mut block, mut records) = all(nodes)?;
        if !nodes.fits(block, &records)? {
            Self::make_room(nodes, block)?;
            (block, records) = all(nodes)?;
        }
        let fits = nodes.fits(block, &records)?;
        if fits {
            nodes.append(block, &records)?;
            nodes.directory.block_mut(block)?.log.close_page();
            nodes.details.groups += 1;
        }
        nodes.frames.put(left, Arc::new(joined));
        if !fits {
            Self::make_room(nodes, block)?;
        }
        drop_node(nodes, right)?;
        nodes.evict()
    }

    /// Logged entry by entry in a block that has room; if its log has not, the block is written anew with the node in it.
    fn plant(nodes: &mut LoggedNodes<Self>, id: NodeId, low: Key, node: Node) -> Result<()> {
        let block = block_with_room(nodes)?;
        let level = node.level();
        let first = match &node {
            Node::Inner(inner) => inner.children[0],
            Node::Leaf(_) => NodeId(0),
        };
        let entries = contents(&node);
        let all = |nodes: &LoggedNodes<Self>| -> Result<Vec<Record>> {
            let slot = nodes.directory.block(block)?.slots.len() as u8;
            let create = Record::Create { slot, low, id, level, first };
            let entries = entries.iter().map(|change| change.record(slot));
            Ok([create].into_iter().chain(entries).collect())
        };
        let mut records = all(nodes)?;
        if !nodes.fits(block, &records)? {
            Self::make_room(nodes, block)?;
            records = all(nodes)?;
        }
        if nodes.fits(block, &records)? {
            nodes.append(block, &records)?;
            nodes.directory.block_mut(block)?.log.close_page();
            nodes.details.groups += 1;
            nodes.directory.add_to_block(id, level, low, block)?;
            nodes.frames.put(id, Arc::new(node));
        } else {
            nodes.found(id, level, low, Arc::new(node))?;
            let members = [nodes.directory.members(block)?, vec![id]].concat();
            nodes.rewrite(&[(block, members)], &[block])?;
        }
        nodes.evict()
    }

    fn uproot(nodes: &mut LoggedNodes<Self>, old: NodeId) -> Result<()> {
        drop_node(nodes, old)
    }
}

/// A block that can take one more node, a new one if there is none.
fn block_with_room(nodes: &mut LoggedNodes<FixedLog>) -> Result<u32> {
    let limit = FixedLog::members_max(&nodes.blocks.layout);
    let room = nodes.directory.blocks().iter().find(|(_, block)| block.members() < limit);
    if let Some((number, _)) = room {
        return Ok(*number);
    }
    let block = nodes.directory.next_block();
    nodes.rewrite(&[(block, Vec::new())], &[])?;
    Ok(block)
}

/// A node is gone: what it held is elsewhere, on flash.
fn drop_node(nodes: &mut LoggedNodes<FixedLog>, id: NodeId) -> Result<()> {
    let member = nodes.directory.remove(id)?;
    nodes.frames.remove(id);
    let records = [Record::Drop { slot: member.slot }];
    if nodes.fits(member.block, &records)? {
        nodes.append(member.block, &records)?;
        Ok(())
    } else {
        FixedLog::make_room(nodes, member.block)
    }
}
