//! What becomes of a node that is too full or too empty. Pure: no I/O, no ids but those of leaves' neighbours.

use crate::page::Key;
use crate::page::node::{Inner, Leaf, Node, Shape};

/// Two nodes and the fence between them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pair {
    pub left: Node,
    pub fence: Key,
    pub right: Node,
}

/// Divides a node so that `left` children or records stay on the left (at least one on each side). The leaves' `next` is
/// left to the caller.
pub(crate) fn split_at(node: Node, left: usize) -> Pair {
    match node {
        Node::Leaf(mut leaf) => {
            let entries = leaf.entries.split_off(left);
            let fence = entries[0].0;
            let right = Leaf { entries, next: leaf.next };
            Pair { left: Node::Leaf(leaf), fence, right: Node::Leaf(right) }
        }
        Node::Inner(mut inner) => {
            let children = inner.children.split_off(left);
            let fences = inner.fences.split_off(left);
            let fence = inner.fences.pop().unwrap_or_default();
            let right = Inner { level: inner.level, fences, children };
            Pair { left: Node::Inner(inner), fence, right: Node::Inner(right) }
        }
    }
}

/// Divides a node in halves; the left one is the larger.
pub(crate) fn split(node: Node) -> Pair {
    let left = node.count().div_ceil(2);
    split_at(node, left)
}

/// Divides a node that has become too full by its entry `at` as if that had come after the division: into halves of what was
/// there before, one of which takes the entry.
pub(crate) fn halve(node: Node, at: usize) -> Pair {
    let half = node.count() / 2;
    let takes_more = node.count() % 2 == 1 && at <= half;
    split_at(node, half + usize::from(takes_more))
}

/// A node as one, if it holds at most `max`, else as several of equal size, and the fences between them. If it holds one too
/// many, and `at` says which came last, it is halved as before that came.
pub(crate) fn pieces(node: Node, max: usize, at: Option<usize>) -> (Vec<Node>, Vec<Key>) {
    if let Some(at) = at
        && node.count() == max + 1
    {
        let Pair { left, fence, right } = halve(node, at);
        return (vec![left, right], vec![fence]);
    }
    let count = node.count().div_ceil(max.max(1)).max(1);
    let (mut rest, mut nodes, mut fences) = (node, Vec::with_capacity(count), Vec::new());
    for left in (2..=count).rev() {
        let pair = split_at_count(rest, left);
        nodes.push(pair.left);
        fences.push(pair.fence);
        rest = pair.right;
    }
    nodes.push(rest);
    (nodes, fences)
}

/// Takes the first of `parts` equal parts off a node.
fn split_at_count(node: Node, parts: usize) -> Pair {
    let left = node.count().div_ceil(parts);
    split_at(node, left)
}

/// Two siblings as one node, of whatever size. The leaf's `next` is the right one's.
pub(crate) fn join(left: Node, fence: Key, right: Node) -> Node {
    match (left, right) {
        (Node::Leaf(mut left), Node::Leaf(right)) => {
            left.entries.extend(right.entries);
            left.next = right.next;
            Node::Leaf(left)
        }
        (Node::Inner(mut left), Node::Inner(right)) => {
            left.fences.push(fence);
            left.fences.extend(right.fences);
            left.children.extend(right.children);
            Node::Inner(left)
        }
        // Siblings are of one level: the walk of `check` says so, and nothing else makes them.
        (left, _) => left,
    }
}

/// What becomes of two siblings of which one is too empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Mended {
    Merged(Node),
    Redistributed(Pair),
}

/// Merges two siblings if they fit into one node, else divides what they hold evenly.
pub(crate) fn mend(left: Node, fence: Key, right: Node, shape: Shape) -> Mended {
    let joined = join(left, fence, right);
    if shape.overflows(&joined) { Mended::Redistributed(split(joined)) } else { Mended::Merged(joined) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::NodeId;

    fn leaf(keys: std::ops::Range<u64>) -> Node {
        Node::Leaf(Leaf { entries: keys.map(|key| (key, key)).collect(), next: None })
    }

    fn inner(children: std::ops::Range<u64>) -> Node {
        let fences = (children.start + 1..children.end).map(|child| child * 10).collect();
        Node::Inner(Inner { level: 1, fences, children: children.map(NodeId).collect() })
    }

    #[test]
    fn split_and_join_are_inverse() {
        for node in [leaf(0..9), leaf(0..2), inner(0..9), inner(3..5)] {
            let Pair { left, fence, right } = split(node.clone());
            assert!(left.count() - right.count() <= 1);
            assert_eq!(join(left, fence, right), node);
        }
        assert_eq!(split(leaf(0..9)).fence, 5);
        assert_eq!(split(inner(0..9)).fence, 50);
    }

    #[test]
    fn pieces_are_equal_or_the_halves_of_before() {
        let sizes = |node, max, at| {
            let (nodes, fences) = pieces(node, max, at);
            assert_eq!(fences.len() + 1, nodes.len());
            nodes.iter().map(Node::count).collect::<Vec<_>>()
        };
        assert_eq!(sizes(leaf(0..8), 8, None), [8]);
        assert_eq!(sizes(leaf(0..9), 8, None), [5, 4]);
        assert_eq!(sizes(leaf(0..9), 8, Some(8)), [4, 5], "the new one came behind the halves");
        assert_eq!(sizes(leaf(0..9), 8, Some(0)), [5, 4]);
        assert_eq!(sizes(inner(0..9), 8, Some(8)), [4, 5]);
        assert_eq!(sizes(leaf(0..17), 8, Some(3)), [6, 6, 5]);
        assert_eq!(sizes(inner(0..25), 8, None), [7, 6, 6, 6]);
    }

    #[test]
    fn siblings_merge_only_if_they_fit() {
        let shape = Shape { fanout: 8, records: 8 };
        assert_eq!(mend(leaf(0..3), 3, leaf(3..8), shape), Mended::Merged(leaf(0..8)));
        let Mended::Redistributed(pair) = mend(leaf(0..3), 3, leaf(3..11), shape) else {
            panic!("they do not fit")
        };
        assert_eq!((pair.left.count(), pair.fence, pair.right.count()), (6, 6, 5));
    }
}
