//! One update at a time: descend, change the leaf, and mend upwards what has become too full or too empty.
//!
//! Invariants, between operations:
//! 1. Every node but the root is at least half full, none is too full; the root of a tree with inner nodes has two
//!    children or more.
//! 2. Leaves are chained by `next` in order of key.

use crate::page::node::{Inner, Leaf, Node};
use crate::page::{Key, NodeId, Value};
use crate::sound::Sound;
use crate::store::nodes::Nodes;
use crate::store::{NodeStore, Root};
use crate::update::split_merge::{Mended, Pair, mend, split};
use crate::{Error, Result};
use std::sync::Arc;

/// How often what happened.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Events {
    pub splits: u64,
    pub merges: u64,
    pub redistributions: u64,
}

/// An inner node on the way down, and which child the way goes on to.
struct Step {
    id: NodeId,
    node: Arc<Node>,
    child: usize,
}

/// Makes the root of an empty tree.
pub(crate) fn plant(store: &mut impl NodeStore) -> Result<()> {
    let id = store.allocate();
    store.write(id, Node::Leaf(Leaf::default()))?;
    store.set_root(Root { id, level: 0 });
    store.settle()
}

/// The leaf that holds a key, and the way to it.
fn descend(store: &impl NodeStore, key: Key) -> Result<Way> {
    let root = store.root();
    let mut path = Vec::with_capacity(usize::from(root.level));
    let (mut id, mut level) = (root.id, root.level);
    let mut node = store.read(id)?;
    while level > 0 {
        let inner = node.as_inner()?;
        if inner.level != level {
            return Err(Error::broken(format!("{id} is of level {}, not {level}", inner.level)));
        }
        let child = inner.child_of(key);
        let below = inner.children[child];
        path.push(Step { id, node, child });
        id = below;
        node = store.read(id)?;
        level -= 1;
    }
    Ok((path, id, node))
}

/// The value of a key.
pub(crate) fn search(store: &impl Nodes, key: Key) -> Result<Option<Value>> {
    let root = store.root();
    let mut node = store.read(root.id)?;
    for _ in 0..root.level {
        let inner = node.as_inner()?;
        node = store.read(inner.children[inner.child_of(key)])?;
    }
    Ok(node.as_leaf()?.get(key))
}

/// Where a key belongs, as [`descend`] has found it.
type Way = (Vec<Step>, NodeId, Arc<Node>);

/// Sets the value of a key, unless something failed earlier.
pub(crate) fn insert(
    store: &mut impl NodeStore,
    sound: &Sound,
    key: Key,
    value: Value,
    events: &mut Events,
) -> Result<()> {
    sound.check()?;
    let way = descend(store, key)?;
    sound.after(insert_at(store, way, key, value, events))
}

fn insert_at(
    store: &mut impl NodeStore,
    (mut path, id, node): Way,
    key: Key,
    value: Value,
    events: &mut Events,
) -> Result<()> {
    let mut leaf = node.as_leaf()?.clone();
    leaf.insert(key, value);
    let mut grown = (id, Node::Leaf(leaf));
    // Splits go up as long as they make the parent too full.
    while store.shape().overflows(&grown.1) {
        events.splits += 1;
        let Pair { mut left, fence, right } = split(grown.1);
        let right_id = store.allocate();
        if let Node::Leaf(leaf) = &mut left {
            leaf.next = Some(right_id);
        }
        store.write(right_id, right)?;
        let level = left.level() + 1;
        store.write(grown.0, left)?;
        let parent = match path.pop() {
            Some(Step { id, node, child }) => {
                let mut inner = node.as_inner()?.clone();
                inner.fences.insert(child, fence);
                inner.children.insert(child + 1, right_id);
                (id, inner)
            }
            None => {
                let id = store.allocate();
                store.set_root(Root { id, level });
                (id, Inner { level, fences: vec![fence], children: vec![grown.0, right_id] })
            }
        };
        grown = (parent.0, Node::Inner(parent.1));
    }
    store.write(grown.0, grown.1)?;
    store.settle()
}

/// Removes a key, unless something failed earlier.
pub(crate) fn delete(store: &mut impl NodeStore, sound: &Sound, key: Key, events: &mut Events) -> Result<()> {
    sound.check()?;
    let way = descend(store, key)?;
    sound.after(delete_at(store, way, key, events))
}

fn delete_at(
    store: &mut impl NodeStore,
    (mut path, id, node): Way,
    key: Key,
    events: &mut Events,
) -> Result<()> {
    let mut leaf = node.as_leaf()?.clone();
    if !leaf.remove(key) {
        return Ok(());
    }
    let mut shrunk = (id, Node::Leaf(leaf));
    while store.shape().underflows(&shrunk.1) {
        let Some(step) = path.pop() else { break };
        let mut parent = step.node.as_inner()?.clone();
        // The left sibling, or the right one of the first child.
        let left_at = step.child.saturating_sub(1);
        let is_right = left_at != step.child;
        let sibling_id = parent.children[if is_right { left_at } else { left_at + 1 }];
        let sibling = store.read(sibling_id)?.as_ref().clone();
        let (left, right) = if is_right { (sibling, shrunk.1) } else { (shrunk.1, sibling) };
        let (left_id, right_id) = if is_right { (sibling_id, shrunk.0) } else { (shrunk.0, sibling_id) };
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
                parent.fences[left_at] = fence;
            }
        }
        shrunk = (step.id, Node::Inner(parent));
    }
    match &shrunk.1 {
        // A root with one child gives way to it.
        Node::Inner(inner) if path.is_empty() && inner.children.len() == 1 => {
            store.set_root(Root { id: inner.children[0], level: inner.level - 1 });
            store.free(shrunk.0)?;
        }
        _ => store.write(shrunk.0, shrunk.1)?,
    }
    store.settle()
}
