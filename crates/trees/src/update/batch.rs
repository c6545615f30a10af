//! Many updates of one leaf at a time: the leaf is written once, and divided into as many as it takes.
//!
//! Invariants, between batches, are those of single updates: see [`crate::update::single`].

use crate::page::node::{Inner, Leaf, Node, Shape};
use crate::page::{Change, Key, NodeId};
use crate::read::reach::{Reach, Step};
use crate::store::{NodeStore, Root};
use crate::update::single::Events;
use crate::update::split_merge::{Mended, Pair, mend, split_at};
use crate::{Error, Result};
use std::cmp::Ordering;

/// Is told when keys move from node to node, by whoever keeps something for a node besides the node itself.
pub(crate) trait Follow {
    /// The keys from `fence` on have moved from `left` to `right`, which was empty.
    fn divided(&mut self, left: NodeId, fence: Key, right: NodeId) -> Result<()>;

    /// All keys of `right` have moved to `left`.
    fn joined(&mut self, left: NodeId, right: NodeId) -> Result<()>;

    /// The root `from` gave way to its only child.
    fn replaced(&mut self, from: NodeId, to: NodeId) -> Result<()>;
}

/// Nobody is.
pub(crate) struct Nothing;

impl Follow for Nothing {
    fn divided(&mut self, _: NodeId, _: Key, _: NodeId) -> Result<()> {
        Ok(())
    }

    fn joined(&mut self, _: NodeId, _: NodeId) -> Result<()> {
        Ok(())
    }

    fn replaced(&mut self, _: NodeId, _: NodeId) -> Result<()> {
        Ok(())
    }
}

/// What `changes` make of `entries`; both ascend.
pub(crate) fn merged(entries: &[(Key, u64)], changes: &[(Key, Change)]) -> Vec<(Key, u64)> {
    let mut found = Vec::with_capacity(entries.len() + changes.len());
    let (mut entries, mut changes) = (entries.iter().peekable(), changes.iter().peekable());
    loop {
        let order = match (entries.peek(), changes.peek()) {
            (None, None) => return found,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(entry), Some(change)) => entry.0.cmp(&change.0),
        };
        if order != Ordering::Greater
            && let Some(entry) = entries.next()
            && order == Ordering::Less
        {
            found.push(*entry);
        }
        if order != Ordering::Less
            && let Some((key, change)) = changes.next()
        {
            found.extend(change.value().map(|value| (*key, value)));
        }
    }
}

/// Divides a node that is too full evenly into as few as hold it. The first keeps its place; the others come with the
/// fences below them. Leaves' `next` is left to the caller.
fn divide(node: Node, shape: Shape) -> (Node, Vec<(Key, Node)>) {
    let mut pieces = node.count().div_ceil(shape.max(&node));
    let (mut first, mut rest) = (None, Vec::with_capacity(pieces));
    let (mut remaining, mut below) = (node, 0);
    while pieces > 1 {
        let count = remaining.count().div_ceil(pieces);
        let Pair { left, fence, right } = split_at(remaining, count);
        match first {
            None => first = Some(left),
            Some(_) => rest.push((below, left)),
        }
        (remaining, below) = (right, fence);
        pieces -= 1;
    }
    match first {
        None => (remaining, rest),
        Some(first) => {
            rest.push((below, remaining));
            (first, rest)
        }
    }
}

/// Applies changes, ascending and all within the reach, to the leaf that was reached. Whether that changed anything. The caller
/// has read it, so that what fails from here on may have changed something.
pub(crate) fn update_leaf(
    store: &mut impl NodeStore,
    reach: Reach,
    leaf: &Node,
    changes: &[(Key, Change)],
    follow: &mut impl Follow,
    events: &mut Events,
) -> Result<bool> {
    let Reach { mut path, id, range } = reach;
    debug_assert!(changes.iter().all(|(key, _)| range.contains(*key)));
    let old = leaf.as_leaf()?;
    let entries = merged(&old.entries, changes);
    if entries == old.entries {
        return Ok(false);
    }
    let mut changed = (id, Node::Leaf(Leaf { entries, next: old.next }));
    let shape = store.shape();
    loop {
        if shape.overflows(&changed.1) {
            events.splits += 1;
            changed = grow(store, path.pop(), changed, follow)?;
        } else if shape.underflows(&changed.1)
            && let Some(step) = path.pop()
        {
            changed = shrink(store, step, changed, follow, events)?;
        } else {
            break;
        }
    }
    match &changed.1 {
        // A root with one child gives way to it.
        Node::Inner(inner) if path.is_empty() && inner.children.len() == 1 => {
            let child = inner.children[0];
            store.set_root(Root { id: child, level: inner.level - 1 });
            store.free(changed.0)?;
            follow.replaced(changed.0, child)?;
        }
        _ => store.write(changed.0, changed.1)?,
    }
    store.settle()?;
    Ok(true)
}

