//! Updates in the cascade: the path to the key is brought into memory, and everything happens there. (CB-tree, Applied
//! Sciences 2020, sections 3.2 to 3.4.)
//!
//! Invariants, between operations:
//! 1. Nodes that are not in memory are at least half full, but for the last leaf of the tree. Memory nodes may be less, even
//!    empty: mending waits until the node leaves memory, so that several deletions cost one merge.
//! 2. Nodes leave memory from the leaf upwards, so that what a node's leaving changes in its parent is changed in memory.
//! 3. A root with inner nodes has two children or more.
//!
//! Leaves are not chained: an empty one is taken out of its parent, and nobody else knows it.

use crate::buffer::cascade::{Cascade, MemoryNode};
use crate::page::node::{Inner, Leaf, Node};
use crate::page::{Key, NodeId, Value};
use crate::store::{NodeStore, Root};
use crate::update::single::Events;
use crate::update::split_merge::{Mended, Pair, halve, mend};
use crate::{Error, Result};
use std::sync::Arc;

/// When a full leaf is left as it is, and the new key begins the next one. The paper says that the keys are in sequence, and
/// means more than one thing by it (section 3.2: of the leaf; section 3.3: continuous values).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sequential {
    /// All keys of the leaf are consecutive integers, and the new one is the next.
    #[default]
    Strict,
    /// The leaf was filled in ascending order since it was begun, or divided by a key at its end, in memory; and the new key
    /// goes on so.
    Relaxed,
    /// The new key is greater than all of the leaf.
    Last,
}

/// Beside [`Events`].
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Switches {
    /// Memory nodes that gave way to others.
    pub nodes: u64,
    /// Of them, those that had to be written.
    pub written: u64,
    /// Full leaves that were left as they are.
    pub unsplit: u64,
    /// Deletions that left a memory node less than half full.
    pub deferred: u64,
    /// Empty leaves that were taken out of their parents.
    pub unlinked: u64,
    /// Commits because the root was about to grow.
    pub growths: u64,
}

/// How a system wants its updates.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Policy {
    pub sequential: Sequential,
    /// Make everything durable before the root grows.
    pub commit_before_growth: bool,
}

/// An update in the making.
pub(crate) struct Update<'a> {
    pub cascade: &'a mut Cascade,
    pub events: &'a mut Events,
    pub switches: &'a mut Switches,
}

/// Makes the root of an empty tree, in memory.
pub(crate) fn plant(cascade: &mut Cascade) {
    let id = cascade.allocate();
    let leaf = MemoryNode { ascending: true, ..MemoryNode::new(id, Node::Leaf(Leaf::default())) };
    cascade.path = vec![leaf];
    cascade.set_root(Root { id, level: 0 });
}

/// The first memory node that is not on the way to a key.
fn leaves_at(cascade: &Cascade, key: Key) -> Result<usize> {
    for (at, pair) in cascade.path.windows(2).enumerate() {
        let inner = pair[0].node.as_inner()?;
        if inner.children[inner.child_of(key)] != pair[1].id {
            return Ok(at + 1);
        }
    }
    Ok(cascade.path.len())
}

/// Brings the rest of the way to a key into memory.
fn load_rest(cascade: &mut Cascade, key: Key) -> Result<()> {
    while cascade.path.len() < cascade.height() {
        let next = match cascade.path.last() {
            Some(above) => {
                let inner = above.node.as_inner()?;
                inner.children[inner.child_of(key)]
            }
            None => cascade.root().id,
        };
        cascade.load(next)?;
    }
    Ok(())
}

/// Brings the path to a key into memory, if all that has to give way for it can be dropped as it is. Whether it is there.
pub(crate) fn load_if_clean(cascade: &mut Cascade, key: Key) -> Result<bool> {
    let leaves_at = leaves_at(cascade, key)?;
    let shape = cascade.shape();
    let may_be_underfull = is_last_leaf(cascade)?;
    let can_go = |memory: &MemoryNode| {
        let is_exempt = may_be_underfull && memory.node.level() == 0 && memory.node.count() > 0;
        !memory.dirty && (is_exempt || !shape.underflows(&memory.node))
    };
    if !cascade.path[leaves_at..].iter().all(can_go) {
        return Ok(false);
    }
    cascade.path.truncate(leaves_at);
    cascade.hit(leaves_at);
    load_rest(cascade, key)?;
    Ok(true)
}

/// Whether the lowest memory node is the last leaf of the tree.
fn is_last_leaf(cascade: &Cascade) -> Result<bool> {
    for pair in cascade.path.windows(2) {
        if pair[0].node.as_inner()?.children.last() != Some(&pair[1].id) {
            return Ok(false);
        }
    }
    Ok(cascade.path.len() == cascade.height())
}

/// Which child of an inner node another one is.
fn position(parent: &Inner, child: NodeId) -> Result<usize> {
    let at = parent.children.iter().position(|other| *other == child);
    at.ok_or_else(|| Error::broken(format!("{child} is not among the children of its parent")))
}

