//! The d-IPL B+-tree (Na, Lee, Moon: "Dynamic in-page logging for flash-aware B-tree index", CIKM 2009): in-page logging with
//! the log right behind the nodes of a block, however many there are; a node that is split off stays in the block of the node
//! that it came from, as a ghost, until the block is written anew.
//!
//! Invariants:
//! 1. Pages of every block are programmed one after the other, none left out.
//! 2. The root has a block of its own; every other block holds consecutive nodes of one level, at most all slots but one.
//! 3. A ghost's source, or its source, and so on, is a node in the data area of the same block.
//!
//! Where the paper is silent: nodes are merged within a block only; blocks are merged when two neighbours that are to be cleansed
//! hold all slots but two, or less, together. A block that is split in two has 15 nodes, so one half has 7 of 16: less than the
//! half that the paper's rule B.c promises.

mod cleanse;
mod split;

use crate::page::log_unit::Record;
use crate::page::node::Node;
use crate::page::{Key, NodeId};
use crate::store::flash_block::Layout;
use crate::system::in_page_logging::InPageLogging;
use crate::update::logged_nodes::{LoggedNodes, Scheme};
use crate::{Error, Result};
use std::sync::Arc;

/// The d-IPL B+-tree. See the module.
pub type DiplTree = InPageLogging<DynamicLog>;

/// The log of a block is right behind its nodes.
pub struct DynamicLog;

impl Scheme for DynamicLog {
    const TAG: u8 = 2;
    const NAME: &'static str = "d-IPL B+-tree";
    const TRIMS: bool = false;
    const SIBLINGS: bool = true;

    fn log_begins(layout: &Layout, regular: usize) -> u32 {
        regular as u32 * layout.node_pages
    }

    fn members_max(layout: &Layout) -> usize {
        layout.slots() - 1
    }

    fn make_room(nodes: &mut LoggedNodes<Self>, block: u32) -> Result<()> {
        cleanse::cleanse(nodes, block)
    }

    fn split(nodes: &mut LoggedNodes<Self>, id: NodeId) -> Result<(Key, NodeId)> {
        split::split(nodes, id)
    }

    fn may_merge(nodes: &LoggedNodes<Self>, left: NodeId, right: NodeId) -> Result<bool> {
        Ok(nodes.directory.member(left)?.block == nodes.directory.member(right)?.block)
    }

    fn merge(
        nodes: &mut LoggedNodes<Self>,
        left: NodeId,
        fence: Key,
        right: NodeId,
        joined: Node,
    ) -> Result<()> {
        let (block, records) = nodes.with_room(left, &|nodes| {
            let (slot, taken) = (nodes.directory.member(left)?.slot, nodes.directory.member(right)?.slot);
            let sectors = [nodes.sector(left)?, nodes.sector(right)?].concat();
            Ok(sectors.into_iter().chain([Record::Merge { slot, fence, taken }]).collect())
        })?;
        nodes.append(block, &records)?;
        nodes.details.groups += 1;
        nodes.directory.remove(right)?;
        nodes.frames.remove(right);
        nodes.frames.put(left, Arc::new(joined));
        nodes.evict()
    }

    fn plant(nodes: &mut LoggedNodes<Self>, id: NodeId, low: Key, node: Node) -> Result<()> {
        let block = nodes.directory.next_block();
        nodes.found(id, node.level(), low, Arc::new(node))?;
        nodes.rewrite(&[(block, vec![id])], &[])?;
        nodes.evict()
    }

    /// The block of the child, which is alone there, is written anew and replaces that of the old root, too.
    fn uproot(nodes: &mut LoggedNodes<Self>, old: NodeId) -> Result<()> {
        let child = nodes.directory.member(nodes.root.id)?.block;
        let members = nodes.directory.members(child)?;
        if members != [nodes.root.id] {
            return Err(Error::broken(format!("the root shares its block with {} nodes", members.len() - 1)));
        }
        let removed = nodes.directory.remove(old)?;
        nodes.frames.remove(old);
        nodes.rewrite(&[(child, members)], &[child, removed.block])
    }
}
