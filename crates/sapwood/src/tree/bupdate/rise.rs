//! The upper part of bupdate: carries the changes of one level up to the root. Parents get splices,
//! neighbouring parents with splices are repacked together as leaves are, and the tree grows or shrinks at
//! its root.
//!
//! Invariants:
//! 1. Each inner node above changed children is rewritten once, and not at all if its children kept ids and
//!    separators, unless it is a block's node.
//! 2. No node joins a block that has a log area: nothing is taken from its range as long as it has the area.
//! 3. A block's range shrinks only when its own node is rewritten: a run keeps its first separator, and the
//!    node behind the run keeps its own. The range may grow without that, when a neighbour is given up.
//!    (Appending ahead of a flush relies on this.)

use super::{Parent, Update, are_neighbours};
use crate::error::Result;
use crate::storage::node::{Node, NodeId};
use crate::tree::change::LeafChange;
use crate::tree::fan;
use crate::tree::pack::{Child, Packer};
use bytes::Bytes;
use std::collections::HashSet;
use std::ops::Range;
use std::rc::Rc;

/// Replaces `children` of a parent.
struct Splice {
    children: Range<usize>,
    by: Vec<Child>,
}

/// A parent and its splices, in order.
pub(super) struct Spliced {
    parent: Rc<Parent>,
    splices: Vec<Splice>,
}

impl<C: LeafChange, I: Iterator<Item = C>> Update<'_, '_, C, I> {
    /// Notes that `children` of the parent are now `by`.
    pub(super) fn splice(
        &mut self,
        parent: Option<&Rc<Parent>>,
        level: u8,
        children: Range<usize>,
        by: Vec<Child>,
    ) {
        let Some(parent) = parent else {
            self.top = Some((level, by));
            return;
        };
        let splice = Splice { children, by };
        match self.spliced.last_mut() {
            Some(last) if last.parent.place.id == parent.place.id => last.splices.push(splice),
            _ => self.spliced.push(Spliced { parent: Rc::clone(parent), splices: vec![splice] }),
        }
    }

    /// Carries the splices upwards, level by level, to the root. Returns the new root and its level.
    pub(super) fn rise(&mut self, root: NodeId, height: u8) -> Result<(Option<NodeId>, u8)> {
        for level in 1..=height {
            let mut spliced = std::mem::take(&mut self.spliced);
            // Even an unchanged node of a block is rewritten, behind its leaves, if many of those were: alone
            // in an old segment it would keep that segment from dying.
            spliced.retain(|parent| (level == 1 && parent.is_mostly_new()) || !parent.is_unchanged());
            let touched: HashSet<NodeId> = spliced.iter().map(|parent| parent.parent.place.id).collect();
            for run in spliced.chunk_by(|a, b| are_neighbours(&a.parent.place, &b.parent.place)) {
                self.rewrite_parents(run, level, &touched)?;
            }
        }
        match self.top.take() {
            None => Ok((Some(root), height)),
            Some((level, children)) => self.grow_root(level, children),
        }
    }

    /// Rewrites neighbouring inner nodes with their splices.
    fn rewrite_parents(&mut self, run: &[Spliced], level: u8, touched: &HashSet<NodeId>) -> Result<()> {
        let (Some(first), Some(last)) = (run.first(), run.last()) else { return Ok(()) };
        let (first, last) = (&first.parent.place, &last.parent.place);
        if first.parent.is_none() {
            return self.rewrite_root(&run[0], level);
        }
        let ids = run.iter().map(|spliced| spliced.parent.place.id);
        let mut packer =
            Packer::new(level, self.view.keyspace, self.node_len.at(level), ids, first.separator());
        for spliced in run {
            for child in spliced.children(spliced.parent.place.separator()) {
                packer.push(self.builder, &child.separator, child.payload().bytes())?;
            }
        }
        let mut children = first.index..last.index + 1;
        if let Some(parent) = &first.parent
            && packer.is_underfull()
        {
            // A block with a log area is left alone.
            let is_free = |child: usize| {
                let id = parent.node.child(child);
                !touched.contains(&id) && !self.builder.has_log(id)
            };
            let right_is_free = children.end < parent.node.count() && is_free(children.end);
            let left_is_free = children.start > 0 && is_free(children.start - 1);
            if right_is_free || left_is_free {
                self.join_neighbour(&mut packer, parent, level, &mut children, &|_| right_is_free)?;
            }
        }
        let packed = packer.finish(self.builder, last.fence.is_none())?;
        self.splice(first.parent.as_ref(), level, children, packed.nodes);
        Ok(())
    }