impl Update<'_> {
    /// Node switching: brings the whole path to a key into memory.
    fn descend(&mut self, key: Key) -> Result<()> {
        let kept = loop {
            let leaves_at = leaves_at(self.cascade, key)?;
            if leaves_at == self.cascade.path.len() {
                break leaves_at;
            }
            // Where this node goes may change where the way leads: look again.
            self.switch_out()?;
        };
        self.cascade.hit(kept);
        load_rest(self.cascade, key)
    }

    /// The lowest memory node gives way. If it has no sibling that it needs, its parent is given some instead.
    fn switch_out(&mut self) -> Result<()> {
        let shape = self.cascade.shape();
        let path = &self.cascade.path;
        let (Some(memory), Some(parent)) = (path.last(), path.len().checked_sub(2)) else {
            return Err(Error::broken("the root is on no way"));
        };
        let is_empty = memory.node.count() == 0;
        let is_underfull = shape.underflows(&memory.node) && !is_last_leaf(self.cascade)?;
        if (is_empty || is_underfull) && path[parent].node.count() == 1 {
            return self.gain_siblings(parent);
        }
        self.switches.nodes += 1;
        let Some(memory) = self.cascade.path.pop() else { return Ok(()) };
        if is_empty {
            self.switches.unlinked += 1;
            self.cascade.free(memory.id)?;
            let inner = self.cascade.path[parent].inner_mut()?;
            let at = position(inner, memory.id)?;
            inner.children.remove(at);
            inner.fences.remove(at.saturating_sub(1));
            self.collapse()?;
        } else if is_underfull {
            let (id, node) = (memory.id, memory.node);
            match self.mend(parent, id, Arc::unwrap_or_clone(node))? {
                (left, Mended::Merged(node), _) => self.cascade.write_flash(&[(left, &node)])?,
                (left, Mended::Redistributed(pair), right) => {
                    self.cascade.write_flash(&[(left, &pair.left), (right, &pair.right)])?;
                }
            }
            self.switches.written += 1;
            self.collapse()?;
        } else if memory.dirty {
            self.cascade.write_flash(&[(memory.id, &memory.node)])?;
            self.switches.written += 1;
        }
        Ok(())
    }

    /// Merges a node with its sibling, or divides what both hold, and tells the parent, a memory node. Ids of the left and
    /// the right one.
    fn mend(&mut self, parent: usize, id: NodeId, node: Node) -> Result<(NodeId, Mended, NodeId)> {
        let shape = self.cascade.shape();
        let inner = self.cascade.path[parent].node.as_inner()?;
        let at = position(inner, id)?;
        let left_at = at.saturating_sub(1);
        let is_right = left_at != at;
        let sibling_id = inner.children[if is_right { left_at } else { 1 }];
        let fence = inner.fences[left_at];
        let sibling = self.cascade.read_flash(sibling_id)?;
        let (left, right) = if is_right { (sibling, node) } else { (node, sibling) };
        let (left_id, right_id) = if is_right { (sibling_id, id) } else { (id, sibling_id) };
        let mended = mend(left, fence, right, shape);
        match &mended {
            Mended::Merged(_) => {
                self.events.merges += 1;
                self.cascade.free(right_id)?;
                let inner = self.cascade.path[parent].inner_mut()?;
                inner.fences.remove(left_at);
                inner.children.remove(left_at + 1);
            }
            Mended::Redistributed(pair) => {
                self.events.redistributions += 1;
                self.cascade.path[parent].inner_mut()?.fences[left_at] = pair.fence;
            }
        }
        Ok((left_id, mended, right_id))
    }

    /// A memory node has one child, which needs a sibling: it is mended itself, or gives way if it is the root. If its own
    /// parent has no other child either, that comes first.
    fn gain_siblings(&mut self, at: usize) -> Result<()> {
        if at == 0 {
            return self.collapse();
        }
        if self.cascade.path[at - 1].node.count() == 1 {
            return self.gain_siblings(at - 1);
        }
        let MemoryNode { id, node, .. } = self.cascade.path[at].clone();
        let child = self.cascade.path.get(at + 1).map(|child| child.id);
        let (id, node) = match self.mend(at - 1, id, Arc::unwrap_or_clone(node))? {
            (left_id, Mended::Merged(node), _) => (left_id, node),
            (left_id, Mended::Redistributed(pair), right_id) => {
                let stays = child.is_some_and(
                    |child| matches!(&pair.left, Node::Inner(left) if left.children.contains(&child)),
                );
                if stays {
                    self.cascade.write_flash(&[(right_id, &pair.right)])?;
                    (left_id, pair.left)
                } else {
                    self.cascade.write_flash(&[(left_id, &pair.left)])?;
                    (right_id, pair.right)
                }
            }
        };
        self.cascade.path[at] = MemoryNode::new(id, node);
        self.collapse()
    }

    /// A root with one child gives way to it.
    fn collapse(&mut self) -> Result<()> {
        while let Some(Node::Inner(inner)) = self.cascade.path.first().map(|root| &*root.node)
            && inner.children.len() == 1
        {
            let root = Root { id: inner.children[0], level: inner.level - 1 };
            let old = self.cascade.path.remove(0);
            self.cascade.free(old.id)?;
            self.cascade.set_root(root);
        }
        if self.cascade.path.is_empty() {
            let root = self.cascade.root().id;
            self.cascade.load(root)?;
        }
        Ok(())
    }

    /// Sets the value of a key.
    pub fn insert(&mut self, key: Key, value: Value, policy: Policy) -> Result<()> {
        self.descend(key)?;
        let shape = self.cascade.shape();
        let Some(memory) = self.cascade.path.last_mut() else { return Ok(()) };
        let leaf = memory.node.as_leaf()?;
        let is_new = leaf.get(key).is_none();
        let last = leaf.entries.last().map(|entry| entry.0);
        if !is_new || leaf.entries.len() < shape.records {
            memory.ascending &= !is_new || last.is_none_or(|last| last < key);
            memory.leaf_mut()?.insert(key, value);
            return Ok(());
        }
        let first = leaf.entries[0].0;
        let goes_on = last.is_some_and(|last| match policy.sequential {
            Sequential::Strict => {
                last.checked_add(1) == Some(key) && last - first == leaf.entries.len() as u64 - 1
            }
            Sequential::Relaxed => memory.ascending && last < key,
            Sequential::Last => last < key,
        });
        let is_full = |memory: &MemoryNode| memory.node.count() >= shape.max(&memory.node);
        if policy.commit_before_growth && self.cascade.path.iter().all(is_full) {
            self.switches.growths += 1;
            self.cascade.commit()?;
        }
        let Some(mut memory) = self.cascade.path.pop() else { return Ok(()) };
        let new_id = self.cascade.allocate();
        if goes_on {
            self.switches.unsplit += 1;
            if memory.dirty {
                self.cascade.write_flash(&[(memory.id, &memory.node)])?;
            }
            let leaf = Node::Leaf(Leaf { entries: vec![(key, value)], next: None });
            let next = MemoryNode { ascending: true, ..MemoryNode::new(new_id, leaf) };
            return self.add_child(key, memory.id, next, new_id);
        }
        let leaf = memory.leaf_mut()?;
        let at = leaf.entries.partition_point(|entry| entry.0 < key);
        let is_last = at == leaf.entries.len();
        leaf.insert(key, value);
        let Pair { left, fence, right } = halve(Arc::unwrap_or_clone(memory.node), at);
        let (id, in_right) = (memory.id, key >= fence);
        let stays = self.divide(id, left, new_id, right, in_right)?;
        // If keys go on ascending from here, this half may be where a sequence begins.
        self.add_child(fence, id, MemoryNode { ascending: is_last, ..stays }, new_id)
    }

    /// One half of a node stays in memory, the other is written at once.
    fn divide(
        &mut self,
        left_id: NodeId,
        left: Node,
        right_id: NodeId,
        right: Node,
        right_stays: bool,
    ) -> Result<MemoryNode> {
        self.events.splits += 1;
        if right_stays {
            self.cascade.write_flash(&[(left_id, &left)])?;
            Ok(MemoryNode::new(right_id, right))
        } else {
            self.cascade.write_flash(&[(right_id, &right)])?;
            Ok(MemoryNode::new(left_id, left))
        }
    }

    /// The lowest memory node has become two: tells its parent, and so on upwards. `lowest` is the half that stays.
    fn add_child(&mut self, fence: Key, left: NodeId, lowest: MemoryNode, right: NodeId) -> Result<()> {
        let shape = self.cascade.shape();
        let mut carried = Some((fence, left, right));
        let mut below = vec![lowest];
        while let Some((fence, left, right)) = carried.take() {
            let Some(mut parent) = self.cascade.path.pop() else {
                let id = self.cascade.allocate();
                let level = self.cascade.root().level + 1;
                let root = Inner { level, fences: vec![fence], children: vec![left, right] };
                self.cascade.set_root(Root { id, level });
                self.cascade.path.push(MemoryNode::new(id, Node::Inner(root)));
                continue;
            };
            let inner = parent.inner_mut()?;
            let at = position(inner, left)?;
            inner.fences.insert(at, fence);
            inner.children.insert(at + 1, right);
            if !shape.overflows(&parent.node) {
                self.cascade.path.push(parent);
                continue;
            }
            let pair = halve(Arc::unwrap_or_clone(parent.node), at + 1);
            let new_id = self.cascade.allocate();
            let child = below.last().map(|below| below.id);
            let in_right = matches!((&pair.right, child), (Node::Inner(right), Some(child)) if right.children.contains(&child));
            below.push(self.divide(parent.id, pair.left, new_id, pair.right, in_right)?);
            carried = Some((pair.fence, parent.id, new_id));
        }
        self.cascade.path.extend(below.into_iter().rev());
        Ok(())
    }

    /// Removes a key; whether it was there.
    pub fn delete(&mut self, key: Key) -> Result<bool> {
        self.descend(key)?;
        let shape = self.cascade.shape();
        let Some(memory) = self.cascade.path.last_mut() else { return Ok(false) };
        if memory.node.as_leaf()?.get(key).is_none() {
            return Ok(false);
        }
        memory.leaf_mut()?.remove(key);
        self.switches.deferred += u64::from(shape.underflows(&memory.node));
        Ok(true)
    }
}