/// Divides a node that is too full; answers with its parent, changed but not written.
fn grow(
    store: &mut impl NodeStore,
    parent: Option<Step>,
    (id, node): (NodeId, Node),
    follow: &mut impl Follow,
) -> Result<(NodeId, Node)> {
    let level = node.level() + 1;
    let (mut first, rest) = divide(node, store.shape());
    let ids: Vec<NodeId> = rest.iter().map(|_| store.allocate()).collect();
    let mut left = id;
    let mut fences = Vec::with_capacity(rest.len());
    if let (Node::Leaf(leaf), Some(next)) = (&mut first, ids.first()) {
        leaf.next = Some(*next);
    }
    for (at, (fence, mut piece)) in rest.into_iter().enumerate() {
        if let (Node::Leaf(leaf), Some(next)) = (&mut piece, ids.get(at + 1)) {
            leaf.next = Some(*next);
        }
        store.write(ids[at], piece)?;
        follow.divided(left, fence, ids[at])?;
        fences.push(fence);
        left = ids[at];
    }
    store.write(id, first)?;
    Ok(match parent {
        Some(Step { id, node, child }) => {
            let mut inner = node.as_inner()?.clone();
            inner.fences.splice(child..child, fences);
            inner.children.splice(child + 1..child + 1, ids);
            (id, Node::Inner(inner))
        }
        None => {
            let root = store.allocate();
            store.set_root(Root { id: root, level });
            let children = std::iter::once(id).chain(ids).collect();
            (root, Node::Inner(Inner { level, fences, children }))
        }
    })
}

/// Merges a node that is too empty with a sibling, or takes from it; answers with the parent, changed but not written.
fn shrink(
    store: &mut impl NodeStore,
    step: Step,
    (id, node): (NodeId, Node),
    follow: &mut impl Follow,
    events: &mut Events,
) -> Result<(NodeId, Node)> {
    let mut parent = step.node.as_inner()?.clone();
    if parent.children.len() < 2 {
        return Err(Error::broken(format!("{} has one child", step.id)));
    }
    // The left sibling, or the right one of the first child.
    let left_at = step.child.saturating_sub(1);
    let is_right = left_at != step.child;
    let sibling_id = parent.children[if is_right { left_at } else { left_at + 1 }];
    let sibling = store.read(sibling_id)?.as_ref().clone();
    let (left, right) = if is_right { (sibling, node) } else { (node, sibling) };
    let (left_id, right_id) = if is_right { (sibling_id, id) } else { (id, sibling_id) };
    follow.joined(left_id, right_id)?;
    match mend(left, parent.fences[left_at], right, store.shape()) {
        Mended::Merged(merged) => {
            events.merges += 1;
            store.write(left_id, merged)?;
            store.free(right_id)?;
            parent.fences.remove(left_at);
            parent.children.remove(left_at + 1);
        }
        Mended::Redistributed(Pair { mut left, fence, right }) => {
            events.redistributions += 1;
            if let Node::Leaf(leaf) = &mut left {
                leaf.next = Some(right_id);
            }
            store.write(left_id, left)?;
            store.write(right_id, right)?;
            follow.divided(left_id, fence, right_id)?;
            parent.fences[left_at] = fence;
        }
    }
    Ok((step.id, Node::Inner(parent)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_merged() {
        let entries = [(1, 10), (3, 30), (5, 50)];
        let changes = [
            (0, Change::Remove),
            (1, Change::Put(11)),
            (2, Change::Put(20)),
            (5, Change::Remove),
            (6, Change::Put(60)),
        ];
        assert_eq!(merged(&entries, &changes), [(1, 11), (2, 20), (3, 30), (6, 60)]);
        assert_eq!(merged(&entries, &[]), entries);
    }

    #[test]
    fn a_node_is_divided_into_as_few_as_hold_it_and_none_is_poor() {
        let shape = Shape { fanout: 7, records: 7 };
        for count in 8..60u64 {
            let leaf = Leaf { entries: (0..count).map(|key| (key, key)).collect(), next: None };
            let (first, rest) = divide(Node::Leaf(leaf), shape);
            assert_eq!(rest.len() as u64 + 1, count.div_ceil(7));
            let mut keys = 0;
            for (fence, node) in std::iter::once((0, first)).chain(rest) {
                assert!(!shape.overflows(&node) && !shape.underflows(&node), "{count}");
                let Node::Leaf(leaf) = node else { panic!("a leaf") };
                assert_eq!((leaf.entries[0].0, fence), (keys, keys));
                keys += leaf.entries.len() as u64;
            }
            assert_eq!(keys, count);
        }
    }
}
