//! Where nodes live: the seam between a tree's algorithms and how its pages reach the device.

pub(crate) mod anchor;
pub(crate) mod batch;
pub(crate) mod block_directory;
pub(crate) mod block_scan;
pub(crate) mod collected;
pub(crate) mod commit_record;
pub(crate) mod copy_on_write;
pub(crate) mod erased_blocks;
pub(crate) mod extents;
pub(crate) mod flash_block;
pub(crate) mod flash_buffers;
pub(crate) mod flash_log;
pub(crate) mod flash_nodes;
pub(crate) mod flash_tag;
pub(crate) mod garbage_collection;
pub(crate) mod in_place;
pub(crate) mod last_segments;
pub(crate) mod leaf_extents;
pub(crate) mod leaf_logs;
pub(crate) mod log_area;
pub(crate) mod log_page;
pub(crate) mod log_recovery;
pub(crate) mod map_checkpoint;
pub(crate) mod mapping_table;
pub(crate) mod node_units;
pub(crate) mod nodes;
pub(crate) mod out_of_place;
pub(crate) mod path_copy;
pub(crate) mod path_pages;
pub(crate) mod placement;
pub(crate) mod sequential;
pub(crate) mod sub_files;
pub(crate) mod superblock;
pub(crate) mod unit_packing;
pub(crate) mod unit_store;

use crate::page::NodeId;
use crate::page::node::{Node, Shape};
use crate::{Counters, Result};
use std::sync::Arc;

/// Where a tree begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Root {
    pub id: NodeId,
    /// Levels above the leaves.
    pub level: u8,
}

/// Nodes by id. A node that was read is never changed; what is written replaces it.
pub(crate) trait NodeStore {
    /// How much goes into a node.
    fn shape(&self) -> Shape;

    fn root(&self) -> Root;

    fn set_root(&mut self, root: Root);

    fn read(&self, id: NodeId) -> Result<Arc<Node>>;

    /// Reads many nodes with one psync, in the order asked.
    fn read_many(&self, ids: &[NodeId]) -> Result<Vec<Arc<Node>>>;

    fn write(&mut self, id: NodeId, node: Node) -> Result<()>;

    /// Writes nodes that nobody will ask for soon, in one go if possible: for bulk loading.
    fn write_many(&mut self, nodes: Vec<(NodeId, Node)>) -> Result<()> {
        nodes.into_iter().try_for_each(|(id, node)| self.write(id, node))
    }

    fn allocate(&mut self) -> NodeId;

    fn free(&mut self, id: NodeId) -> Result<()>;

    /// An operation has ended, and the tree is whole.
    fn settle(&mut self) -> Result<()> {
        Ok(())
    }

    /// Brings everything to the device and makes it durable.
    fn sync(&mut self) -> Result<()>;

    /// Pages, hits, memory and space.
    fn counters(&self) -> Counters;
}
