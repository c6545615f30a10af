//! A B+-tree over nodes that are changed by logging: one update at a time. A full node is split before it takes one more, and
//! the split is on flash before the parent hears of it; a node that has become too empty is merged with a neighbour of the same
//! parent if the scheme allows it, else it stays as it is, however empty.
//!
//! Invariants, between operations:
//! 1. No node holds more than fits.
//! 2. An inner node's children are the nodes of the level below that begin within its keys, in order; the first begins where
//!    it does.

use crate::page::node::{Inner, Node};
use crate::page::node_change::Change;
use crate::page::{Key, NodeId, Value};
use crate::store::Root;
use crate::update::logged_nodes::{LoggedNodes, Scheme};
use crate::update::single::Events;
use crate::update::split_merge::join;
use crate::{Error, Result};
use std::ops::Range;
use std::sync::Arc;

/// The leaf that a key belongs to, and the inner nodes above it, from the root on.
fn descend<S: Scheme>(nodes: &mut LoggedNodes<S>, key: Key) -> Result<(Vec<NodeId>, NodeId)> {
    reach(nodes, key, 0)
}

/// The node of a level that a key belongs to, and the inner nodes above it, from the root on.
pub(crate) fn reach<S: Scheme>(
    nodes: &mut LoggedNodes<S>,
    key: Key,
    to: u8,
) -> Result<(Vec<NodeId>, NodeId)> {
    let Root { mut id, level } = nodes.root;
    let mut path = Vec::with_capacity(usize::from(level));
    for level in (to + 1..=level).rev() {
        path.push(id);
        id = child(nodes, id, level, key)?.0;
    }
    Ok((path, id))
}

/// The child of an inner node that a key belongs to, and which one it is.
fn child<S: Scheme>(nodes: &mut LoggedNodes<S>, id: NodeId, level: u8, key: Key) -> Result<(NodeId, usize)> {
    let node = nodes.node(id)?;
    let inner = node.as_inner()?;
    if inner.level != level {
        return Err(Error::broken(format!("{id} is of level {}, not {level}", inner.level)));
    }
    let at = inner.child_of(key);
    Ok((inner.children[at], at))
}

/// The value of a key.
pub(crate) fn search<S: Scheme>(nodes: &mut LoggedNodes<S>, key: Key) -> Result<Option<Value>> {
    let (_, id) = descend(nodes, key)?;
    Ok(nodes.node(id)?.as_leaf()?.get(key))
}

/// All records with keys in `range`, in order.
pub(crate) fn range<S: Scheme>(nodes: &mut LoggedNodes<S>, range: Range<Key>) -> Result<Vec<(Key, Value)>> {
    let mut found = Vec::new();
    if !range.is_empty() {
        let Root { id, level } = nodes.root;
        visit(nodes, id, level, &range, &mut found)?;
    }
    Ok(found)
}

fn visit<S: Scheme>(
    nodes: &mut LoggedNodes<S>,
    id: NodeId,
    level: u8,
    range: &Range<Key>,
    found: &mut Vec<(Key, Value)>,
) -> Result<()> {
    let node = nodes.node(id)?;
    if level == 0 {
        let entries = &node.as_leaf()?.entries;
        let start = entries.partition_point(|entry| entry.0 < range.start);
        let end = entries.partition_point(|entry| entry.0 < range.end);
        found.extend_from_slice(&entries[start..end]);
        return Ok(());
    }
    let inner = node.as_inner()?;
    let children = inner.child_of(range.start)..=inner.child_of(range.end - 1);
    inner.children[children].iter().try_for_each(|child| visit(nodes, *child, level - 1, range, found))
}

/// Whether a node would hold too much after a change.
fn too_much<S: Scheme>(nodes: &mut LoggedNodes<S>, id: NodeId, change: Change) -> Result<bool> {
    let mut node = nodes.node(id)?;
    let (shape, count) = (nodes.shape, node.count());
    if count < shape.max(&node) && matches!(*node, Node::Leaf(_)) {
        return Ok(false);
    }
    change.apply(Arc::make_mut(&mut node))?;
    Ok(shape.overflows(&node))
}

