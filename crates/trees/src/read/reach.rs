//! The way down to the node of some level that a key belongs to, and the keys that node is for.

use crate::page::node::Node;
use crate::page::{Key, KeyRange, NodeId};
use crate::store::NodeStore;
use crate::{Error, Result};
use std::sync::Arc;

/// An inner node on the way down, and which child the way goes on to.
pub(crate) struct Step {
    pub id: NodeId,
    pub node: Arc<Node>,
    pub child: usize,
}

/// Where a key belongs.
pub(crate) struct Reach {
    /// From the root on.
    pub path: Vec<Step>,
    pub id: NodeId,
    pub range: KeyRange,
}

/// Goes down to level `level`, or to the root if that is lower, without reading the node that it arrives at.
pub(crate) fn reach(store: &impl NodeStore, key: Key, level: u8) -> Result<Reach> {
    let root = store.root();
    let mut found =
        Reach { path: Vec::with_capacity(usize::from(root.level)), id: root.id, range: KeyRange::ALL };
    for above in (level + 1..=root.level).rev() {
        let node = store.read(found.id)?;
        let inner = node.as_inner()?;
        if inner.level != above {
            return Err(Error::broken(format!("{} is of level {}, not {above}", found.id, inner.level)));
        }
        let child = inner.child_of(key);
        if let Some(before) = child.checked_sub(1) {
            found.range.low = inner.fences[before];
        }
        found.range.high = inner.fence_above(child).or(found.range.high);
        let below = inner.children[child];
        found.path.push(Step { id: found.id, node, child });
        found.id = below;
    }
    Ok(found)
}
