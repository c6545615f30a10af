//! Walks the whole tree and verifies its structure: for `check`, and to find the pages in use.

use crate::page::node::Node;
use crate::page::{Key, NodeId};
use crate::store::nodes::Nodes;
use crate::{Checked, Error, Result};
use std::ops::{Bound, RangeBounds};

/// What a tree may do that others may not.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Allow {
    /// Nodes that are less than half full.
    pub underfull: bool,
    /// Leaves without a `next`.
    pub unchained: bool,
}

/// Visits every node in order of key, parents before children, and verifies that the tree is one: equal depth, levels,
/// fences nested, nodes neither too full nor too empty, leaves chained.
pub(crate) fn walk(
    store: &impl Nodes,
    allow: Allow,
    visit: &mut dyn FnMut(NodeId, &Node),
) -> Result<Checked> {
    let root = store.root();
    let mut walk = Walk { store, allow, visit, checked: Checked::default(), next: None };
    walk.node(root.id, root.level, true, Bound::Unbounded, Bound::Unbounded)?;
    if let Some(Some(beyond)) = walk.next {
        return Err(Error::broken(format!("the last leaf is followed by {beyond}")));
    }
    walk.checked.height = u32::from(root.level) + 1;
    Ok(walk.checked)
}

struct Walk<'a, S> {
    store: &'a S,
    allow: Allow,
    visit: &'a mut dyn FnMut(NodeId, &Node),
    checked: Checked,
    /// What the leaf before says is next.
    next: Option<Option<NodeId>>,
}

impl<S: Nodes> Walk<'_, S> {
    fn node(
        &mut self,
        id: NodeId,
        level: u8,
        is_root: bool,
        low: Bound<Key>,
        high: Bound<Key>,
    ) -> Result<()> {
        let broken = |what: String| Err(Error::broken(format!("{id}: {what}")));
        let node = self.store.read(id)?;
        let limits = self.store.limits(level, self.store.root().level + 1);
        if node.level() != level {
            return broken(format!("level {}, not {level}", node.level()));
        }
        if node.count() > limits.max {
            return broken(format!("{} of at most {}", node.count(), limits.max));
        }
        if !is_root && !self.allow.underfull && node.count() < limits.min {
            return broken(format!("{} of {}: less than half full", node.count(), limits.max));
        }
        (self.visit)(id, &node);
        let inside = |key: &Key| (low, high).contains(key);
        match &*node {
            Node::Leaf(leaf) => {
                if !leaf.entries.iter().all(|(key, _)| inside(key)) {
                    return broken(format!("keys outside {low:?} to {high:?}"));
                }
                if !self.allow.unchained
                    && let Some(next) = self.next.replace(leaf.next)
                    && next != Some(id)
                {
                    return broken(format!("the leaf before it says {next:?} is next"));
                }
                self.checked.leaves += 1;
                self.checked.records += leaf.entries.len() as u64;
            }
            Node::Inner(inner) => {
                if !inner.fences.iter().all(inside) {
                    return broken(format!("fences outside {low:?} to {high:?}"));
                }
                if is_root && inner.children.len() < 2 {
                    return broken("a root with one child".into());
                }
                self.checked.inner += 1;
                for (index, child) in inner.children.iter().enumerate() {
                    let from =
                        index.checked_sub(1).map_or(low, |before| Bound::Included(inner.fences[before]));
                    let to = inner.fence_above(index).map_or(high, Bound::Excluded);
                    self.node(*child, level - 1, false, from, to)?;
                }
            }
        }
        Ok(())
    }
}
