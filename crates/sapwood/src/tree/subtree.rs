//! A node of a tree with the keys that belong below it, on a walk from the root down.
//!
//! Invariant: the children of a node divide its keys among them, without gap.

use crate::operation::KeyRange;
use crate::storage::node::{Node, NodeId};
use crate::tree::fan::fence_of;
use bytes::Bytes;

/// See the module.
pub(super) struct Subtree {
    pub id: NodeId,
    pub level: u8,
    /// The smallest key that may be below the node, which is its separator in its parent.
    pub low: Bytes,
    /// The smallest key beyond those below it; `None` at the right end of the tree.
    pub fence: Option<Bytes>,
}

/// How many of the keys below a node are in a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Overlap {
    None,
    Part,
    Whole,
}

impl Subtree {
    /// The whole tree.
    pub fn of_root(id: NodeId, level: u8) -> Self {
        Self { id, level, low: Bytes::new(), fence: None }
    }

    pub fn is_whole_tree(&self) -> bool {
        self.low.is_empty() && self.fence.is_none()
    }

    /// The children of the node, in order.
    pub fn children(&self, node: &Node) -> Vec<Self> {
        let child = |index| Self {
            id: node.child(index),
            level: self.level - 1,
            low: if index == 0 { self.low.clone() } else { node.key_bytes(index) },
            fence: fence_of(node, index, self.fence.as_ref()),
        };
        (0..node.count()).map(child).collect()
    }

    pub fn overlap(&self, range: KeyRange<'_>) -> Overlap {
        let (low, fence) = (&self.low[..], self.fence.as_deref());
        let begins_before_end = range.to.is_none_or(|to| low < to);
        let ends_behind_start = fence.is_none_or(|fence| range.from < fence);
        if !begins_before_end || !ends_behind_start {
            return Overlap::None;
        }
        let is_whole = range.from <= low && range.to.is_none_or(|to| fence.is_some_and(|fence| fence <= to));
        if is_whole { Overlap::Whole } else { Overlap::Part }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::KeyspaceId;

    #[test]
    fn a_range_has_all_keys_below_a_node_or_some_or_none() {
        let overlap = |low: &'static [u8], fence: Option<&'static [u8]>, from: &[u8], to: Option<&[u8]>| {
            let (low, fence) = (Bytes::from_static(low), fence.map(Bytes::from_static));
            let range = KeyRange { keyspace: KeyspaceId(1), from, to };
            Subtree { id: NodeId(1), level: 1, low, fence }.overlap(range)
        };
        assert_eq!(overlap(b"c", Some(b"f"), b"c", Some(b"f")), Overlap::Whole);
        assert_eq!(overlap(b"c", Some(b"f"), b"", None), Overlap::Whole);
        assert_eq!(overlap(b"c", Some(b"f"), b"c\0", Some(b"f")), Overlap::Part);
        assert_eq!(overlap(b"c", Some(b"f"), b"c", Some(b"e")), Overlap::Part);
        assert_eq!(overlap(b"c", Some(b"f"), b"f", Some(b"g")), Overlap::None);
        assert_eq!(overlap(b"c", Some(b"f"), b"a", Some(b"c")), Overlap::None);
        assert_eq!(overlap(b"c", None, b"c", Some(b"z")), Overlap::Part, "there may be greater keys");
        assert_eq!(overlap(b"c", None, b"b", None), Overlap::Whole);
        assert_eq!(overlap(b"", Some(b"c"), b"a", Some(b"z")), Overlap::Part, "there may be smaller keys");
    }
}
