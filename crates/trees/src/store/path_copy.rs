//! Path copying: an update in the making, of a tree whose parents know the addresses of their children. All nodes on the way
//! from the leaf to the root are made anew, and then written: children first, since a parent needs their addresses.
//!
//! Invariants of a plan:
//! 1. A child that is new is named by its number in the level below, with [`NEW`] set, until its address is known.
//! 2. The highest level has one node, the root.

use crate::Result;
use crate::page::node::Node;
use crate::page::{Key, NodeId};
use crate::store::Root;
use crate::store::nodes::{Limits, Nodes, Rewrite};
use std::sync::Arc;

/// The mark of a node that has no address yet.
const NEW: u64 = 1 << 63;

/// How many children or records a node of some level has room for, in a tree of some height.
pub(crate) type LimitsOf<'a> = dyn Fn(u8, u8) -> Limits + 'a;

/// See the module.
pub(crate) struct Plan {
    /// New nodes, leaves first.
    pub levels: Vec<Vec<Node>>,
    /// Nodes that they replace.
    pub dead: Vec<NodeId>,
}

impl Plan {
    /// Levels that the tree will have.
    pub fn height(&self) -> u8 {
        self.levels.len() as u8
    }
}

/// A node whose new children have got their addresses.
pub(crate) fn resolved(node: &Node, addresses: &[NodeId]) -> Node {
    let mut node = node.clone();
    if let Node::Inner(inner) = &mut node {
        for child in inner.children.iter_mut().filter(|child| child.0 & NEW != 0) {
            *child = addresses[(child.0 & !NEW) as usize];
        }
    }
    node
}

/// A store in which an update is planned.
pub(crate) struct Planning<'a, S> {
    store: &'a S,
    limits: &'a LimitsOf<'a>,
    levels: Vec<Vec<Node>>,
    dead: Vec<NodeId>,
    root: Root,
}

impl<'a, S: Nodes> Planning<'a, S> {
    pub fn new(store: &'a S, limits: &'a LimitsOf<'a>) -> Self {
        Self { store, limits, levels: Vec::new(), dead: Vec::new(), root: store.root() }
    }

    /// What has come of it: nothing, if nothing changes.
    pub fn finish(mut self) -> Option<Plan> {
        self.levels.truncate(usize::from(self.root.level) + 1);
        (self.root.id.0 & NEW != 0).then_some(Plan { levels: self.levels, dead: self.dead })
    }

    /// Plans copies of the nodes that the keys (in order) lead to, each at its level, and of all nodes above them.
    pub fn copy(&mut self, targets: &[(Key, u8)]) -> Result<()> {
        let root = self.root;
        let id = self.copy_below(root.id, root.level, targets)?;
        self.set_root(Root { id, level: root.level });
        Ok(())
    }

    fn copy_below(&mut self, id: NodeId, level: u8, targets: &[(Key, u8)]) -> Result<NodeId> {
        let mut node = self.store.read(id)?.as_ref().clone();
        if let Node::Inner(inner) = &mut node {
            let mut below = targets.iter().copied().filter(|target| target.1 < level).peekable();
            while let Some(target) = below.next() {
                let child = inner.child_of(target.0);
                let mut of_child = vec![target];
                while let Some(next) = below.next_if(|next| inner.child_of(next.0) == child) {
                    of_child.push(next);
                }
                inner.children[child] = self.copy_below(inner.children[child], level - 1, &of_child)?;
            }
        }
        Ok(self.replace(level, &[id], vec![node])?[0])
    }
}

impl<S: Nodes> Nodes for Planning<'_, S> {
    fn root(&self) -> Root {
        self.root
    }

    fn read(&self, id: NodeId) -> Result<Arc<Node>> {
        self.store.read(id)
    }

    fn limits(&self, level: u8, height: u8) -> Limits {
        (self.limits)(level, height)
    }
}

impl<S: Nodes> Rewrite for Planning<'_, S> {
    fn replace(&mut self, level: u8, old: &[NodeId], new: Vec<Node>) -> Result<Vec<NodeId>> {
        let level = usize::from(level);
        if self.levels.len() <= level {
            self.levels.resize(level + 1, Vec::new());
        }
        self.dead.extend(old);
        let nodes = &mut self.levels[level];
        let first = nodes.len() as u64;
        nodes.extend(new);
        Ok((first..nodes.len() as u64).map(|number| NodeId(NEW | number)).collect())
    }

    fn set_root(&mut self, root: Root) {
        self.root = root;
    }
}