/// Sets the value of a key. The leaf that has it now.
pub(crate) fn insert<S: Scheme>(
    nodes: &mut LoggedNodes<S>,
    key: Key,
    value: Value,
    events: &mut Events,
) -> Result<NodeId> {
    let (mut path, leaf) = descend(nodes, key)?;
    put(nodes, &mut path, leaf, key, value, events)
}

/// Puts something into a node, which is split first if it is full; then a fence into its parent, and so on. The node that
/// has it now.
pub(crate) fn put<S: Scheme>(
    nodes: &mut LoggedNodes<S>,
    path: &mut Vec<NodeId>,
    id: NodeId,
    key: Key,
    word: u64,
    events: &mut Events,
) -> Result<NodeId> {
    let change = Change::Put(key, word);
    let mut target = id;
    if too_much(nodes, id, change)? {
        events.splits += 1;
        let (fence, right) = S::split(nodes, id)?;
        let splits = events.splits;
        match path.pop() {
            Some(parent) => {
                put(nodes, path, parent, fence, right.0, events)?;
            }
            None => grow(nodes, id, fence, right)?,
        }
        nodes.details.double_splits += u64::from(events.splits > splits);
        if key >= fence {
            target = right;
        }
    }
    nodes.change(target, change)?;
    Ok(target)
}

/// The root was split: there is a new one above it.
fn grow<S: Scheme>(nodes: &mut LoggedNodes<S>, left: NodeId, fence: Key, right: NodeId) -> Result<()> {
    let id = nodes.allocate()?;
    let level = nodes.root.level + 1;
    let root = Node::Inner(Inner { level, fences: vec![fence], children: vec![left, right] });
    S::plant(nodes, id, 0, root)?;
    nodes.root = Root { id, level };
    Ok(())
}

/// Removes a key. The leaf that had it.
pub(crate) fn delete<S: Scheme>(
    nodes: &mut LoggedNodes<S>,
    key: Key,
    events: &mut Events,
) -> Result<Option<NodeId>> {
    let (path, leaf) = descend(nodes, key)?;
    if nodes.node(leaf)?.as_leaf()?.get(key).is_none() {
        return Ok(None);
    }
    nodes.change(leaf, Change::Remove(key))?;
    mend(nodes, path, leaf, key, events)?;
    Ok(Some(leaf))
}

/// Merges a node that is too empty with a neighbour, and its parent, if that has become too empty by it, and so on.
fn mend<S: Scheme>(
    nodes: &mut LoggedNodes<S>,
    mut path: Vec<NodeId>,
    mut id: NodeId,
    key: Key,
    events: &mut Events,
) -> Result<()> {
    while let Some(parent) = path.pop() {
        let node = nodes.node(id)?;
        if !nodes.shape.underflows(&node) {
            return Ok(());
        }
        let (_, at) = child(nodes, parent, node.level() + 1, key)?;
        let above = nodes.node(parent)?;
        let inner = above.as_inner()?;
        let mut merged = false;
        // The left neighbour, then the right one.
        for left_at in [at.checked_sub(1), Some(at)].into_iter().flatten() {
            let (Some(fence), [left, right]) =
                (inner.fences.get(left_at), inner.children.get(left_at..left_at + 2).unwrap_or(&[]))
            else {
                continue;
            };
            if !S::may_merge(nodes, *left, *right)? {
                continue;
            }
            let halves = (nodes.node(*left)?, nodes.node(*right)?);
            let joined = join(halves.0.as_ref().clone(), *fence, halves.1.as_ref().clone());
            if nodes.shape.overflows(&joined) {
                continue;
            }
            events.merges += 1;
            S::merge(nodes, *left, *fence, *right, joined)?;
            nodes.change(parent, Change::Remove(*fence))?;
            merged = true;
            break;
        }
        if !merged {
            return Ok(());
        }
        id = parent;
    }
    lower(nodes)
}

/// A root with one child gives way to it.
pub(crate) fn lower<S: Scheme>(nodes: &mut LoggedNodes<S>) -> Result<()> {
    while nodes.root.level > 0 {
        let root = nodes.node(nodes.root.id)?;
        let inner = root.as_inner()?;
        if inner.children.len() > 1 {
            break;
        }
        let old = nodes.root.id;
        nodes.root = Root { id: inner.children[0], level: inner.level - 1 };
        nodes.details.roots_dropped += 1;
        S::uproot(nodes, old)?;
    }
    Ok(())
}
