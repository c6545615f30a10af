//! Decides which children of an inner node a sorted batch goes to, and which leaves of a block are rewritten
//! for it.
//!
//! Invariants:
//! 1. Each key of the batch goes to one child, and children come in key order.
//! 2. The leaves that a batch will rewrite are counted by the same rule by which they are rewritten.

use crate::storage::node::Node;
use bytes::Bytes;
use mpsearch::fan_out;
use std::ops::Range;

/// If changes go to at least this percentage of a block's leaves, the leaves between them are rewritten as
/// well. Left in place, they would be scattered over segments that are dead otherwise: the collector would
/// have to copy them, and until then scans and the next cleansing would read the dead space between them.
const WHOLE: usize = 40;

/// Whether `changed` leaves of `all` count as all of them.
pub(crate) fn is_most(changed: usize, all: usize) -> bool {
    changed * 100 >= all * WHOLE
}

/// Divides the keys of a sorted batch among a node's children, and calls `emit` for each child that gets any.
pub(crate) fn divide<'k>(
    node: &Node,
    keys: Range<usize>,
    key: impl Fn(usize) -> &'k [u8],
    emit: impl FnMut(usize, Range<usize>),
) {
    let above = |child: usize| (child + 1 < node.count()).then(|| node.key(child + 1));
    fan_out::<[u8], _, _>(keys, key, |key| node.child_for(key), above, emit);
}

/// The smallest key beyond a child of a node whose own fence is `fence`; `None` at the right end of the tree.
pub(crate) fn fence_of(node: &Node, child: usize, fence: Option<&Bytes>) -> Option<Bytes> {
    if child + 1 < node.count() { Some(node.key_bytes(child + 1)) } else { fence.cloned() }
}

/// The children that the keys of a batch go to, in order, each with its keys.
pub(crate) struct Touched {
    children: Vec<(usize, Range<usize>)>,
    /// Whether the children between them are rewritten as well.
    is_whole: bool,
}

impl Touched {
    /// From the keys of a sorted batch. Only leaves are rewritten without changes; inner nodes only if their
    /// children change.
    pub fn by<'k>(node: &Node, keys: Range<usize>, key: impl Fn(usize) -> &'k [u8]) -> Self {
        let mut children = Vec::new();
        divide(node, keys, key, |child, keys| children.push((child, keys)));
        let mut touched = Self { children, is_whole: false };
        touched.is_whole = node.level() == 1 && is_most(touched.children.len(), touched.span().len());
        touched
    }

    /// From the first touched child to behind the last.
    fn span(&self) -> Range<usize> {
        let (first, last) = (self.children.first(), self.children.last());
        first.zip(last).map_or(0..0, |((first, _), (last, _))| *first..last + 1)
    }

    /// All children below this index, from the first touched one on, are rewritten; 0 if some may be left
    /// out.
    pub fn taken_to(&self) -> usize {
        if self.is_whole { self.span().end } else { 0 }
    }

    /// The children that are rewritten, in order. A child that only lies between touched ones has no keys.
    pub fn rewritten(self) -> impl Iterator<Item = (usize, Range<usize>)> {
        let mut next = self.span().start;
        self.children.into_iter().flat_map(move |(child, keys)| {
            let untouched = if self.is_whole { next..child } else { child..child };
            let none = keys.start..keys.start;
            next = child + 1;
            untouched.map(move |child| (child, none.clone())).chain([(child, keys)])
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::KeyspaceId;
    use crate::storage::entries::Entries;
    use crate::storage::node::{Name, NodeId, encode};

    /// A node with children below 0, 10, 20, ...
    fn node(level: u8, children: u8) -> Node {
        let mut entries = Entries::default();
        for child in 0..children {
            let key = if child == 0 { vec![] } else { vec![child * 10] };
            entries.push(&key, &[&u64::from(child).to_le_bytes()]);
        }
        let mut bytes = Vec::new();
        let name = Name { id: NodeId(99), level, epoch: 1, keyspace: KeyspaceId(1) };
        encode(&mut bytes, name, &entries, usize::from(children));
        Node::decode(bytes.into()).unwrap()
    }

    fn rewritten(level: u8, keys: &[u8]) -> (usize, Vec<(usize, Range<usize>)>) {
        let touched = Touched::by(&node(level, 12), 0..keys.len(), |index| &keys[index..index + 1]);
        (touched.taken_to(), touched.rewritten().collect())
    }

    #[test]
    fn leaves_between_many_that_are_touched_are_rewritten_too() {
        // Two of five are forty percent.
        let whole = [(1, 0..2), (2, 2..2), (3, 2..2), (4, 2..2), (5, 2..3)];
        assert_eq!(rewritten(1, &[11, 12, 55]), (6, whole.to_vec()));
        // Two of six are less, and of inner nodes none is.
        assert_eq!(rewritten(1, &[11, 12, 65]), (0, vec![(1, 0..2), (6, 2..3)]));
        assert_eq!(rewritten(2, &[11, 12, 55]), (0, vec![(1, 0..2), (5, 2..3)]));
        assert_eq!(rewritten(1, &[]), (0, vec![]));
        assert_eq!(rewritten(1, &[115]), (12, vec![(11, 0..1)]));
    }

    #[test]
    fn the_last_child_ends_where_its_node_does() {
        let (node, fence) = (node(1, 3), Bytes::from_static(b"z"));
        assert_eq!(fence_of(&node, 1, Some(&fence)).as_deref(), Some(&[20][..]));
        assert_eq!(fence_of(&node, 2, Some(&fence)), Some(fence));
        assert_eq!(fence_of(&node, 2, None), None);
    }
}
