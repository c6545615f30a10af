//! The way of a walk: from the root down to where it begins, and from leaf to leaf, block to block.
//!
//! Invariants:
//! 1. A leaf outside of the bounds is not named.
//! 2. A block with a log area is entered before the first of its leaves is named.

use crate::error::Result;
use crate::node::{Node, NodeId};
use crate::operation::KeyspaceId;
use crate::store::log_area::LogArea;
use crate::store::pager::Pager;
use crate::store::rent::BYTES_A_PIECE;
use crate::store::scan_lengths::Kind;
use crate::store::version::Version;
use crate::tree::view::TreeView;
use bytes::Bytes;
use std::ops::Bound;
use std::sync::Arc;

/// Which way a cursor goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Up,
    Down,
}

/// What is walked: one tree between two bounds, in one direction.
pub(super) struct Course {
    pub pager: Arc<Pager>,
    pub version: Arc<Version>,
    pub keyspace: KeyspaceId,
    pub low: Bound<Bytes>,
    pub high: Bound<Bytes>,
    pub direction: Direction,
}

impl Course {
    pub fn view(&self) -> TreeView<'_> {
        TreeView { pager: &self.pager, version: &self.version, keyspace: self.keyspace }
    }

    /// What its length is to be compared with.
    pub fn kind(&self) -> Kind {
        let end = match self.direction {
            Direction::Up => &self.high,
            Direction::Down => &self.low,
        };
        Kind::new(self.keyspace, *end != Bound::Unbounded)
    }

    /// Whether a child may hold keys before the far bound.
    fn reaches(&self, node: &Node, child: usize) -> bool {
        match (self.direction, &self.low) {
            (Direction::Up, _) => child == 0 || below_high(node.key(child), &self.high),
            // All keys below the child are less than the separator of the one above it.
            (Direction::Down, Bound::Included(low) | Bound::Excluded(low)) if child + 1 < node.count() => {
                node.key(child + 1) > &low[..]
            }
            (Direction::Down, _) => true,
        }
    }

    /// The child of an inner node where the walk begins.
    fn first_child(&self, node: &Node) -> usize {
        let from = match self.direction {
            Direction::Up => &self.low,
            Direction::Down => &self.high,
        };
        match (from, self.direction) {
            (Bound::Unbounded, Direction::Up) => 0,
            (Bound::Unbounded, Direction::Down) => node.count() - 1,
            (Bound::Included(key) | Bound::Excluded(key), _) => node.child_for(key),
        }
    }
}

fn below_high(key: &[u8], high: &Bound<Bytes>) -> bool {
    match high {
        Bound::Unbounded => true,
        Bound::Included(high) => key <= &high[..],
        Bound::Excluded(high) => key < &high[..],
    }
}

/// A block with a log area.
pub(super) type Entered = (Node, Arc<LogArea>);

/// Where a walk is.
#[derive(Default)]
pub(super) struct Path {
    /// Inner nodes from the root down to level 1, each with the next child to visit.
    nodes: Vec<(Node, usize)>,
    /// Blocks with a log area that the walk has entered since it was asked last.
    entered: Vec<Entered>,
}

/// How a walk begins.
pub(super) enum Beginning {
    /// There is nothing.
    Nowhere,
    /// With this leaf, which is the root.
    Root(NodeId),
    /// With this leaf, which the path names next.
    Leaf(NodeId),
}

impl Path {
    /// Goes to the leaf where the walk begins.
    pub fn begin(&mut self, course: &Course) -> Result<Beginning> {
        let view = course.view();
        let Some((mut id, height)) = view.root() else { return Ok(Beginning::Nowhere) };
        for level in (1..=height).rev() {
            let node = view.node(id, level)?;
            let child = course.first_child(&node);
            self.enter(view, level, &node);
            id = node.child(child);
            self.nodes.push((node, child));
        }
        Ok(if height == 0 { Beginning::Root(id) } else { Beginning::Leaf(id) })
    }

    /// Remembers that the walk enters a node's children, if those are leaves with a log area.
    fn enter(&mut self, view: TreeView<'_>, level: u8, node: &Node) {
        if level == 1 {
            self.entered.extend(view.log(node.name().id).map(|area| (node.clone(), Arc::clone(area))));
        }
    }

