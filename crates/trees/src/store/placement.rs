//! In place, out of place, or on raw flash, for a system that can do each.

use crate::page::NodeId;
use crate::page::node::Node;
use crate::store::Root;
use crate::store::flash_nodes::{Body, FlashNodes};
use crate::store::in_place::InPlaceStore;
use crate::store::out_of_place::OutOfPlaceStore;
use crate::{Counters, PageUse, Result};
use std::collections::HashSet;

/// Where pages go when they are written again.
pub(crate) enum Placement {
    InPlace(InPlaceStore),
    OutOfPlace(OutOfPlaceStore),
    Flash(FlashNodes),
}

impl Placement {
    pub fn durable_root(&self) -> Root {
        match self {
            Self::InPlace(store) => store.durable_root(),
            Self::OutOfPlace(store) => store.durable_root(),
            Self::Flash(store) => store.durable_root(),
        }
    }

    /// Commits so far.
    pub fn version(&self) -> u64 {
        match self {
            Self::InPlace(store) => store.version(),
            Self::OutOfPlace(store) => store.version(),
            Self::Flash(store) => store.version(),
        }
    }

    pub fn read_pages(&self, ids: &[NodeId]) -> Result<Vec<Node>> {
        match self {
            Self::InPlace(store) => store.read_pages(ids),
            Self::OutOfPlace(store) => store.read_pages(ids),
            Self::Flash(store) => ids.iter().map(|id| store.read_node(*id)).collect(),
        }
    }

    pub fn write_pages(&mut self, nodes: &[(NodeId, &Node)]) -> Result<()> {
        match self {
            Self::InPlace(store) => store.write_pages(nodes.iter().copied()),
            Self::OutOfPlace(store) => store.write_pages(nodes),
            Self::Flash(store) => {
                let bodies: Vec<_> = nodes.iter().map(|(id, node)| (*id, Body::Node(node))).collect();
                store.write(&bodies, None)
            }
        }
    }

    pub fn allocate(&mut self) -> NodeId {
        match self {
            Self::InPlace(store) => store.allocate(),
            Self::OutOfPlace(store) => store.allocate(),
            Self::Flash(store) => store.allocate(),
        }
    }

    pub fn free(&mut self, id: NodeId) {
        match self {
            Self::InPlace(store) => store.free(id),
            Self::OutOfPlace(store) => store.free(id),
            Self::Flash(store) => store.free(id),
        }
    }

    /// After opening: the tree has these nodes and no others. Out of place, that is known already.
    pub fn keep_only(&mut self, used: &HashSet<NodeId>) -> Result<()> {
        match self {
            Self::InPlace(store) => store.keep_only(used),
            Self::OutOfPlace(_) => {}
            Self::Flash(store) => store.keep(used)?,
        }
        Ok(())
    }

    /// Makes what was written durable, and then that the tree begins at `root`.
    pub fn commit(&mut self, root: Root) -> Result<()> {
        match self {
            Self::InPlace(store) => store.sync(root),
            Self::OutOfPlace(store) => store.commit(root),
            Self::Flash(store) => store.commit(root),
        }
    }

    pub fn page_use(&self) -> PageUse {
        match self {
            Self::InPlace(_) => PageUse::NotTold,
            Self::OutOfPlace(store) => PageUse::Unused(store.unused()),
            Self::Flash(store) => store.log().page_use(),
        }
    }

    pub fn counters(&self) -> Counters {
        match self {
            Self::InPlace(store) => store.counters(),
            Self::OutOfPlace(store) => store.counters(),
            Self::Flash(store) => store.counters(),
        }
    }
}
