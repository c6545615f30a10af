//! One update that rewrites nodes from the leaf upwards: each is replaced by one node or several, and its parent is told, as
//! long as that changes the parent. In a store whose ids are addresses it always does, up to the root (the wandering tree, the
//! µ-tree); in one whose ids stay, only splits and merges go up (the LSB-tree).
//!
//! Invariants, between operations:
//! 1. Every node but the root is at least half full, none is too full, as [`Nodes::limits`] says; a root with inner nodes has
//!    two children or more. Where leaves have logs, a leaf may be less than half full: if all its siblings together had too
//!    little to give when it was written.
//! 2. A store is told of children before their parents, and of the root last.

use crate::page::node::{Inner, Leaf, Node};
use crate::page::{Key, NodeId, Value};
use crate::store::Root;
use crate::store::nodes::{Nodes, Rewrite};
use crate::update::single::Events;
use crate::update::split_merge::{join, pieces};
use crate::{Error, Result};
use std::sync::Arc;

/// Most nodes that one becomes, on the way up.
const PIECES_MAX: usize = 4;

/// An inner node on the way down, and which child the way goes on to.
pub(crate) struct Step {
    pub id: NodeId,
    pub node: Arc<Node>,
    pub child: usize,
}

/// How full nodes are divided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Split {
    /// Evenly, what has just come included.
    #[default]
    Even,
    /// In halves of what was there before, one of which takes what has come: of 128 and one, 64 and 65.
    Halve,
}

/// The way to the node of a level that a key belongs to: the inner nodes above it, and its id.
pub(crate) fn way(store: &impl Nodes, key: Key, level: u8) -> Result<(Vec<Step>, NodeId)> {
    let root = store.root();
    let (mut path, mut id) = (Vec::with_capacity(usize::from(root.level)), root.id);
    for above in (level + 1..=root.level).rev() {
        let node = store.read(id)?;
        let inner = node.as_inner()?;
        if inner.level != above {
            return Err(Error::broken(format!("{id} is of level {}, not {above}", inner.level)));
        }
        let child = inner.child_of(key);
        let below = inner.children[child];
        path.push(Step { id, node, child });
        id = below;
    }
    Ok((path, id))
}

/// Sets the value of a key.
pub(crate) fn insert(
    store: &mut impl Rewrite,
    key: Key,
    value: Value,
    split: Split,
    events: &mut Events,
) -> Result<()> {
    let (path, id) = way(store, key, 0)?;
    let mut leaf = store.read(id)?.as_leaf()?.clone();
    let at = leaf.entries.partition_point(|entry| entry.0 < key);
    leaf.insert(key, value);
    rewrite(store, path, id, Node::Leaf(leaf), (split == Split::Halve).then_some(at), events)
}

/// Removes a key; whether it was there.
pub(crate) fn delete(store: &mut impl Rewrite, key: Key, events: &mut Events) -> Result<bool> {
    let (path, id) = way(store, key, 0)?;
    let mut leaf: Leaf = store.read(id)?.as_leaf()?.clone();
    if !leaf.remove(key) {
        return Ok(false);
    }
    rewrite(store, path, id, Node::Leaf(leaf), None, events)?;
    Ok(true)
}

/// Replaces a node, which may have become too full or too empty, and mends upwards. `at`: where what is new in it stands, if
/// it is to be halved as before that came.
pub(crate) fn rewrite(
    store: &mut impl Rewrite,
    mut path: Vec<Step>,
    id: NodeId,
    node: Node,
    at: Option<usize>,
    events: &mut Events,
) -> Result<()> {
    let level = node.level();
    let halves = at.is_some();
    let root_level = store.root().level;
    let (mut node, mut old, mut at) = (node, vec![id], at);
    for level in level..=root_level {
        let is_root = level == root_level;
        let limits = store.limits(level, root_level + 1);
        let mut first = path.last().map_or(0, |step| step.child);
        let mut is_mended = false;
        if let Some(step) = path.last() {
            let parent = step.node.as_inner()?;
            // One sibling is enough, but where leaves have logs: a sibling may hold less than its page says.
            while node.count() < limits.min && old.len() < parent.children.len() {
                let is_left = first > 0;
                let sibling_id = parent.children[if is_left { first - 1 } else { first + old.len() }];
                let sibling = store.read(sibling_id)?.as_ref().clone();
                if is_left {
                    first -= 1;
                    old.insert(0, sibling_id);
                    node = join(sibling, parent.fences[first], node);
                } else {
                    node = join(node, parent.fences[first + old.len() - 1], sibling);
                    old.push(sibling_id);
                }
                at = None;
                is_mended = true;
            }
        }
        if is_mended && node.count() <= limits.max {
            events.merges += 1;
        } else if is_mended {
            events.redistributions += 1;
        } else if node.count() > limits.max {
            events.splits += 1;
        }
        if let Node::Inner(inner) = &node
            && is_root
            && inner.children.len() == 1
        {
            let root = Root { id: inner.children[0], level: level - 1 };
            store.replace(level, &old, Vec::new())?;
            store.set_root(root);
            return Ok(());
        }
        // What was the root is none any more if it is divided.
        let max = if is_root && node.count() > limits.max {
            let (max, above) =
                (store.limits(level, root_level + 2).max, store.limits(level + 1, root_level + 2).max);
            if max < PIECES_MAX || above < PIECES_MAX {
                return Err(Error::Full(format!(
                    "a page has no room for more than {} levels of this tree; take larger pages",
                    root_level + 1
                )));
            }
            max
        } else {
            limits.max
        };
        let (nodes, fences) = pieces(node, max, at);
        let ids = store.replace(level, &old, nodes)?;
        let Some(Step { id, node: parent, .. }) = path.pop() else {
            return raise(store, level, ids, fences);
        };
        let mut inner = parent.as_inner()?.clone();
        let last = first + old.len();
        if ids == old && inner.fences[first..last - 1] == fences {
            return Ok(());
        }
        at = (halves && ids.len() > old.len()).then_some(first + 1);
        inner.fences.splice(first..last - 1, fences);
        inner.children.splice(first..last, ids);
        (node, old) = (Node::Inner(inner), vec![id]);
    }
    Err(Error::broken(format!("the way to {id} ends below the root")))
}

/// A new sibling, right of the child that the way goes on to: its parent is told.
pub(crate) fn add_sibling(
    store: &mut impl Rewrite,
    mut path: Vec<Step>,
    (left, fence, right): (NodeId, Key, NodeId),
    split: Split,
    events: &mut Events,
) -> Result<()> {
    let Some(Step { id, node, child }) = path.pop() else {
        let level = store.root().level;
        return raise(store, level, vec![left, right], vec![fence]);
    };
    let mut inner = node.as_inner()?.clone();
    inner.fences.insert(child, fence);
    inner.children.insert(child + 1, right);
    let at = (split == Split::Halve).then_some(child + 1);
    rewrite(store, path, id, Node::Inner(inner), at, events)
}

/// The root is these nodes, or a new one above them.
fn raise(store: &mut impl Rewrite, level: u8, mut ids: Vec<NodeId>, fences: Vec<Key>) -> Result<()> {
    let (id, level) = match ids.len() {
        1 => (ids.remove(0), level),
        2..=PIECES_MAX => {
            let level = level + 1;
            let root = Inner { level, fences, children: ids };
            (store.replace(level, &[], vec![Node::Inner(root)])?[0], level)
        }
        many => return Err(Error::broken(format!("a node became {many}"))),
    };
    store.set_root(Root { id, level });
    Ok(())
}
