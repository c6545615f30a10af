//! Nodes as index units: the units that make one node of another, and how they are applied. Pure.
//!
//! Invariant: applying what [`units_between`] tells to the old node gives the new one; what [`image`] tells makes the node
//! out of nothing.

use crate::page::NodeId;
use crate::page::node::{Inner, Leaf, Node};
use crate::page::unit_page::{Unit, What};
use std::cmp::Ordering;

/// Units that a node of so many keys or children takes at most.
pub(crate) fn image_max(count: usize) -> usize {
    // Begin, and the next leaf or nothing.
    count + 2
}

/// The units that make `node` out of nothing.
pub(crate) fn image(id: NodeId, node: &Node) -> Vec<Unit> {
    let begin = Unit { node: id, key: 0, what: What::Begin(node.level()) };
    let empty = match node {
        Node::Leaf(_) => Node::Leaf(Leaf::default()),
        Node::Inner(inner) => {
            Node::Inner(Inner { level: inner.level, fences: Vec::new(), children: Vec::new() })
        }
    };
    let mut units = vec![begin];
    units.extend(units_between(id, &empty, node));
    units
}

/// The units that make `new` of `old`, which is of the same level.
pub(crate) fn units_between(id: NodeId, old: &Node, new: &Node) -> Vec<Unit> {
    let mut units = Vec::new();
    let mut push = |key, what| units.push(Unit { node: id, key, what });
    match (old, new) {
        (Node::Leaf(old), Node::Leaf(new)) => {
            if old.next != new.next {
                push(0, What::Next(new.next));
            }
            for_each_difference(&old.entries, &new.entries, |key, value| {
                push(key, value.map_or(What::Remove, What::Put));
            });
        }
        (Node::Inner(old), Node::Inner(new)) => {
            if let Some(first) = new.children.first()
                && old.children.first() != Some(first)
            {
                push(0, What::First(*first));
            }
            let pairs = |inner: &Inner| -> Vec<_> {
                inner.fences.iter().copied().zip(inner.children.iter().skip(1).copied()).collect()
            };
            for_each_difference(&pairs(old), &pairs(new), |fence, child| {
                push(fence, child.map_or(What::RemoveChild, What::Child));
            });
        }
        // A node keeps its level as long as it lives.
        _ => units = image(id, new),
    }
    units
}

/// What becomes of each key whose word differs in two sorted lists.
fn for_each_difference<T: Copy + PartialEq>(
    old: &[(u64, T)],
    new: &[(u64, T)],
    mut tell: impl FnMut(u64, Option<T>),
) {
    let (mut old, mut new) = (old.iter().peekable(), new.iter().peekable());
    loop {
        match (old.peek(), new.peek()) {
            (None, None) => return,
            (Some(was), Some(is)) => match was.0.cmp(&is.0) {
                Ordering::Less => {
                    tell(was.0, None);
                    old.next();
                }
                Ordering::Greater => {
                    tell(is.0, Some(is.1));
                    new.next();
                }
                Ordering::Equal => {
                    if was.1 != is.1 {
                        tell(is.0, Some(is.1));
                    }
                    old.next();
                    new.next();
                }
            },
            (Some(was), None) => {
                tell(was.0, None);
                old.next();
            }
            (None, Some(is)) => {
                tell(is.0, Some(is.1));
                new.next();
            }
        }
    }
}

/// Applies a unit to its node, which is not there before its first. False if that makes no sense.
pub(crate) fn apply(node: &mut Option<Node>, unit: &Unit) -> bool {
    match (unit.what, node.as_mut()) {
        (What::Begin(0), _) => *node = Some(Node::Leaf(Leaf::default())),
        (What::Begin(level), _) => {
            *node = Some(Node::Inner(Inner { level, fences: Vec::new(), children: Vec::new() }));
        }
        (What::Put(value), Some(Node::Leaf(leaf))) => {
            leaf.insert(unit.key, value);
        }
        (What::Remove, Some(Node::Leaf(leaf))) => {
            leaf.remove(unit.key);
        }
        (What::Next(next), Some(Node::Leaf(leaf))) => leaf.next = next,
        (What::First(child), Some(Node::Inner(inner))) => match inner.children.first_mut() {
            Some(first) => *first = child,
            None => inner.children.push(child),
        },
        (What::Child(child), Some(Node::Inner(inner))) if !inner.children.is_empty() => {
            match inner.fences.binary_search(&unit.key) {
                Ok(at) => inner.children[at + 1] = child,
                Err(at) => {
                    inner.fences.insert(at, unit.key);
                    inner.children.insert(at + 1, child);
                }
            }
        }
        (What::RemoveChild, Some(Node::Inner(inner))) => {
            if let Ok(at) = inner.fences.binary_search(&unit.key) {
                inner.fences.remove(at);
                inner.children.remove(at + 1);
            }
        }
        _ => return false,
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn leaf(entries: BTreeMap<u64, u64>, next: u64) -> Node {
        let next = Some(NodeId(next)).filter(|next| next.0 != 0);
        Node::Leaf(Leaf { entries: entries.into_iter().collect(), next })
    }

    fn inner(first: u64, children: BTreeMap<u64, u64>) -> Node {
        let fences = children.keys().copied().collect();
        let children = std::iter::once(first).chain(children.into_values()).map(NodeId).collect();
        Node::Inner(Inner { level: 3, fences, children })
    }

    fn applied(mut node: Option<Node>, units: &[Unit]) -> Option<Node> {
        assert!(units.iter().all(|unit| apply(&mut node, unit)));
        node
    }

    type Entries = BTreeMap<u64, u64>;

    fn entries() -> impl Strategy<Value = Entries> {
        prop::collection::btree_map(0..20u64, 0..3u64, 0..15)
    }

    proptest! {
        #[test]
        fn units_make_one_of_the_other(one in entries(), two in entries(), links in (0..3u64, 0..3u64)) {
            for (old, new) in [
                (leaf(one.clone(), links.0), leaf(two.clone(), links.1)),
                (inner(links.0, one.clone()), inner(links.1, two.clone())),
            ] {
                let made = image(NodeId(4), &old);
                prop_assert!(made.len() <= image_max(old.count()));
                prop_assert_eq!(applied(None, &made), Some(old.clone()));
                let units = units_between(NodeId(4), &old, &new);
                prop_assert_eq!(applied(Some(old), &units), Some(new));
            }
        }
    }

    #[test]
    fn what_makes_no_sense_is_told() {
        let unit = |what| Unit { node: NodeId(1), key: 3, what };
        assert!(!apply(&mut None, &unit(What::Put(1))), "it did not begin");
        assert!(!apply(&mut Some(inner(1, BTreeMap::new())), &unit(What::Remove)));
        assert!(!apply(&mut Some(leaf(BTreeMap::new(), 0)), &unit(What::First(NodeId(1)))));
        let mut empty = None;
        assert!(apply(&mut empty, &unit(What::Begin(1))));
        assert!(!apply(&mut empty, &unit(What::Child(NodeId(1)))), "a child before the first");
    }
}