    /// Bytes that a search pays for entering the next block, as far as they are not here; `None` if it ends before or is
    /// somewhere else in the tree than beside this one, or its node would have to be read first.
    pub fn toll(&self, course: &Course) -> Option<u64> {
        let (node, at) = self.nodes.get(self.nodes.len().checked_sub(2)?)?;
        let next = match course.direction {
            Direction::Up => *at + 1,
            Direction::Down => at.checked_sub(1)?,
        };
        if next >= node.count() || !course.reaches(node, next) {
            return None;
        }
        let view = course.view();
        let block = node.child(next);
        course.pager.cached(view.version.table.address(block)?)?;
        let Some(area) = view.log(block) else { return Some(0) };
        let missing = area.pieces().filter_map(|piece| view.version.table.address(piece.id));
        let missing = missing.filter(|address| course.pager.cached(*address).is_none());
        Some(missing.map(|address| u64::from(address.len) + BYTES_A_PIECE).sum())
    }

    /// Blocks with a log area that were entered since this was asked last.
    pub fn take_entered(&mut self) -> Vec<Entered> {
        std::mem::take(&mut self.entered)
    }

    /// Whether there are further leaves, in this block or another; if so, the path leads to the first of them.
    pub fn has_more(&mut self, course: &Course) -> Result<bool> {
        Ok(self.peek_leaf(course).is_some() || self.next_block(course)?)
    }

    /// The next leaf of the block.
    pub fn peek_leaf(&self, course: &Course) -> Option<NodeId> {
        self.peek_child(course, 0).map(|(id, _)| id)
    }

    /// The next leaf of the block. Moves on behind it.
    pub fn next_leaf(&mut self, course: &Course) -> Option<NodeId> {
        self.next_child(course, 0)
    }

    /// The next child of the node `up` levels above level 1, if the walk needs one. Moves on behind it.
    fn next_child(&mut self, course: &Course, up: usize) -> Option<NodeId> {
        let (child, behind) = self.peek_child(course, up)?;
        let index = self.nodes.len().checked_sub(1 + up)?;
        self.nodes[index].1 = behind;
        Some(child)
    }

    /// As [`Path::next_child`], without moving; also where one would be behind it.
    fn peek_child(&self, course: &Course, up: usize) -> Option<(NodeId, usize)> {
        let index = self.nodes.len().checked_sub(1 + up)?;
        let (node, child) = &self.nodes[index];
        let child = *child;
        if child >= node.count() {
            return None;
        }
        course.reaches(node, child).then(|| {
            let behind = match course.direction {
                Direction::Up => child + 1,
                Direction::Down => child.checked_sub(1).unwrap_or(usize::MAX),
            };
            (node.child(child), behind)
        })
    }

    /// Replaces the level-1 node, of which all wanted children were visited, by the next one. False at the end.
    pub fn next_block(&mut self, course: &Course) -> Result<bool> {
        let view = course.view();
        let height = self.nodes.len();
        // From below: the first level that has a further child. The path holds the child being visited (it was not
        // consumed on the way down), so step over it first.
        for up in 1..height {
            let index = height - 1 - up;
            let (node, at) = &mut self.nodes[index];
            let next = match course.direction {
                Direction::Up => *at + 1,
                Direction::Down => at.checked_sub(1).unwrap_or(usize::MAX),
            };
            if next >= node.count() {
                continue;
            }
            *at = next;
            let Some(mut id) = self.next_child(course, up) else { return Ok(false) };
            // `next_child` moved on; an inner level above level 1 names the child being visited.
            self.nodes[index].1 = next;
            self.nodes.truncate(index + 1);
            for level in (1..=(up as u8)).rev() {
                let node = view.node(id, level)?;
                let child = if course.direction == Direction::Up { 0 } else { node.count() - 1 };
                self.enter(view, level, &node);
                id = node.child(child);
                self.nodes.push((node, child));
            }
            return Ok(true);
        }
        Ok(false)
    }

    /// The walk is over.
    pub fn clear(&mut self) {
        self.nodes.clear();
        self.entered.clear();
    }
}