    /// Rewrites the root, or gives it up if at most one child is left.
    fn rewrite_root(&mut self, root: &Spliced, level: u8) -> Result<()> {
        let children = root.children(Bytes::new());
        let id = root.parent.place.id;
        if children.len() <= 1 {
            self.builder.free(id);
            self.top = Some((level - 1, children));
            return Ok(());
        }
        let mut packer = Packer::new(level, self.view.keyspace, self.node_len.at(level), [id], Bytes::new());
        for child in children {
            packer.push(self.builder, &child.separator, child.payload().bytes())?;
        }
        self.top = Some((level, packer.finish(self.builder, true)?.nodes));
        Ok(())
    }

    /// Adds inner nodes above `children`, which are nodes of `level`, until one node is left.
    pub(super) fn grow_root(
        &mut self,
        mut level: u8,
        mut children: Vec<Child>,
    ) -> Result<(Option<NodeId>, u8)> {
        while children.len() > 1 {
            level += 1;
            let mut packer =
                Packer::new(level, self.view.keyspace, self.node_len.at(level), [], Bytes::new());
            for child in children {
                packer.push(self.builder, &child.separator, child.payload().bytes())?;
            }
            children = packer.finish(self.builder, true)?.nodes;
        }
        Ok((children.first().map(|child| child.id), level))
    }
}

impl Spliced {
    /// Whether this is the given parent, and its last splice covers the child or ends beyond it.
    pub(super) fn has_replaced(&self, parent: NodeId, child: usize) -> bool {
        self.parent.place.id == parent
            && self.splices.last().is_some_and(|splice| splice.children.end > child)
    }

    /// All children after the splices. `separator` is the node's own, and becomes the first child's.
    fn children(&self, separator: Bytes) -> Vec<Child> {
        let node = &self.parent.node;
        let mut all = Vec::with_capacity(node.count() + 8);
        let mut next = 0;
        for splice in &self.splices {
            all.extend((next..splice.children.start).map(|index| child_of(node, index)));
            all.extend(splice.by.iter().cloned());
            next = splice.children.end;
        }
        all.extend((next..node.count()).map(|index| child_of(node, index)));
        if let Some(first) = all.first_mut() {
            first.is_lone &= first.separator == separator;
            first.separator = separator;
        }
        all
    }

    /// Whether so many children were replaced that everything stored beside the node may have been.
    fn is_mostly_new(&self) -> bool {
        let replaced: usize = self.splices.iter().map(|splice| splice.children.len()).sum();
        fan::is_most(replaced, self.parent.node.count())
    }

    /// Whether all replaced children kept their ids and separators.
    fn is_unchanged(&self) -> bool {
        let node = &self.parent.node;
        self.splices.iter().all(|splice| {
            splice.children.len() == splice.by.len()
                && splice.children.clone().zip(&splice.by).all(|(index, child)| {
                    node.child(index) == child.id
                        && node.key(index) == &child.separator[..]
                        && node.is_lone(index) == child.is_lone
                })
        })
    }
}

fn child_of(node: &Node, index: usize) -> Child {
    Child { separator: node.key_bytes(index), id: node.child(index), is_lone: node.is_lone(index) }
}
